"""The copies of a GPU: between it and the host by the link, and from one place on it to another."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.cuda.card import Card
from ooc_cudnn.devices.cuda.staging import begun
from ooc_cudnn.devices.kernels.relayout import relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.blocks import Block, blocks, boxes
from ooc_cudnn.tensor import ORDERS, numpy_dtype, packed_strides
from perfmodel.rows import NARROWEST_ROW_BYTES

_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind

#: Scattered device memory (for `memcpy` and `verify` only) is copied by boxes of this size.
SCATTERED_BOX_ELEMENTS = 2**18


def copy_by_link(
    device: Card, view: DeviceView, array: HostArray, stream: Any, *, to_device: bool
) -> Any:
    """Copy directly if the memory is pinned, else staged; scattered device memory by boxes."""
    if _copy_directly(device, view, array, stream, to_device=to_device):
        return None
    if any(view.strides == packed_strides(view.shape, order) for order in ORDERS):
        if to_device:
            return device.staging.copy_in(view, array, stream)
        return device.staging.copy_out(array, view, stream)
    import cupy

    with begun(stream):
        device_array = _view_array(device, view)
        for box in boxes(array.shape, SCATTERED_BOX_ELEMENTS):
            if to_device:
                device_array[box] = cupy.asarray(np.ascontiguousarray(array[box]))
            else:
                array[box] = cupy.asnumpy(device_array[box])
    return None


class _DirectCopies(NamedTuple):
    """The copies of a region, and the bytes from its first to its last element on the host."""

    parts: tuple[Block, ...]
    reach_bytes: int


@lru_cache(maxsize=4096)
def _direct_copies(
    shape: tuple[int, ...], strides: tuple[int, ...], host_strides_bytes: tuple[int, ...], item: int
) -> _DirectCopies | None:
    """The copies that the link makes by itself; None of what lies too scattered."""
    on_host = tuple(stride // item for stride in host_strides_bytes)
    if min(on_host, default=0) < 0:
        return None
    parts = blocks(shape, strides, on_host)
    if parts is None or (
        parts and parts[0].rows > 1 and parts[0].width * item < NARROWEST_ROW_BYTES
    ):
        return None
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, on_host, strict=True))
    return _DirectCopies(parts, reach * item)


def _copy_directly(
    device: Card, view: DeviceView, array: HostArray, stream: Any, *, to_device: bool
) -> bool:
    """Copy between the device and pinned memory, if the array is pinned and not scattered."""
    item = array.itemsize
    direct = _direct_copies(array.shape, view.strides, array.strides, item)
    if direct is None:
        return False
    pointer = array.__array_interface__["data"][0]
    if not device.is_pinned(pointer, direct.reach_bytes):
        return False
    stream = begun(stream)
    for part in direct.parts:
        on_device = view.pointer + part.destination_offset * item
        on_host = pointer + part.source_offset * item
        to, to_pitch, from_, from_pitch = (
            (on_device, part.destination_pitch, on_host, part.source_pitch)
            if to_device
            else (on_host, part.source_pitch, on_device, part.destination_pitch)
        )
        kind = _TO_DEVICE if to_device else _TO_HOST
        if part.rows == 1:
            device.runtime.memcpyAsync(to, from_, part.width * item, kind, stream.ptr)
        else:
            device.runtime.memcpy2DAsync(
                to, to_pitch * item, from_, from_pitch * item,
                part.width * item, part.rows, kind, stream.ptr,
            )  # fmt: skip
    return True


def copy_on_device(device: Card, destination: DeviceView, source: DeviceView, stream: Any) -> None:
    """Copy between views of any strides: re-laid by our kernel, else by CuPy."""
    if len(source.shape) >= 3:
        try:
            relayout(destination, source, stream)
            return
        except ValueError:  # spatial axes that do not flatten into one
            pass
    import cupy

    with stream:
        cupy.copyto(_view_array(device, destination), _view_array(device, source))


def _view_array(device: Card, view: DeviceView) -> Any:
    """Return a CuPy array over a view of any strides."""
    import cupy

    item = view.item_bytes
    reach = [(e - 1) * s * item for e, s in zip(view.shape, view.strides, strict=True)]
    low = sum(min(r, 0) for r in reach)
    memory = cupy.cuda.UnownedMemory(
        view.pointer + low, sum(abs(r) for r in reach) + item, None, device.index
    )
    return cupy.ndarray(
        view.shape,
        numpy_dtype(view.dtype),
        cupy.cuda.MemoryPointer(memory, -low),
        tuple(stride * item for stride in view.strides),
    )
