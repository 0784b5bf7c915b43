"""A latch: something that happens once, and that any number of threads wait for."""

from __future__ import annotations

import queue


class Latch:
    """Open once, open for good.

    Made of a queue that C code guards. ``threading.Event`` is a lock taken and given back in
    Python: an exception from outside (Ctrl-C) between the two would leave it held, and whoever
    opens the event, or waits for it, would wait for ever.

    Examples
    --------
    >>> latch = Latch()
    >>> latch.wait(0.001)
    False
    >>> latch.open()
    >>> latch.wait(), latch.wait()
    (True, True)
    """

    __slots__ = ("_tokens", "is_open")

    #: Nobody sleeps longer without a look: a token may be lost with a thread that was interrupted.
    SLICE_SECONDS = 0.1

    def __init__(self) -> None:
        self.is_open = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def open(self) -> None:
        """Let everyone through; a second time changes nothing."""
        self.is_open = True
        self._tokens.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is open, or so many seconds; return whether it is."""
        while not self.is_open:
            left = self.SLICE_SECONDS if seconds is None else min(seconds, self.SLICE_SECONDS)
            try:
                self._tokens.get(timeout=left)
            except queue.Empty:
                if seconds is not None:
                    seconds -= left
                    if seconds <= 0:
                        break
            else:
                self._tokens.put(None)  # for the next who waits
        return self.is_open
