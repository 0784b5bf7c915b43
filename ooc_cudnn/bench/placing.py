"""Allocation of operands on each placement: bytes that are free there, and releasing them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.host_memory import available_host_bytes
from ooc_cudnn.memory.pinned import release
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import dtype_name

__all__ = [
    "allocate_on_device",
    "allocate_pinned",
    "available_host_bytes",
    "free_cupy",
    "release_device",
    "release_pinned",
    "to_device",
]

#: The host device counts users' own arrays, too; those of a benchmark are outside the case's limit.
_OWN_ARRAYS_LIMIT = "64GiB"


def allocate_pinned(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return uninitialised pinned memory."""
    return empty_in(get_device(current().device), "pinned", shape, dtype, "channels_first")


def allocate_on_device(
    shape: tuple[int, ...], dtype: Any = "float32", *, cuda: bool, order: str = "channels_first"
) -> Any:
    """Return an uninitialised array of the user's own on the device, outside the library's limit.

    Raises ``MemoryError`` where the card is full.
    """
    if cuda:
        import cupy

        if order == "channels_first":
            return cupy.empty(shape, dtype)
        stored = cupy.empty((shape[0], *shape[2:], shape[1]), dtype)
        return stored.transpose(0, len(shape) - 1, *range(1, len(shape) - 1))
    with ooc_cudnn.settings(memory_limit=_OWN_ARRAYS_LIMIT):
        return empty_in(get_device("host"), "device", shape, dtype_name(dtype), order)


def to_device(array: np.ndarray[Any, Any], *, cuda: bool) -> Any:
    """Copy an array to the device, as the user's own array outside the library's limit."""
    if cuda:
        import cupy

        return cupy.asarray(array)
    placed = allocate_on_device(array.shape, array.dtype, cuda=False)
    placed[...] = array
    return placed


def release_pinned(device: str) -> None:
    """Give pinned memory that no array uses back to the system."""
    gc.collect()
    release(get_device(device))


def release_device(device: str) -> None:
    """Give back all that the library and CuPy keep for later, idle pinned memory included."""
    gc.collect()
    get_device(device).release_caches()


def free_cupy(*, cuda: bool) -> None:
    """Give what CuPy keeps of freed arrays back to the driver."""
    if cuda:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
