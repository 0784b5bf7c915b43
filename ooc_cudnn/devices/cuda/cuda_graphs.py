"""CUDA graphs: the steps of a repeated run are recorded once, and launched as one.

To issue a step takes the host about as long as a small kernel takes the card. A graph has the same
steps on the same three streams, ordered by the same events, and the card goes through them alone.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ooc_cudnn.devices.cuda.card import Card
from ooc_cudnn.devices.cuda.driver import record_external
from ooc_cudnn.devices.cuda.run import (
    UNTIMED,
    Action,
    CudaEvent,
    Streams,
    follow_last_run,
    mark_last_run,
)
from ooc_cudnn.errors import InternalError

_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal: other threads may allocate meanwhile


class CudaGraph:
    """A run at fixed addresses.

    Parameters
    ----------
    device : Card
    streams : sequence of three streams
        What steps are recorded on: for computing, and for copies in and out. Nobody else uses them.
    issue : callable
        Issues the steps on the run that it is given. Each was run before: what is compiled, loaded
        or allocated at first use is no step.
    overlap : bool
    needs : object, optional
        Kept as long as the graph. Once a plan of cuDNN is gone, kernels that were compiled for it
        are no longer loaded: to launch them is a segmentation fault.

    Raises
    ------
    CUDARuntimeError
        If a step cannot be recorded.
    """

    def __init__(
        self, device: Card, streams: Sequence[Any], issue: Callable[[Any], None], *,
        overlap: bool, needs: object = None,
    ) -> None:  # fmt: skip
        self._device, self._runtime, self._needs = device, device.runtime, needs
        runtime, compute = device.runtime, streams[0]
        runtime.streamBeginCapture(compute.ptr, _THREAD_LOCAL)
        try:
            run = _Recording(device, streams, overlap=overlap)
            try:
                issue(run)
                run.join_copies()
                self._read = run.read
            finally:
                run.events.give_back()
        except BaseException:
            # streams that are not joined yet make the end fail, too
            with contextlib.suppress(runtime.CUDARuntimeError):
                runtime.graphDestroy(runtime.streamEndCapture(compute.ptr))
            raise
        graph = runtime.streamEndCapture(compute.ptr)
        try:
            self._graph = runtime.graphInstantiate(graph)
        finally:
            runtime.graphDestroy(graph)
        finalizer = weakref.finalize(self, runtime.graphExecDestroy, self._graph)
        finalizer.atexit = False  # the process takes it along

    def launch(self) -> None:
        """Run it on the caller's stream, behind the last run."""
        self._device.use()
        stream = self._stream()
        follow_last_run(self._device, stream)
        self._runtime.graphLaunch(self._graph, stream.ptr)
        mark_last_run(self._device, stream)

    def wait(self) -> None:
        """Wait for the caller's stream."""
        self._runtime.streamSynchronize(self._stream().ptr)

    def wait_until_read(self) -> None:
        """Wait for the event that each launch records anew."""
        if self._read is not None:
            self._runtime.eventSynchronize(self._read.handle)

    @staticmethod
    def _stream() -> Any:
        import cupy

        return cupy.cuda.get_current_stream()


class _OwnEvent:
    """An event that is not lent to runs."""

    def __init__(self, runtime: Any) -> None:
        self.handle: int = runtime.eventCreateWithFlags(UNTIMED)
        weakref.finalize(self, runtime.eventDestroy, self.handle).atexit = False


class _Recording(Streams):
    """A run whose steps are recorded: it is behind no other one, and nobody waits for it."""

    def __init__(self, device: Card, streams: Sequence[Any], *, overlap: bool) -> None:
        self._recorded_on = streams
        self.read: _OwnEvent | None = None
        super().__init__(device, streams[0], overlap=overlap, timed=False)

    def _copy_streams(self) -> tuple[Any, ...]:
        return tuple(self._recorded_on[1:])

    def _follow_last_run(self) -> None:
        pass

    def note_read(self, stream: str) -> None:
        """Let each launch record an event there, which the host can wait for."""
        self.read = _OwnEvent(self.runtime)
        status = record_external(self.read.handle, self.handles[stream].ptr)
        if status:
            raise self.runtime.CUDARuntimeError(status)

    def submit(
        self, stream: str, waits: Sequence[CudaEvent], action: Action, *, signals: bool
    ) -> CudaEvent | None:
        """Record a step."""
        handle = self.stream(stream)
        for event in waits if self.overlap else ():
            self.runtime.streamWaitEvent(handle.ptr, event.stop)
        if action(handle) is not None:
            raise InternalError("a copy is staged, which no graph can do")
        return CudaEvent(self, None, self.events.record(handle)) if signals else None
