"""Interruptions: Ctrl-C and its like are heard where a call can be given up, and nowhere else.

Python runs the handler of a signal on the main thread, between any two steps of the interpreter.
What it raises there (KeyboardInterrupt) may leave a lock held, a thread that nobody joins, or
memory counted that nobody has: even ``threading.Event.wait`` and ``Thread.start`` are not safe
from it.

So while the library is at work, signals are noted (`defer_signals`), and their handlers are called
at the points that say so (`hear`), or at the end of the block. Handlers run on the main thread
alone, so on other threads there is nothing to do.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, at several times its cost
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ooc_cudnn import fork_safety

#: Signals whose handlers people make raise: Ctrl-C, timeouts, the end of a batch job.
_NAMES = ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))

Handler = Callable[[int, FrameType | None], Any]

#: The block around the main thread's work, if there is one.
_active: defer_signals | None = None


class _SignalRecorder:
    """Stands in for a handler: notes its signal while a block is open, else passes it on at once.

    So one that is left behind, if it ever were, changes nothing.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        block = _active
        if block is None:
            self.handler(number, frame)
        else:
            block.noted.append((self.handler, number))


class defer_signals:  # used as a statement: ``with defer_signals():``
    """A block in which no signal's handler runs, but at `hear` and at its end.

    Blocks nest; the outermost counts.
    """

    __slots__ = ("_installed", "noted")

    def __init__(self) -> None:
        self.noted: list[tuple[Handler, int]] = []
        self._installed: list[tuple[int, _SignalRecorder]] = []

    def __enter__(self) -> None:
        global _active
        if _active is not None or threading.get_ident() != threading.main_thread().ident:
            return
        # From the next line on the handlers that are replaced below note, one after the other.
        _active = self
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                while isinstance(handler, _SignalRecorder):  # left behind: see `_restore`
                    handler = handler.handler
                if callable(handler):
                    noting = _SignalRecorder(handler)
                    self._installed.append((number, noting))
                    _signal.signal(number, noting)
        except BaseException:  # a handler that was not replaced yet
            self._restore()
            raise

    def __exit__(self, *error: object) -> None:
        if _active is self:
            self._restore()
            self.call_noted()

    def _restore(self) -> None:
        """Put the handlers back, Ctrl-C's last; one that raises at once leaves the rest noting."""
        global _active
        try:
            for number, noting in reversed(self._installed):
                if _signal.getsignal(number) is noting:
                    _signal.signal(number, noting.handler)
        finally:
            _active = None

    def call_noted(self) -> None:
        """Call the handlers of what was noted; the first that raises ends it."""
        noted, self.noted = self.noted, []
        for handler, number in noted:
            handler(number, sys._getframe())


def hear() -> None:
    """Call the handlers of the signals that came meanwhile: the call can be given up here."""
    block = _active
    if block is not None and block.noted and threading.get_ident() == threading.main_thread().ident:
        block.call_noted()


def _forget() -> None:
    """Reset a forked child: the call that was at work is the parent's."""
    global _active
    _active = None


fork_safety.run_in_child(_forget)
