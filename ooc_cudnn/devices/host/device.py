"""The host as a device: NumPy computes, threads are the streams, an arena holds a hard limit.

A real out-of-core engine on a machine without a card (disk to memory), and what exercises the
planner, the schedule and the executor in tests.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.host import (
    attention,
    blas,
    channel_argmax,
    channel_reduction,
    convolution_backward,
    dropout,
    elementwise,
    external,
    fused_convolution,
    local_response,
    losses,
    masks,
    pooling,
    resampling,
    set_statistics,
    softmax,
)
from ooc_cudnn.devices.host.chunks import Runner
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.devices.worker import WorkerRun
from ooc_cudnn.memory.arena import Allocation, Arena
from ooc_cudnn.memory.host_memory import free_host_bytes
from ooc_cudnn.memory.pinned import release
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import ORDERS, numpy_dtype

#: A view of memory, by address, bytes and flag. An array of ctypes would be a new type each time.
_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
WRITABLE = 0x200  # PyBUF_WRITE


class HostAllocation:
    """Host memory that plays device memory."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.empty(nbytes + 64, np.uint8)
        self.nbytes = nbytes
        self.pointer = -(-self.bytes.ctypes.data // 64) * 64


class PinnedRanges:
    """Host memory that counts as pinned, where nothing needs page-locking: by its first byte."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, pointer: int, nbytes: int) -> None:
        """Count a range as pinned."""
        self._bytes[pointer] = nbytes

    def remove(self, pointer: int) -> None:
        """Count it no more; an unknown one is none of ours."""
        self._bytes.pop(pointer, None)

    def hold(self, pointer: int, nbytes: int) -> bool:
        """True if a range lies within one of these.

        >>> ranges = PinnedRanges()
        >>> ranges.add(4096, 100)
        >>> ranges.hold(4100, 96), ranges.hold(4100, 97)
        (True, False)
        """
        return any(
            start <= pointer and pointer + nbytes <= start + count
            for start, count in tuple(self._bytes.items())
        )


class HostDevice:
    """NumPy and threads behind the device contract."""

    kind = "host"

    def __init__(self) -> None:
        self.name = "host"
        self.arena = Arena(HostAllocation, self.free_bytes)
        self._pinned = PinnedRanges()

    def identity(self) -> Mapping[str, str]:
        return {
            "host": platform.processor() or platform.machine(),
            "cores": str(os.cpu_count()),
            "numpy": np.__version__,
        }

    def use(self) -> None:
        """There is but one."""

    def free_bytes(self) -> int:
        return free_host_bytes()

    def layouts(self, dtype: str) -> tuple[str, ...]:
        """Any order; channels-first is gathered fastest."""
        return ORDERS

    def synchronize(self) -> None:
        """Do nothing: nothing runs outside a run."""

    def release_caches(self) -> None:
        self.arena.release()
        release(self)

    # Host memory -------------------------------------------------------------------------------

    def keep(self, memory: Any) -> None:
        """Do nothing: every run has ended when it returns."""

    def drop_kept(self) -> None:
        """Do nothing: nothing is kept."""

    def allocate_pinned(self, nbytes: int) -> HostArray:
        """Plain memory: here, nothing needs page-locking to be copied."""
        array = np.empty(nbytes, np.uint8)
        pointer = array.ctypes.data
        self._pinned.add(pointer, nbytes)
        weakref.finalize(array, self._pinned.remove, pointer)
        return array

    def pin(self, pointer: int, nbytes: int) -> None:
        """Remember the range as pinned; the host device copies from any memory alike."""
        if self.is_pinned(pointer, nbytes):
            raise ValueError("array is pinned already")
        self._pinned.add(pointer, nbytes)

    def unpin(self, pointer: int) -> None:
        self._pinned.remove(pointer)

    def is_pinned(self, pointer: int, nbytes: int) -> bool:
        return self._pinned.hold(pointer, nbytes)

    def allocation_of(self, pointer: int) -> None:
        """Nobody counts them."""

    # Device memory -----------------------------------------------------------------------------

    def as_array(
        self,
        allocation: Allocation,
        shape: tuple[int, ...],
        dtype: str,
        *,
        start: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> HostArray:
        """Return an array over the allocation, marked as living on the device."""
        kind = numpy_dtype(dtype)
        count = math.prod(shape) * kind.itemsize
        raw: Any = (ctypes.c_char * count).from_address(allocation.pointer + start)
        raw.allocation = allocation  # keeps it alive
        return np.ndarray(shape, kind, raw, strides=strides).view(HostDeviceArray)

    def copy_in(self, destination: DeviceView, source: HostArray | DeviceView, stream: Any) -> None:
        array = source if isinstance(source, np.ndarray) else _array(source)
        np.copyto(_array(destination), array)

    def copy_out(
        self, destination: HostArray | DeviceView, source: DeviceView, stream: Any
    ) -> None:
        array = destination if isinstance(destination, np.ndarray) else _array(destination)
        np.copyto(array, _array(source))

    # Computing ---------------------------------------------------------------------------------

    engines = None

    def workspace(
        self,
        launches: Sequence[tuple[Launch, Mapping[str, Buffer]]],
        budget_bytes: int | None,
        *,
        sparing: int = 0,
    ) -> tuple[int, tuple[str, ...]] | None:
        """Scratch of the launch that needs most; it cannot do with less."""
        needed, names = 0, dict[str, None]()
        for launch, _ in launches:
            ask = WORKSPACE.get(type(launch.operation))
            if ask is not None:
                needed = max(needed, ask(launch.operation))
                names["columns and matrix product"] = None
        if budget_bytes is not None and -(-needed // 256) * 256 > budget_bytes:
            return None
        return needed, tuple(names)

    @np.errstate(all="ignore")  # infinity and NaN propagate as on a card, without a word
    def run(
        self,
        launch: Launch,
        views: Mapping[str, DeviceView],
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        inputs = tuple(_array(views[name]) if name else None for name in launch.inputs)
        scratch = _array(DeviceView(workspace[0], "uint8", (workspace[1],), (1,)))
        with blas.one_thread():
            RUNNERS[type(launch.operation)](
                launch.operation, inputs, _array(views[launch.output]), scratch
            )

    def compile_ahead(self, actions: Iterable[Callable[[Any], None]]) -> None:
        """There is nothing to compile."""

    def spin(self, seconds: float, stream: Any) -> None:
        """A launch is timed from when it begins."""

    def compute(self, actions: Sequence[Callable[[Any], None]]) -> None:
        """Run them here and now."""
        for action in actions:
            action(None)

    def start(self, *, overlap: bool, staged: bool, timed: bool) -> WorkerRun:
        return WorkerRun(overlap=overlap)

    def record(self, issue: Callable[[Any], None], *, overlap: bool) -> None:
        """Threads are told of each step."""


class HostDeviceArray(np.ndarray[Any, Any]):
    """A NumPy array that lives in the host device's memory: its placement is "device"."""


def _array(view: DeviceView) -> HostArray:
    """Return the NumPy array over a device view."""
    dtype, strides, below, span = _in_memory(view.dtype, view.shape, view.strides)
    if 0 in view.shape:
        return np.empty(view.shape, dtype)
    raw = _memory(view.pointer - below, span, WRITABLE)
    return np.ndarray(view.shape, dtype, buffer=raw, offset=below, strides=strides)


@lru_cache(1024)
def _in_memory(
    name: str, shape: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """The dtype, the strides in bytes, the bytes before the first element, and all it spans."""
    dtype = numpy_dtype(name)
    strides = tuple(step * dtype.itemsize for step in steps)
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    below = -sum(each for each in reach if each < 0)
    return dtype, strides, below, below + sum(each for each in reach if each > 0) + dtype.itemsize


#: What runs each operation, and what it needs as scratch.
RUNNERS: dict[type, Runner] = {
    **attention.RUNNERS,
    **convolution_backward.RUNNERS,
    **channel_argmax.RUNNERS,
    **dropout.RUNNERS,
    **elementwise.RUNNERS,
    **fused_convolution.RUNNERS,
    **local_response.RUNNERS,
    **masks.RUNNERS,
    **losses.RUNNERS,
    **external.RUNNERS,
    **pooling.RUNNERS,
    **channel_reduction.RUNNERS,
    **resampling.RUNNERS,
    **set_statistics.RUNNERS,
    **softmax.RUNNERS,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    **convolution_backward.WORKSPACE,
    **fused_convolution.WORKSPACE,
}
