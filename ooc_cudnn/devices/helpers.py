"""Threads that help whoever shares work out among them and itself."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable

from ooc_cudnn import fork_safety, interrupts
from ooc_cudnn.devices.latch import Latch


class SharedWork:
    """Work of several shares. Whoever comes takes the next one, until none is left."""

    def __init__(self, work: Callable[[int], None], shares: int) -> None:
        self._work, self._shares = work, shares
        # Counting is atomic.
        self._begun, self._ended = itertools.count(), itertools.count(1)
        self._error: BaseException | None = None
        self._over = Latch()

    def help(self) -> None:
        """Do shares while there are any; after an error, none."""
        while (share := next(self._begun)) < self._shares:
            try:
                if self._error is None:
                    self._work(share)
            except BaseException as error:  # raised by `wait`
                self._error = self._error or error
            if next(self._ended) == self._shares:
                self._over.open()

    def wait(self) -> None:
        """Wait until no thread is at it any more; raise the first error."""
        self._over.wait()
        del self._work  # a thread that comes too late shall keep nothing of it
        if self._error is not None:
            raise self._error


class Helpers:
    """Threads that wait for work to help with, started when they are first wanted.

    There are `most` at most; where the system gives no more threads, fewer: the caller does what
    nobody else takes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        """Begin without threads, as a forked child does: its parent's do not come with it."""
        self._waiting: queue.SimpleQueue[SharedWork] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def share(self, work: Callable[[int], None], shares: int) -> None:
        """Run `work(0)` to `work(shares - 1)`, on this thread and on helpers.

        Returns when all have ended, even after an error: then no thread touches their memory.
        """
        with interrupts.defer_signals():
            shared = SharedWork(work, shares)
            for _ in range(min(shares - 1, self._reach(shares - 1))):
                self._waiting.put(shared)
            shared.help()
            shared.wait()

    def _reach(self, wanted: int) -> int:
        """Start threads until there are as many as wanted; return how many there are."""
        with self._lock:
            while self._started < min(wanted, self._most):
                name = f"ooc_cudnn helper {self._started}"
                try:
                    threading.Thread(target=self._help, name=name, daemon=True).start()
                except RuntimeError:  # the system gives no more
                    break
                self._started += 1
            return self._started

    def _help(self) -> None:
        waiting = self._waiting
        while True:
            waiting.get().help()


#: Those of the host's computations.
helpers = Helpers(8)

fork_safety.run_in_child(helpers._forget)
