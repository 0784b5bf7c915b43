"""`empty`, `zeros`, `malloc`: memory by the paper's rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import DeviceOutOfMemoryError, HostOutOfMemoryError
from ooc_cudnn.memory.arena import Allocation
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.memory.pinned import allocate
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS, TensorSpec, dtype_name, numpy_dtype, packed_strides


def empty(shape: Any, dtype: Any = "float32", order: str = "channels_first") -> Any:
    """Return an uninitialised tensor: on the device if all of it fits, else in pinned host memory.

    Parameters
    ----------
    shape : int or tuple of int
        N, C, then spatial axes for feature maps; any shape for others.
    dtype : str or dtype
        "float16", "bfloat16", "float32" or "float64".
    order : str
        Memory order, "channels_first" or "channels_last".

    Returns
    -------
    array
        On the device (CuPy on cuda) if the whole array fits what is left of the memory limit, else
        a NumPy array in pinned host memory; never half and half (the paper's rule, section 5).

    Raises
    ------
    HostOutOfMemoryError
        If it fits neither.
    ValueError, TypeError
        If shape, dtype or order are none.

    Examples
    --------
    >>> import ooc_cudnn
    >>> with ooc_cudnn.settings(device="host", memory_limit="1MiB"):
    ...     small, large = ooc_cudnn.empty((4, 4)), ooc_cudnn.empty((1024, 1024))
    ...     ooc_cudnn.placement(small), ooc_cudnn.placement(large)
    ('device', 'pinned')
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not sizes or any(
        isinstance(extent, bool) or not isinstance(extent, int | np.integer) or extent < 1
        for extent in sizes
    ):
        raise ValueError(f"shape must hold positive integers, not {shape!r}")
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    sizes = tuple(int(extent) for extent in sizes)
    name = dtype_name(dtype)
    return _placed(sizes, name, order)


def _placed(shape: tuple[int, ...], dtype: str, order: str = "channels_first") -> Any:
    """Make an array by the paper's rule: on the device, or else in pinned memory."""
    device = get_device(current().device)
    try:
        return empty_in(device, "device", shape, dtype, order)
    except DeviceOutOfMemoryError as no_device_room:
        try:
            return empty_in(device, "pinned", shape, dtype, order)
        except HostOutOfMemoryError as error:
            raise error from no_device_room


def empty_in(
    device: Device,
    placement: str,
    shape: tuple[int, ...],
    dtype: str,
    order: str,
    limit: int | None = None,
) -> Any:
    """An uninitialised tensor in a placement of the caller's choice (not on disk).

    On the device it counts against a `limit` in bytes: that of the settings when left out.
    """
    kind, settings = numpy_dtype(dtype), current()
    nbytes = math.prod(shape) * kind.itemsize
    if placement == "device":
        if limit is None:
            limit = limit_bytes(device, settings.memory_limit)
        spec = TensorSpec(shape, dtype, "device", packed_strides(shape, order))
        return array_on(device, device.arena.allocate_array(nbytes, limit), spec)
    last = order == "channels_last" and len(shape) > 2
    stored = (shape[0], *shape[2:], shape[1]) if last else shape
    if placement == "pinned":
        raw = allocate(device, nbytes, settings.host_memory_limit)
        array = raw.view(kind).reshape(stored)
    else:
        array = _pageable(stored, kind)
    return array.transpose(0, len(shape) - 1, *range(1, len(shape) - 1)) if last else array


def array_on(device: Device, memory: Allocation, spec: TensorSpec, start: int = 0) -> Any:
    """Return the device's array, from a byte of memory on, that lies as a spec says."""
    strides = tuple([stride * spec.itemsize for stride in spec.strides])
    return device.as_array(memory, spec.shape, spec.dtype, start=start, strides=strides)


def _pageable(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.empty(shape, dtype)


def zeros(shape: Any, dtype: Any = "float32", order: str = "channels_first") -> Any:
    """Return a tensor of zeros, placed as by `empty`."""
    array = empty(shape, dtype, order)
    array[...] = 0
    return array


def malloc(nbytes: int) -> Any:
    """Return `nbytes` of raw memory (a uint8 array), placed as by `empty`.

    Source: the paper's ooc_malloc (section 5).
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int | np.integer) or nbytes < 1:
        raise ValueError(f"nbytes must be a positive integer, not {nbytes!r}")
    return _placed((int(nbytes),), "uint8")
