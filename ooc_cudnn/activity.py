"""A line that says what goes on while nothing can be counted, with its seconds.

Capturing a model and planning it take seconds before anything runs. Where somebody watches, a line
says so within a second, and stays up to date though Python is busy: a thread draws it, which ends
with what it tells of. Where nobody watches nothing is written, and no thread begins.

Activities nest, and the innermost has the line; one that is made of many short ones may hold it.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ooc_cudnn import fork_safety
from ooc_cudnn.progress import QuietStderr, held_line, somebody_watches
from ooc_cudnn.units import format_seconds

if TYPE_CHECKING:
    from ooc_cudnn.settings_table import Progress

#: Seconds until something is told of, and until its line is drawn again.
APPEARS_SECONDS: Final = 0.5
REDRAWN_SECONDS: Final = 0.5


class _Activity:
    """Something that goes on, and what is known of it so far."""

    def __init__(self, label: str, *, holds_line: bool) -> None:
        self.label, self.known, self.holds_line = label, "", holds_line
        self.began = time.monotonic()

    @property
    def text(self) -> str:
        """Line as it is to be drawn now."""
        count = math.ceil(time.monotonic() - self.began)
        seconds = f"{count} s" if count < 60 else format_seconds(count)
        return f"{self.label}: {seconds}" + (f", {self.known}" if self.known else "")


class _Line:
    """The line of this process: of the thread that began to tell, and one of its activities."""

    def __init__(self) -> None:
        self._lock = fork_safety.lock()
        self._told: list[_Activity] = []
        self._owner: int | None = None
        self._ended: threading.Event | None = None
        #: The activity whose line stands at the cursor, and how many characters that has.
        self._drawn: tuple[_Activity, int] | None = None

    def begin(self, activity: _Activity) -> bool:
        """Tell of an activity; return whether it is told of: not beside another thread's."""
        with self._lock:
            if self._owner not in (None, threading.get_ident()):
                return False
            self._owner = threading.get_ident()
            self._told.append(activity)
            if self._ended is None:
                self._ended = threading.Event()
                name = "ooc_cudnn activity"
                of_it = (self._ended,)
                threading.Thread(target=self._draw_on, args=of_it, daemon=True, name=name).start()
        return True

    def end(self, activity: _Activity) -> None:
        """Tell of it no more; its line stays where it was drawn."""
        with self._lock:
            if self._drawn is not None and self._drawn[0] is activity:
                self._draw(activity, activity.text)
                self._end_line()
            if activity in self._told:  # not in a child that was forked meanwhile
                self._told.remove(activity)
            if not self._told and self._ended is not None:
                self._ended.set()
                self._ended = self._owner = None

    def forget(self) -> None:
        """Begin anew: in a forked child, which has no thread that draws."""
        self._told, self._owner, self._ended, self._drawn = [], None, None, None

    def say(self, known: str) -> None:
        """Say something of this thread's innermost activity, if that is told of."""
        with self._lock:
            if self._told and self._owner == threading.get_ident():
                self._told[-1].known = known

    def make_way(self) -> None:
        """End the line that stands, if one does: something else is written."""
        with self._lock:
            if self._drawn is not None and self._owner == threading.get_ident():
                self._end_line()

    def _draw_on(self, ended: threading.Event) -> None:
        while not ended.wait(REDRAWN_SECONDS):
            with self._lock:
                if self._ended is not ended:
                    return
                innermost = self._told[-1]
                activity = next((each for each in self._told if each.holds_line), innermost)
                now = time.monotonic()
                if now - activity.began < APPEARS_SECONDS:
                    continue
                if self._drawn is not None and self._drawn[0] is not activity:
                    self._end_line()
                text = activity.text
                if innermost is not activity and now - innermost.began >= APPEARS_SECONDS:
                    text += f"; {innermost.text}"
                self._draw(activity, text)

    def _draw(self, activity: _Activity, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        text = text[:width]
        before = width if self._drawn is None else self._drawn[1]  # a bar may stand there
        stream = QuietStderr()
        stream.write(f"\r{text.ljust(before)}")
        stream.flush()
        self._drawn = activity, len(text)

    def _end_line(self) -> None:
        QuietStderr().write("\n")
        self._drawn = None


_line = _Line()
fork_safety.run_in_child(_line.forget)
#: Say something of what goes on in this thread, if that is told of.
say = _line.say
#: End the line that this thread has drawn, if one stands: something else is written.
make_way = _line.make_way


def tell(text: str, setting: Progress) -> None:
    """Write a line to stderr where an `activity` would be told of, and nothing holds the line."""
    is_wanted = setting is True or (setting == "auto" and somebody_watches())
    if is_wanted and not held_line.count:
        make_way()
        stream = QuietStderr()
        stream.write(f"{text}\n")
        stream.flush()


@contextmanager
def activity(label: str, setting: Progress, *, holds_line: bool = False) -> Iterator[None]:
    """Tell of something that takes long, in a line on stderr.

    Parameters
    ----------
    label : str
        What goes on.
    setting : "auto", bool or callable
        The setting ``progress``: "auto" tells where stderr is a terminal or this is a notebook,
        True always. A callable is given pieces of calls, and nothing of this.
    holds_line : bool
        Whether activities and calls within have no line of their own, and no bar: activities that
        last are told of behind it.

    Examples
    --------
    >>> with activity("planning a step", False):
    ...     say("best so far 1.12 times all kept")
    """
    told = _Activity(label, holds_line=holds_line)
    is_wanted = setting is True or (setting == "auto" and somebody_watches())
    if not is_wanted or not _line.begin(told):
        yield
        return
    held_line.count += holds_line
    try:
        yield
    finally:
        held_line.count -= holds_line
        _line.end(told)
