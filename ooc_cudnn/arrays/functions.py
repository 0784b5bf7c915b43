"""`empty`, `zeros`, `malloc`, `memcpy`, `pin`, `placement`: memory as the paper's users see it."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any

import numpy as np

from ooc_cudnn.arrays.operands import Located, check_writable, locate
from ooc_cudnn.arrays.page_locks import lock, unlock, unlock_dropped
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.running import running
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import DeviceOutOfMemoryError, HostOutOfMemoryError
from ooc_cudnn.memory.files import array_span
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.memory.pinned import allocate
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS, dtype_name, numpy_dtype
from ooc_cudnn.types import Array


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
    """By the paper's rule: on the device, or else in pinned memory."""
    device = get_device(current().device)
    try:
        return empty_in(device, "device", shape, dtype, order)
    except DeviceOutOfMemoryError as no_device_room:
        try:
            return empty_in(device, "pinned", shape, dtype, order)
        except HostOutOfMemoryError as error:
            raise error from no_device_room


def empty_in(device: Device, placement: str, shape: tuple[int, ...], dtype: str, order: str) -> Any:
    """An uninitialised tensor in a placement of the caller's choice (not on disk)."""
    last = order == "channels_last" and len(shape) > 2
    stored = (shape[0], *shape[2:], shape[1]) if last else shape
    kind, settings = numpy_dtype(dtype), current()
    nbytes = math.prod(shape) * kind.itemsize
    if placement == "device":
        limit = limit_bytes(device, settings.memory_limit)
        array = device.as_array(device.arena.allocate_array(nbytes, limit), stored, dtype)
    elif placement == "pinned":
        raw = allocate(device, nbytes, settings.host_memory_limit)
        array = raw.view(kind).reshape(stored)
    else:
        array = _pageable(stored, kind)
    return array.transpose(0, len(shape) - 1, *range(1, len(shape) - 1)) if last else array


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


def memcpy(dst: Array, src: Array) -> None:
    """Copy `src` to `dst`, between any two placements; returns when it is done.

    Parameters
    ----------
    dst, src : array
        Of one shape and dtype, whichever it is; any strides, any placements.

    Raises
    ------
    ValueError, TypeError
        If shapes or dtypes differ, or `dst` is read-only.
    """
    device = get_device(current().device)
    to = locate(dst, device, name="dst", written=True)
    from_ = locate(src, device, name="src")
    if to.array.shape != from_.array.shape:
        raise ValueError(f"dst has shape {to.array.shape}, src {from_.array.shape}")
    if to.array.dtype != from_.array.dtype:
        raise TypeError(f"dst is {to.array.dtype}, src {from_.array.dtype}")
    check_writable(to, name="dst")
    if 0 in to.array.shape:
        return
    if to.placement != "device" and from_.placement != "device":
        np.copyto(to.array, from_.array)
        return
    (inside, outside), stream = (_as_words(to), _as_words(from_)), "copy_in"
    if to.placement != "device":
        (inside, outside), stream = (outside, inside), "copy_out"
    with running(device, overlap=False, staged=True, timed=False) as run:
        if stream == "copy_in":
            run.submit(stream, (), lambda s: device.copy_in(inside, outside, s), signals=True)
        else:
            run.submit(stream, (), lambda s: device.copy_out(outside, inside, s), signals=True)
        run.finish(wait=True)


def _as_words(located: Located) -> Any:
    """The memory of an array of any dtype, as elements that copies know."""
    array = located.array
    if array.dtype.itemsize == 16:  # two words each
        array = array[..., None].view("float64")
    word = {1: "uint8", 2: "float16", 4: "float32", 8: "float64"}.get(array.dtype.itemsize)
    if word is None:
        raise TypeError(f"elements of {array.dtype.itemsize} bytes cannot be copied")
    if located.placement != "device":
        return array.view(word)
    strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
    return DeviceView(located.pointer, word, tuple(array.shape), strides)


def placement(array: Array) -> str:
    """Return where an array lives: "device", "pinned", "pageable" or "disk".

    Examples
    --------
    >>> import numpy, ooc_cudnn
    >>> ooc_cudnn.placement(numpy.zeros(3, "float32"))
    'pageable'
    """
    device = get_device(current().device)
    return locate(array, device, name="array").placement


class Pin:
    """Page-locks an existing NumPy array in place, until `close` or the end of a ``with`` block."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"array must be a NumPy array, not {type(array).__name__}")
        low, high = array_span(array)
        if array.size and high - low != array.nbytes:
            raise ValueError("array must fill its memory without holes to be pinned")
        self.array = array
        unlock_dropped()
        # From the lowest address: of an array with negative strides, not its first element's.
        self._lock = lock(self, array, low, get_device(current().device))

    def close(self) -> None:
        """Unlock the pages; a second call does nothing."""
        unlock(self._lock)

    def __enter__(self) -> np.ndarray[Any, Any]:
        return self.array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def pin(array: np.ndarray[Any, Any]) -> Pin:
    """Page-lock an existing NumPy array in place.

    Copies to and from pinned memory run at the full speed of the link. Pinning takes time once (on
    an H200 some hundredths of a second a GiB), so it pays for arrays that are used in more than one
    call.

    Parameters
    ----------
    array : numpy.ndarray
        Without holes in its memory; any axis order.

    Returns
    -------
    Pin
        A context manager that yields the array; or keep it and call `close`.

    Raises
    ------
    TypeError, ValueError
        If it is no such array.

    Examples
    --------
    >>> import numpy, ooc_cudnn
    >>> x = numpy.zeros((1, 3, 64, 64), "float32")
    >>> with ooc_cudnn.pin(x):
    ...     ooc_cudnn.placement(x)
    'pinned'
    """
    return Pin(array)
