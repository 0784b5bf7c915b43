"""Runners of convolution_direct*.cu: what cuDNN refuses, of any sizes and strides.

Correct, and slow.
"""

from __future__ import annotations

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, three
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    ConvolutionBackwardData,
    forward_of,
)
from ooc_cudnn.tensor import ACCUMULATOR

#: Channels that share what a thread or a block reads; groups of fewer take one at a time.
CHANNELS_TOGETHER = 4


def plan(
    operation: AnyConvolution, first: DeviceView, second: DeviceView, result: DeviceView
) -> Launch | None:
    """Choose the kernel of an operation on its inputs; None if there is nothing to compute."""
    forward, source = forward_of(operation), "convolution_direct_backward.cu"
    channels = forward.w_shape[0] // forward.groups
    if isinstance(operation, Convolution):
        source, kernel, walked = "convolution_direct.cu", "convolution_direct", result
        x, w, y = first, second, result
    elif isinstance(operation, ConvolutionBackwardData):
        kernel, walked, channels = (
            "convolution_direct_data",
            result,
            forward.x_shape[1] // forward.groups,
        )
        w, y, x = first, second, result
    else:
        kernel, walked = "convolution_direct_filter", first
        x, y, w = first, second, result
    _check(operation, x=x, w=w, y=y, result=result)
    if result.size == 0:
        return None
    tile = CHANNELS_TOGETHER if channels >= CHANNELS_TOGETHER else 1
    tiles = -(-channels // tile)  # of a group
    total = result.size // channels * tiles
    struct, fields = "ConvolutionGradient", _fields(forward, x, w, y)
    if not isinstance(operation, Convolution):
        fields["batch"] = forward.x_shape[0]
    else:
        struct = "ConvolutionGeometry"
    return Launch(
        source,
        f"{kernel}<{CUDA_TYPES[first.dtype]}, {CUDA_TYPES[result.dtype]}, {tile}>",
        # a block sums for an element of dw; a thread for one of y or dx
        grid_of(total, 1 if kernel == "convolution_direct_filter" else BLOCK_THREADS),
        fill_struct(
            *(source, struct),
            **fields,
            channel_tiles=tiles,
            count=total,
            channels_innermost=int(walked.strides[1] == 1 and walked.shape[1] > 1),
        ),
    )


def run(operation: AnyConvolution, call: Call) -> None:
    """Run an operation on its inputs: x may have no rows, and is zeros then; no window, no dx."""
    (first, second), result = call.inputs, call.output
    assert first is not None
    assert second is not None
    views = (first, second, result)
    launch(operation, views, lambda: plan(operation, *views), (), call.stream)


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
    allowed = forward.dtype, ACCUMULATOR[forward.dtype]
    if result.dtype not in allowed:
        raise ValueError(f"the result is {result.dtype}; it must be {' or '.join(allowed)}")


def _fields(
    forward: Convolution, x: DeviceView, w: DeviceView, y: DeviceView
) -> dict[str, int | tuple[int, ...]]:
    """Fields of a convolution that the kernels read; unused axes come first, of size 1."""
    fields: dict[str, int | tuple[int, ...]] = {
        "groups": forward.groups,
        "channels_in": forward.w_shape[1],
        "channels_out": forward.w_shape[0] // forward.groups,
        "padding": three(tuple(before for before, _ in forward.padding), 0),
        "stride": three(forward.stride, 1),
        "dilation": three(forward.dilation, 1),
    }
    for name, view in (("x", x), ("w", w), ("y", y)):
        fields[f"{name}_size"] = three(view.shape[2:], 1)
        fields[f"{name}_stride"] = view.strides[:2] + three(view.strides[2:], 0)
    return fields
