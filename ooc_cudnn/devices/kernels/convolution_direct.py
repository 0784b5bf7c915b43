"""Runners of convolution_direct*.cu: what cuDNN refuses, of any sizes and strides.

Correct, and slow.
"""

from __future__ import annotations

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, arithmetic_dtype, geometry, three
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    AnyConvolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    forward_of,
)

#: Channels that share what a thread or a block reads; groups of fewer take one at a time.
CHANNELS_TOGETHER = 4


def plan_forward(
    operation: Convolution, x: DeviceView, w: DeviceView, y: DeviceView
) -> Launch | None:
    """Choose the kernel of y from (x, w); None if there is nothing to compute."""
    _check(operation, x=x, w=w, y=y, result=y)
    if y.size == 0:
        return None
    each = operation.w_shape[0] // operation.groups
    tile, tiles = _tiles(each)
    threads = y.size // each * tiles
    groups, c_x, c_y, _, *rest = _numbers(operation, x, w, y)  # the batch needs no bound
    return Launch(
        "convolution_direct.cu",
        f"convolution_direct<{_types(x, y)}, {tile}>",
        grid_of(threads, BLOCK_THREADS),
        geometry(groups, c_x, c_y, *rest, tiles, threads, _channels_innermost(y)),
    )


def plan_data(
    operation: ConvolutionBackwardData, w: DeviceView, dy: DeviceView, dx: DeviceView
) -> Launch | None:
    """Choose the kernel of dx from (w, dy); None if there is nothing to compute."""
    _check(operation, x=dx, w=w, y=dy, result=dx)
    if dx.size == 0:
        return None
    forward = operation.forward
    each = forward.x_shape[1] // forward.groups
    tile, tiles = _tiles(each)
    threads = dx.size // each * tiles
    return Launch(
        "convolution_direct_backward.cu",
        f"convolution_direct_data<{_types(w, dx)}, {tile}>",
        grid_of(threads, BLOCK_THREADS),
        geometry(*_numbers(operation, dx, w, dy), tiles, threads, _channels_innermost(dx)),
    )


def plan_filter(
    operation: ConvolutionBackwardFilter, x: DeviceView, dy: DeviceView, dw: DeviceView
) -> Launch | None:
    """Choose the kernel of dw from (x, dy); None if there is nothing to compute."""
    _check(operation, x=x, w=dw, y=dy, result=dw)
    if dw.size == 0:
        return None
    forward = operation.forward
    each = forward.w_shape[0] // forward.groups
    tile, tiles = _tiles(each)
    blocks = dw.size // each * tiles
    return Launch(
        "convolution_direct_backward.cu",
        f"convolution_direct_filter<{_types(x, dw)}, {tile}>",
        grid_of(blocks),
        geometry(*_numbers(operation, x, dw, dy), tiles, blocks, _channels_innermost(x)),
    )


def convolution_backward_data(operation: ConvolutionBackwardData, call: Call) -> None:
    """dx from (w, dy), of any strides; zero where no window reaches."""
    (w, dy), dx = call.inputs, call.output
    assert w is not None
    assert dy is not None
    launch(operation, (w, dy, dx), lambda: plan_data(operation, w, dy, dx), (), call.stream)


def convolution_backward_filter(operation: ConvolutionBackwardFilter, call: Call) -> None:
    """dw from (x, dy), of any strides; x may have no rows, and is zeros then."""
    (x, dy), dw = call.inputs, call.output
    assert x is not None
    assert dy is not None
    launch(operation, (x, dy, dw), lambda: plan_filter(operation, x, dy, dw), (), call.stream)


def convolution_forward(operation: Convolution, call: Call) -> None:
    """y from (x, w); x may have no rows, and is zeros then."""
    (x, w), y = call.inputs, call.output
    assert x is not None
    assert w is not None
    launch(operation, (x, w, y), lambda: plan_forward(operation, x, w, y), (), call.stream)


#: All three directions.
RUNNERS: dict[type, Runner] = {
    Convolution: convolution_forward,
    ConvolutionBackwardData: convolution_backward_data,
    ConvolutionBackwardFilter: convolution_backward_filter,
}


def _check(
    operation: AnyConvolution,
    *,
    x: DeviceView,
    w: DeviceView,
    y: DeviceView,
    result: DeviceView,
) -> None:
    forward = forward_of(operation)
    # A piece of dx that no window reaches has no rows of dy, however far its own rows fall short.
    y_shape = tuple(max(extent, 0) for extent in forward.output_shape)
    expected = (forward.x_shape, forward.w_shape, y_shape)
    if (x.shape, w.shape, y.shape) != expected:
        raise ValueError(
            f"x {x.shape}, w {w.shape} and y {y.shape} do not fit the operation, "
            f"which says {expected}"
        )
    for view in (x, w, y):
        if view is not result and view.dtype != forward.dtype:
            raise ValueError(f"an input is {view.dtype}; the operation says {forward.dtype}")
    if result.dtype not in (forward.dtype, arithmetic_dtype(forward.dtype)):
        raise ValueError(
            f"the result is {result.dtype}; it must be {forward.dtype} or "
            f"{arithmetic_dtype(forward.dtype)}"
        )


def _tiles(each: int) -> tuple[int, int]:
    """Channels of a tile, and tiles of a group of so many channels."""
    tile = CHANNELS_TOGETHER if each >= CHANNELS_TOGETHER else 1
    return tile, -(-each // tile)


def _types(given: DeviceView, result: DeviceView) -> str:
    return f"{CUDA_TYPES[given.dtype]}, {CUDA_TYPES[result.dtype]}"


def _channels_innermost(view: DeviceView) -> int:
    return int(view.strides[1] == 1 and view.shape[1] > 1)


def _numbers(
    operation: AnyConvolution,
    x: DeviceView,
    w: DeviceView,
    y: DeviceView,
) -> tuple[int, ...]:
    """What the kernels read of a convolution; unused axes come first, of size 1."""
    forward = forward_of(operation)

    def strides(view: DeviceView) -> tuple[int, ...]:
        return view.strides[:2] + three(view.strides[2:], 0)

    return (
        forward.groups,
        forward.w_shape[1],
        forward.w_shape[0] // forward.groups,
        forward.x_shape[0],
        *three(x.shape[2:], 1),
        *three(w.shape[2:], 1),
        *three(y.shape[2:], 1),
        *strides(x),
        *strides(w),
        *strides(y),
        *three(tuple(before for before, _ in forward.padding), 0),
        *three(forward.stride, 1),
        *three(forward.dilation, 1),
    )
