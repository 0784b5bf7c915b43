"""One call's use of a GPU: three streams ordered by events, with or without threads in front.

`CudaRun` issues every step on the caller's thread. `StagedCudaRun` has a thread in front of each
stream, so that pieces in pageable memory can wait for their staging without holding up the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from ooc_cudnn import interrupts
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.devices.cuda.card import Card, Identity
from ooc_cudnn.devices.cuda.staging import FirstCopyStream
from ooc_cudnn.devices.worker import Cancelled, WorkerEvent, WorkerRun

Action = Callable[[Any], Any]
UNTIMED = 2  # cudaEventDisableTiming
_PER_THREAD = 2  # cudaStreamPerThread: one number for a stream of each thread
POLL_SECONDS = 2e-4


def identity_of(stream: Any) -> Identity:
    """Return what tells a stream from all others."""
    return stream, threading.current_thread() if stream.ptr == _PER_THREAD else None


def follow_last_run(device: Card, stream: Any) -> None:
    """Order a stream behind the last run on a device, which may have used the same memory.

    That run followed the one before it, and so on: behind all runs. The device must be current.
    """
    last = device.last_compute
    if last is not None and last[0] != identity_of(stream):
        device.runtime.streamWaitEvent(stream.ptr, last[1])


def mark_last_run(device: Card, stream: Any) -> None:
    """Say that what a stream was given last is the end of the last run on a device."""
    event = device.last_compute[1] if device.last_compute is not None else None
    if event is None:
        event = device.runtime.eventCreateWithFlags(UNTIMED)
    device.runtime.eventRecord(event, stream.ptr)
    device.last_compute = (identity_of(stream), event)


class _Events:
    """CUDA events lent by a device to one run, given back at its end."""

    def __init__(self, device: Card, timed: bool) -> None:
        import cupy

        self.runtime = cupy.cuda.runtime
        self._free = device.events[1 if timed else 0]
        self._flags = 0 if timed else UNTIMED
        self._lent: list[int] = []

    def record(self, stream: Any) -> int:
        """Record an event on a stream."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self.runtime.eventCreateWithFlags(self._flags)
        self._lent.append(event)
        self.runtime.eventRecord(event, stream.ptr)
        return event

    def give_back(self) -> None:
        """Return every event for reuse; waits that were issued have captured what they need."""
        self._free.extend(self._lent)
        self._lent.clear()


class _Leaving:
    """Copies that leave the device in a run, and are written to the host by other threads.

    On its stream such a copy has ended long before it is written. That is no matter but to a copy
    in of the same bytes, as one task of a program reads what an earlier one left on the host, and
    to what is written over them.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._futures: list[Future[None]] = []
        self._written = 0  # so many of them are known to be

    def add(self, future: Future[None] | None) -> int:
        """Take a copy out; return how many there are to be written once its step has ended."""
        if future is not None:
            self._futures.append(future)
        return len(self._futures)

    def wait(self, events: Sequence[CudaEvent | StagedEvent]) -> None:
        """Block the host until all is written that left before some events."""
        for event in events:
            if event.leaving is None:
                continue
            assert event.stop is not None
            self._runtime.eventSynchronize(event.stop)  # one that no thread writes
            while (index := self._written) < event.leaving:
                self._futures[index].result()
                self._written = max(self._written, index + 1)  # another thread may wait, too


class CudaEvent:
    """The end of a step on a stream, and its start if the run is timed.

    Of a copy out, `leaving` is the number of those that threads write to the host until then.
    """

    __slots__ = ("leaving", "run", "start", "stop")

    def __init__(
        self, run: Streams, start: int | None, stop: int, leaving: int | None = None
    ) -> None:
        self.run, self.start, self.stop, self.leaving = run, start, stop, leaving

    @property
    def interval(self) -> tuple[float, float]:
        """Start and stop in seconds since the run began."""
        return self.run.interval(self.start, self.stop)


class Streams:
    """Streams of both kinds of run, joined to the caller's before and after."""

    def __init__(self, device: Card, compute: Any, *, overlap: bool, timed: bool) -> None:
        self.device, self.timed, self.overlap = device, timed, overlap
        self.events = _Events(device, timed)
        self.runtime = self.events.runtime
        copy_in, copy_out = self._copy_streams() if overlap else (compute, compute)
        self.handles = {"copy_in": copy_in, "compute": compute, "copy_out": copy_out}
        self._follow_last_run()
        # before anything is computed: a copy that comes late in the run waits for no more
        self.begin = self.events.record(compute) if timed or overlap else None
        self._joined: set[str] = {"compute"} if overlap else set(STREAMS)
        self._intervals: dict[tuple[int, int], tuple[float, float]] = {}

    def _copy_streams(self) -> tuple[Any, ...]:
        return self.device.copy_streams

    def _follow_last_run(self) -> None:
        follow_last_run(self.device, self.handles["compute"])

    def stream(self, name: str) -> Any:
        """Return a stream, ordered behind the caller's work when it is first used."""
        handle = self.handles[name]
        if name not in self._joined:
            assert self.begin is not None  # where nothing overlaps all streams are one
            self.runtime.streamWaitEvent(handle.ptr, self.begin)
            self._joined.add(name)
        return handle

    def join(self, *, wait: bool) -> None:
        """Order the caller's stream behind the copies, and with `wait` the host behind all."""
        compute = self.join_copies()
        mark_last_run(self.device, compute)
        if wait:
            self.runtime.streamSynchronize(compute.ptr)

    def join_copies(self) -> Any:
        """Order the caller's stream, which is returned, behind the copies."""
        compute = self.handles["compute"]
        copies = [self.handles[n] for n in ("copy_in", "copy_out") if n in self._joined]
        for handle in copies:
            if handle is not compute:
                self.runtime.streamWaitEvent(compute.ptr, self.events.record(handle))
        return compute

    def interval(self, start: int | None, stop: int) -> tuple[float, float]:
        """Seconds of two events since the run began; read once, before they are lent again."""
        if start is None or self.begin is None:
            raise ValueError("the run was not timed")
        if (start, stop) not in self._intervals:
            elapsed = self.runtime.eventElapsedTime
            self._intervals[start, stop] = (
                elapsed(self.begin, start) / 1e3,
                elapsed(self.begin, stop) / 1e3,
            )
        return self._intervals[start, stop]


class CudaRun(Streams):
    """Steps issued on the caller's thread.

    What little is staged comes in on the caller's time. What leaves is on its stream when the step
    was issued, and written to the host by the end: only copies of the same bytes wait for that.
    """

    def __init__(self, device: Card, compute: Any, *, overlap: bool, timed: bool) -> None:
        super().__init__(device, compute, overlap=overlap, timed=timed)
        self._made: list[CudaEvent] = []
        self._futures: list[Future[None]] = []
        self._leaving = _Leaving(self.runtime)
        self._read: int | None = None

    @property
    def may_be_recorded(self) -> bool:
        """True if no copy went by way of other memory."""
        return not self._futures

    def submit(
        self, stream: str, waits: Sequence[CudaEvent], action: Action, *, signals: bool
    ) -> CudaEvent | None:
        """Issue a step."""
        handle = self.stream(stream)
        if self.overlap:
            for event in waits:
                self.runtime.streamWaitEvent(handle.ptr, event.stop)
        if stream != "compute":
            self._leaving.wait(waits)
        start = self.events.record(handle) if self.timed else None
        pending: Future[None] | None = action(handle)
        if pending is not None:
            self._futures.append(pending)
            if stream == "copy_in":  # it is on its stream only when it was staged
                pending.result()
        leaving = self._leaving.add(pending) if stream == "copy_out" else None
        if not signals and not self.timed:
            return None
        event = CudaEvent(self, start, self.events.record(handle), leaving)
        if self.timed:
            self._made.append(event)
        return event

    def note_read(self, stream: str) -> None:
        """Record an event behind what a stream was given."""
        self._read = self.events.record(self.handles[stream])

    def synchronize(self, event: CudaEvent) -> None:
        """Wait for a step."""
        self.runtime.eventSynchronize(event.stop)
        self._leaving.wait([event])

    def finish(self, *, wait: bool) -> None:
        """Join the streams, and the threads that write what is staged."""
        self.join(wait=wait)
        if self._read is not None and not wait:
            self.runtime.eventSynchronize(self._read)
        for future in self._futures:
            future.result()
        for event in self._made:
            self.interval(event.start, event.stop)
        self.events.give_back()

    def cancel(self) -> None:
        """Wait for what was issued."""
        wait(self._futures)
        for handle in self.handles.values():
            self.runtime.streamSynchronize(handle.ptr)
        self.events.give_back()


class StagedEvent(WorkerEvent):
    """Like `CudaEvent`, but it exists on the device only once its step was issued."""

    __slots__ = ("leaving", "run", "start", "stop")

    def __init__(self, run: StagedCudaRun) -> None:
        super().__init__(0.0)
        self.run = run
        self.start: int | None = None
        self.stop: int | None = None
        self.leaving: int | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Start and stop in seconds since the run began."""
        if self.stop is None:
            raise ValueError("the step has not run")
        return self.run.streams.interval(self.start, self.stop)


class StagedCudaRun(WorkerRun):
    """A thread in front of each stream."""

    def __init__(self, device: Card, compute: Any, *, overlap: bool, timed: bool) -> None:
        self.streams = Streams(device, compute, overlap=overlap, timed=timed)
        for name in STREAMS:
            self.streams.stream(name)
        self._futures: list[Future[None]] = []
        self._leaving = _Leaving(self.streams.runtime)
        self._staged: deque[tuple[StagedEvent, Future[None] | None]] = deque()
        self._lock = threading.Lock()
        self._made: list[StagedEvent] = []
        try:
            super().__init__(overlap=overlap, handles=self.streams.handles, prepare=device.use)
        except BaseException:
            self.streams.events.give_back()
            raise

    def _event(self) -> StagedEvent:
        event = StagedEvent(self)
        self._made.append(event)
        return event

    def _perform(
        self, stream: str, waits: Sequence[WorkerEvent], action: Action, event: WorkerEvent
    ) -> None:
        assert isinstance(event, StagedEvent)
        streams, handle = self.streams, self.streams.handles[stream]
        before: list[StagedEvent] = []
        for earlier in waits:
            if not isinstance(earlier, StagedEvent) or earlier.stop is None:
                raise Cancelled
            streams.runtime.streamWaitEvent(handle.ptr, earlier.stop)
            before.append(earlier)
        if stream != "compute":
            self._leaving.wait(before)
        if streams.timed:
            if stream == "copy_in":
                # What is staged starts with its first copy, not with the wait for the host.
                handle = FirstCopyStream(handle, lambda: self._starts(event, stream))
            else:
                self._starts(event, stream)
        pending: Future[None] | None = action(handle)
        if pending is not None:
            self._futures.append(pending)
        if stream != "copy_in":
            # A copy out is on its stream already; its future only says that all is written.
            event.leaving = self._leaving.add(pending) if stream == "copy_out" else None
            event.stop = streams.events.record(streams.handles[stream])
            event.done.open()
            if pending is not None:
                pending.add_done_callback(self._written)
            return
        with self._lock:
            self._staged.append((event, pending))
        if pending is None:
            self._issued(None)
        else:
            pending.add_done_callback(self._issued)

    def _starts(self, event: StagedEvent, stream: str) -> None:
        event.start = self.streams.events.record(self.streams.handles[stream])

    def _written(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._fail(error)

    def _issued(self, _: Future[None] | None) -> None:
        """A copy in was issued: mark every one that has none before it that is still staged.

        Whoever waits for a step of a stream counts on all earlier ones of that stream, so events
        are recorded in the order of the steps, whichever was staged first.
        """
        with self._lock:
            while self._staged and (self._staged[0][1] is None or self._staged[0][1].done()):
                event, pending = self._staged.popleft()
                error = pending.exception() if pending is not None else None
                try:
                    if error is not None:
                        raise error
                    if self.streams.timed and event.start is None:  # there was nothing to copy
                        self._starts(event, "copy_in")
                    event.stop = self.streams.events.record(self.streams.handles["copy_in"])
                except BaseException as failed:
                    self._fail(failed)
                event.done.open()

    def synchronize(self, event: WorkerEvent) -> None:
        """Wait for a step."""
        super().synchronize(event)
        if isinstance(event, StagedEvent) and event.stop is not None:
            # Asked now and then: waiting in the driver would spin on a core that stages.
            while self.streams.runtime.eventQuery(event.stop) != 0:
                interrupts.hear()
                time.sleep(POLL_SECONDS)
            self._leaving.wait([event])

    def finish(self, *, wait: bool = True) -> None:
        """Join threads, staging and streams."""
        super().finish()
        self._settle()
        self._raise()
        for event in self._made:
            event.done.wait()  # a future is done a moment before `_issued` hears of it
        self._raise()
        self.streams.join(wait=True)
        if self.streams.timed:
            for event in self._made:
                if event.stop is not None:
                    self.streams.interval(event.start, event.stop)
        self.streams.events.give_back()

    def cancel(self) -> None:
        """Drop what is queued; wait for what was issued."""
        super().cancel()
        self._settle()
        for handle in self.streams.handles.values():
            self.streams.runtime.streamSynchronize(handle.ptr)
        self.streams.events.give_back()

    def _settle(self) -> None:
        """Wait until no thread touches the caller's memory any more."""
        while wait(self._futures, timeout=0.1).not_done:
            time.sleep(0)
