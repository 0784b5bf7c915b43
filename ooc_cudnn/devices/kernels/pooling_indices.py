"""The runners of pooling_indices.cu: where maxima are, and gradients from that."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, geometry, index_type, is_small, three
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.elementwise import walk_numbers
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of, is_aligned
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.memory.axes import MergedAxes, merged_axes
from ooc_cudnn.operations.backward_pooling import PoolingBackward
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.pooling_indices import PoolingIndices

#: Bytes of the widest operand that a thread moves: two accesses, so that more are under way.
PACK_BYTES = 2 * WIDEST_ACCESS_BYTES


def _plan(
    kernel: str,
    forward: Pooling,
    result: DeviceView,
    images: Sequence[DeviceView],
    *where: Sequence[int],
    beside: tuple[DeviceView, ...] = (),
    further: tuple[str, ...] = (),
) -> Launch:
    """A thread for each pack of the result, and of what is written `beside` it.

    Of `images` the walk tells image and channel.
    `where`: how far the windows go along each axis, and the steps there (the struct `Windows`).
    `further`: arguments of the template behind the windows.
    """
    axes = len(result.shape) - 2
    strides = [result.strides, *((*view.strides[:2], *[0] * axes) for view in images)]
    strides += [view.strides for view in beside]
    # Where along each of three spatial axes; those that are not there come first, and are 0.
    places = [
        tuple(int(axis >= 0 and at == 2 + axis) for at in range(2 + axes))
        for axis in range(axes - 3, axes)
    ]
    walked = merged_axes(result.shape, [*strides, *places])
    views = [result, *images, *beside]
    count = _count(walked, views)
    numbers = walk_numbers(walked, count)
    windows = (*three(forward.window, 1), *three(forward.stride, 1))
    before = three([pair[0] for pair in forward.padding], 0)
    extent, *steps = where
    along = (*three(extent, 1), *(number for each in steps for number in three(each, 0)))
    small = is_small(views, result.size, *before, *along)
    return Launch(
        "pooling_indices.cu",
        f"{kernel}<{index_type(small=small)}, {CUDA_TYPES[forward.dtype]}, {count}, "
        f"{', '.join(map(str, (*windows, *further)))}>",
        grid_of(numbers[-1], BLOCK_THREADS),
        geometry(*numbers, *before, *along, small=small),
    )


def _count(walked: MergedAxes, views: Sequence[DeviceView]) -> int:
    """Elements of a pack: along the channels, where each lies beside the next in every operand."""
    if walked.inner_strides[0] != 1 or any(walked.inner_strides[len(views) :]):
        return 1
    # along the spatial axes the walk of an image has no steps, its kernel has
    steps = [{*walked.strides[at], *view.strides[2:]} for at, view in enumerate(views)]
    count = PACK_BYTES // max(view.item_bytes for view in views)
    while count > 1 and not (
        count <= walked.inner
        and all(
            walked.inner_strides[at] == 1 and is_aligned(view, steps[at], count)
            for at, view in enumerate(views)
        )
    ):
        count //= 2
    return count


def pooling_indices(operation: PoolingIndices, call: Call) -> None:
    """Run `PoolingIndices` on (x, y)."""
    forward = operation.forward
    x = check("x", call.inputs[0], forward.x_shape, operation.dtype)
    index = check("the indices", call.output, forward.output_shape, "uint8")
    none = [0] * len(forward.window)
    where = (x.shape[2:], x.strides[2:], none, none)
    given = call.inputs[1]
    y = index  # in the place of one that is absent: nothing is written there
    if given is not None:
        y = check("y", given, forward.output_shape, operation.dtype)
    further = tuple(str(each).lower() for each in (operation.positive, given is not None))

    def plan() -> Launch | None:
        if not index.size:
            return None
        return _plan("pooling_indices", forward, index, [x], *where, beside=(y,), further=further)

    launch(operation, (index, x, y), plan, (), call.stream)


def pooling_from_indices(operation: PoolingBackward, call: Call) -> None:
    """Run `PoolingBackward` on (index, dy)."""
    forward = operation.forward
    index = check("the indices", call.inputs[0], forward.output_shape, "uint8")
    dy = check("dy", call.inputs[1], forward.output_shape, operation.dtype)
    dx = check("dx", call.output, operation.output_shape, operation.dtype)
    where = (dy.shape[2:], dy.strides[2:], index.strides[2:], operation.origin)

    def plan() -> Launch | None:
        if not dx.size:
            return None
        return _plan("pooling_from_indices", forward, dx, [index, dy], *where)

    launch(operation, (dx, index, dy), plan, (), call.stream)
