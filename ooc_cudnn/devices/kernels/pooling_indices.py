"""The runners of pooling_indices.cu: where maxima are, and gradients from that."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, geometry, index_type, is_small, three
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.elementwise import walk_numbers
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.backward_pooling import PoolingBackward
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.pooling_indices import PoolingIndices


def _plan(kernel: str, dtype: str, result: DeviceView, images: Sequence[DeviceView]) -> Launch:
    """A thread for each element of the result; of `images` the walk tells image and channel."""
    axes = len(result.shape) - 2
    strides = [result.strides, *((*view.strides[:2], *[0] * axes) for view in images)]
    # Where along each of three spatial axes; those that are not there come first, and are 0.
    places = [
        tuple(int(axis >= 0 and at == 2 + axis) for at in range(2 + axes))
        for axis in range(axes - 3, axes)
    ]
    walked = merged_axes(result.shape, [*strides, *places])
    small = is_small([result, *images], result.size)
    numbers = walk_numbers(walked, 1)
    return Launch(
        "pooling_indices.cu",
        f"{kernel}<{index_type(small=small)}, {CUDA_TYPES[dtype]}>",
        grid_of(numbers[-1], BLOCK_THREADS),
        geometry(*numbers, small=small),
    )


def _windows(
    forward: Pooling,
    extent: Sequence[int],
    steps: Sequence[int],
    index_steps: Sequence[int],
    origin: Sequence[int],
) -> object:
    """The struct `Windows`."""
    before = [pair[0] for pair in forward.padding]
    return geometry(
        *three(forward.window, 1),
        *three(forward.stride, 1),
        *three(before, 0),
        *three(extent, 1),
        *three(steps, 0),
        *three(index_steps, 0),
        *three(origin, 0),
    )


def pooling_indices(operation: PoolingIndices, call: Call) -> None:
    """Run `PoolingIndices` on (x,)."""
    forward = operation.forward
    x = check("x", call.inputs[0], forward.x_shape, operation.dtype)
    index = check("the indices", call.output, forward.output_shape, "uint8")
    none = [0] * len(forward.window)
    launch(
        operation,
        (index, x),
        lambda: _plan("pooling_indices", x.dtype, index, [x]) if index.size else None,
        (_windows(forward, x.shape[2:], x.strides[2:], none, none),),
        call.stream,
    )


def pooling_from_indices(operation: PoolingBackward, call: Call) -> None:
    """Run `PoolingBackward` on (index, dy)."""
    forward = operation.forward
    index = check("the indices", call.inputs[0], forward.output_shape, "uint8")
    dy = check("dy", call.inputs[1], forward.output_shape, operation.dtype)
    dx = check("dx", call.output, operation.output_shape, operation.dtype)
    launch(
        operation,
        (dx, index, dy),
        lambda: _plan("pooling_from_indices", dx.dtype, dx, [index, dy]) if dx.size else None,
        (_windows(forward, dy.shape[2:], dy.strides[2:], index.strides[2:], operation.origin),),
        call.stream,
    )
