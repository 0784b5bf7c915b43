"""The way of every launch to a device: what it is handed is checked against what it was built for.

cuDNN's graphs believe the strides they were built for, whatever lies at an address; a view of other
strides gives wrong numbers without a word. So nothing is launched on a view that is not what the
launch's buffer says: neither a region of an operand that is computed on in place, nor a slot. And
every buffer starts at a multiple of 16 bytes, as cuDNN demands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.errors import InternalError
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    input_shapes,
    result_dtype,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import packed_strides, same_strides


class DeclaredBuffer(NamedTuple):
    """A buffer as launches were built for it; `offset_bytes` is where it starts in its block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int


def declare_buffers(
    launches: Sequence[Launch], buffers: Mapping[str, Buffer]
) -> tuple[DeclaredBuffer, ...]:
    """List the buffers that launches were built for, each once.

    Raises
    ------
    InternalError
        If a convolution is to run on a buffer that is not what its graph is built for.
    """
    names: dict[str, None] = {}
    for launch in launches:
        used = [name for name in (*launch.inputs, launch.output) if name]
        names |= dict.fromkeys(used)
        if isinstance(launch.operation, AnyConvolution):
            _check_graph(launch.operation, used, buffers)
    return tuple(
        DeclaredBuffer(name, made.dtype, made.shape, made.strides, made.offset_bytes)
        for name, made in ((name, buffers[name]) for name in names)
    )


def bind(
    device: Device,
    launches: Sequence[Launch],
    built_for: Sequence[DeclaredBuffer],
    views: Mapping[str, DeviceView],
    workspace: tuple[int, int],
) -> Callable[[Any], None]:
    """Return what runs launches, as `declare_buffers`, on views and the stream that it is given.

    Raises
    ------
    InternalError
        If a view is not what the launches were built for.
    """
    for buffer in built_for:
        view = views[buffer.name]
        if (
            view.strides != buffer.strides
            or view.shape != buffer.shape
            or view.dtype != buffer.dtype
            or (view.pointer - buffer.offset_bytes) % WIDEST_ACCESS_BYTES
        ):
            views = {**views, buffer.name: _as_built_for(buffer, view)}

    def run(stream: Any) -> None:
        for launch in launches:
            device.run(launch, views, workspace, stream)

    return run


def _as_built_for(buffer: DeclaredBuffer, view: DeviceView) -> DeviceView:
    """Give a view the strides its launches were built for, if they lead to the same elements.

    Strides that are never taken may differ, and all of an empty tensor.
    """
    if (view.shape, view.dtype) == (buffer.shape, buffer.dtype):
        aligned = (view.pointer - buffer.offset_bytes) % WIDEST_ACCESS_BYTES == 0
        same = aligned and same_strides(view.shape, view.strides, buffer.strides)
        if same or 0 in view.shape:
            return replace(view, strides=buffer.strides)
    raise InternalError(
        f"launches were built for {buffer.name} as {buffer.dtype} of shape {buffer.shape} and "
        f"strides {buffer.strides}, {buffer.offset_bytes} bytes after an aligned address, and "
        f"would be handed {view.dtype} of shape {view.shape} and strides {view.strides} at "
        f"{view.pointer:#x}"
    )


def _check_graph(
    operation: AnyConvolution, used: Sequence[str], buffers: Mapping[str, Buffer]
) -> None:
    """A graph is of packed tensors in the operation's layout, each at a multiple of 16 bytes."""
    forward = forward_of(operation)
    tensors = (
        *((shape, forward.dtype) for shape in input_shapes(operation)),
        (operation.output_shape, result_dtype(operation)),
    )
    for name, (shape, dtype) in zip(used, tensors, strict=True):
        buffer = buffers[name]
        if 0 in buffer.shape:  # there is no graph of an empty tensor
            continue
        if (
            (buffer.shape, buffer.dtype) != (shape, dtype)
            or not same_strides(shape, buffer.strides, packed_strides(shape, forward.layout))
            or buffer.offset_bytes % WIDEST_ACCESS_BYTES
        ):
            raise InternalError(
                f"{operation.name} is built for a packed {forward.layout} {dtype} tensor of shape "
                f"{shape}, but {name} is {buffer.dtype} of shape {buffer.shape} and strides "
                f"{buffer.strides}, {buffer.offset_bytes} bytes after an aligned address"
            )
