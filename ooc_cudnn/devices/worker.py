"""Streams made of threads: each runs its actions in order, waiting for events of the others.

The host device's streams are these. The cuda device puts them in front of its streams when pieces
have to be staged by the host, so that staging, too, waits in line without holding up the caller.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.devices.latch import Latch
from ooc_cudnn.errors import DeviceUnavailableError

Action = Callable[[Any], None]

#: Who waits looks up so often: whether the run was stopped, whether Ctrl-C came.
SLICE_SECONDS = 0.1


class Cancelled(Exception):
    """Raised inside a worker that waits for a step which will never come."""


class WorkerEvent:
    """The end of an action."""

    __slots__ = ("done", "failed", "start_seconds", "stop_seconds", "zero_seconds")

    def __init__(self, zero_seconds: float) -> None:
        self.done = Latch()
        self.zero_seconds = zero_seconds
        self.start_seconds = self.stop_seconds = zero_seconds

    @property
    def interval(self) -> tuple[float, float]:
        """Start and stop in seconds since the run began."""
        return self.start_seconds - self.zero_seconds, self.stop_seconds - self.zero_seconds


class WorkerRun:
    """Three threads, one for each stream; or none, when the streams do not overlap.

    An action that fails stops the run: what has not started is dropped, and the first error is
    raised to the caller from `synchronize` or `finish`.

    Parameters
    ----------
    overlap : bool
        False: actions run at once, on the caller's thread.
    handles : mapping of stream name to object, optional
        What is passed to the actions of a stream.
    prepare : callable, optional
        Called first on each thread.
    """

    #: Threads are told of each step.
    may_be_recorded = False

    def __init__(
        self,
        *,
        overlap: bool,
        handles: dict[str, Any] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._prepare = prepare
        self._handles = handles or dict.fromkeys(STREAMS)
        self._zero_seconds = time.perf_counter()
        self._stopped = False
        self._error: BaseException | None = None
        self._queues: dict[str, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        if overlap:
            try:
                for name in STREAMS:
                    self._open(name)
            except BaseException:
                self.cancel()
                raise

    def _open(self, name: str) -> None:
        self._queues[name] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._work, args=(name,), name=f"ooc_cudnn {name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise DeviceUnavailableError(
                f"the system gives no more threads ({error})",
                remedy="Raise the limit on processes (`ulimit -u`, or the container's), end "
                "threads of your own, or set overlap=False, which starts none.",
            ) from error
        self._threads.append(thread)

    def note_read(self, stream: str) -> None:
        """Do nothing: `finish` waits for all steps."""

    def submit(
        self, stream: str, waits: Sequence[WorkerEvent], action: Action, *, signals: bool
    ) -> WorkerEvent:
        event = self._event()
        if self._threads:
            self._queues[stream].put((tuple(waits), action, event))
        else:
            self._perform(stream, waits, action, event)
        return event

    def _event(self) -> WorkerEvent:
        return WorkerEvent(self._zero_seconds)

    def _perform(self, stream: str, waits: Sequence[WorkerEvent], action: Action,
                 event: WorkerEvent) -> None:  # fmt: skip
        """Run an action whose waits are over, and mark its event."""
        event.start_seconds = time.perf_counter()
        action(self._handles[stream])
        event.stop_seconds = time.perf_counter()
        event.done.open()

    def _fail(self, error: BaseException) -> None:
        """Remember the first error and stop."""
        self._error = self._error or error
        self._stopped = True

    def synchronize(self, event: WorkerEvent) -> None:
        """Wait for an action, in slices so that Ctrl-C is heard."""
        while not event.done.wait(SLICE_SECONDS) and not self._stopped:
            interrupts.hear()
        self._raise()

    def finish(self, *, wait: bool = True) -> None:
        """Let the threads run dry, and join them; Ctrl-C is heard while they run."""
        self._end()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(SLICE_SECONDS)
                interrupts.hear()
        self._join()
        self._raise()

    def cancel(self) -> None:
        """Drop what is queued and join the threads."""
        self._stopped = True
        self._join()

    def _end(self) -> None:
        """Let each thread end when it has done what is queued."""
        for waiting in self._queues.values():
            waiting.put(None)

    def _join(self) -> None:
        self._end()
        while self._threads:
            self._threads[-1].join()
            self._threads.pop()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, name: str) -> None:
        waiting = self._queues[name]
        try:
            if self._prepare is not None:
                self._prepare()
        except BaseException as error:  # every action is dropped, and the caller told
            self._fail(error)
        while (item := waiting.get()) is not None:
            waits, action, event = item
            try:
                for earlier in waits:
                    self._wait(earlier)
                if self._stopped:
                    raise Cancelled
                self._perform(name, waits, action, event)
            except Cancelled:
                event.done.open()
            except BaseException as error:  # handed to the caller's thread
                self._fail(error)
                event.done.open()

    def _wait(self, event: WorkerEvent) -> None:
        while not event.done.wait(SLICE_SECONDS) and not self._stopped:
            pass
        if self._stopped:
            raise Cancelled
