"""CUDA managed memory: arrays that both sides see, moved by page faults or by prefetching."""

from __future__ import annotations

import ctypes
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.guards import return_managed, take_managed

#: CU_DEVICE_CPU: the host, where a prefetch may go instead of a device's ordinal.
HOST = -1
_MANAGED_MEMORY, _CONCURRENT_ACCESS = 83, 89  # cudaDevAttr...
_FLOATS_OF_A_PAGE = 4096 // 4
_THREADS = 16


def need_managed_memory() -> None:
    """Raise `Unavailable` unless host and card can use managed memory at the same time."""
    import cupy

    runtime = cupy.cuda.runtime
    device = runtime.getDevice()
    for attribute in (_MANAGED_MEMORY, _CONCURRENT_ACCESS):
        if not runtime.deviceGetAttribute(attribute, device):
            raise Unavailable("this system's managed memory does not migrate by page faults")


class ManagedArray:
    """A float32 array in managed memory, fresh: its pages come to be where they are first touched.

    `host` and `device` are the same memory, as NumPy and CuPy see it.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        import cupy

        self.nbytes = 4 * math.prod(shape)
        take_managed(self.nbytes)
        self._taken = True
        try:
            memory = cupy.cuda.malloc_managed(self.nbytes)
        except BaseException:
            self.release()
            raise
        self.pointer = int(memory.ptr)
        self.device: Any = cupy.ndarray(shape, np.float32, memptr=memory)
        raw = (ctypes.c_float * math.prod(shape)).from_address(self.pointer)
        self.host: Any = np.ctypeslib.as_array(raw).reshape(shape)

    def prefetch(self, place: int, stream: Any) -> None:
        """Move all of it to the host or to a device."""
        prefetch(self.pointer, self.nbytes, place, stream)

    def release(self) -> None:
        """Free it; `host` and `device` are gone then."""
        if self._taken:
            self._taken = False
            self.device = self.host = None
            return_managed(self.nbytes)


def prefetch(pointer: int, nbytes: int, place: int, stream: Any) -> None:
    """Enqueue the move of managed memory to `HOST` or to the device of an ordinal.

    The driver's own entry point is called by its first name, ``cuMemPrefetchAsync``, whose
    arguments stay the same for ever: what CUDA 13 changed is the header, which maps that name to
    ``cuMemPrefetchAsync_v2`` and its location, and the runtime's call of a similar name.
    """
    status = _prefetch_function()(pointer, nbytes, place, stream.ptr)
    if status:
        raise RuntimeError(f"cuMemPrefetchAsync of {nbytes} bytes to {place}: CUresult {status}")


@cache
def _prefetch_function() -> Any:
    try:
        function = ctypes.CDLL("libcuda.so.1").cuMemPrefetchAsync
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the driver has no cuMemPrefetchAsync: {error}") from error
    # CUdeviceptr, bytes, CUdevice, CUstream
    function.argtypes = (ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function


def read_every_page(array: np.ndarray[Any, Any]) -> float:
    """Read a number of every page by several threads, so that all of it is in host memory."""
    numbers = array.reshape(-1)[::_FLOATS_OF_A_PAGE]
    parts = np.array_split(numbers, min(_THREADS, os.cpu_count() or 1))
    with ThreadPoolExecutor(len(parts)) as pool:
        return float(sum(pool.map(np.sum, parts)))
