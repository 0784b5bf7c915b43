"""The runners of pooling_indices.cu: where maxima are, and gradients from that."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, index_type, instance, is_small, three
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.elementwise import is_packable, walk_fields
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of, is_aligned
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.memory.axes import MergedAxes, merged_axes
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.pooling.indices import PoolingIndices

#: Bytes of the widest operand that a thread moves: two accesses, so that more are under way.
PACK_BYTES = 2 * WIDEST_ACCESS_BYTES
#: Neighbours in a row that a thread makes, where these lie side by side: windows, or elements of
#: dx. Registers hold what lies under these windows in a row of x: so many elements at the most.
ROW_WINDOWS, ROW_ELEMENTS, MOST_UNDER = 4, 8, 32
#: The last operands of a walk, which tell of its place: along depth, height and width.
PLACES = 3


def _plan(
    kernel: str,
    forward: Pooling,
    result: DeviceView,
    images: Sequence[DeviceView],
    *where: Sequence[int],
    most_in_row: int,
    loaded: Callable[[int], tuple[int, ...]] = lambda count: (),
    beside: tuple[DeviceView, ...] = (),
    further: tuple[bool, ...] = (),
) -> Launch:
    """A thread for each pack of the result, and of what is written `beside` it.

    Of `images` the walk tells image and channel.
    `where`: how far the windows go along each axis, and the steps there (the struct `Windows`).
    `most_in_row`: elements of a pack along a row, at the most; `loaded`: of x, by that number.
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
    packs: tuple[int, ...] = (1,)
    if not any(walked.inner_strides[-PLACES:]):
        # along the spatial axes the walk of an image has no steps, its kernel has
        operands = [(at, view, view.strides[2:]) for at, view in enumerate(views)]
        most = PACK_BYTES // max(view.item_bytes for view in views)
        packs = (_count(walked, operands, most),)
    elif walked.inner_strides[-PLACES:] == (0, 0, 1):
        written = [
            (0, result, ()),
            *((at, view, ()) for at, view in enumerate(beside, 1 + len(images))),
        ]
        count = _count(walked, written, most_in_row)
        if count > 1:
            kernel, packs = f"{kernel}_rows", (count, *loaded(count))
    walk = walk_fields(walked, packs[0])
    windows = (*three(forward.window, 1), *three(forward.stride, 1))
    before = three([pair[0] for pair in forward.padding], 0)
    extent, *steps = where
    along = {"extent": three(extent, 1)}
    names = ("step", "index_step", "origin")
    along |= {name: three(each, 0) for name, each in zip(names, steps, strict=True)}
    numbers = itertools.chain(*along.values())
    index = index_type(small=is_small(views, result.size, *before, *numbers))
    return Launch(
        "pooling_indices.cu",
        instance(kernel, index, CUDA_TYPES[forward.dtype], *packs, *windows, *further),
        grid_of(walk["packs"], BLOCK_THREADS),
        fill_struct(
            *("pooling_indices.cu", f"Windows<{index}, {len(strides) + PLACES}>"),
            walk=walk,
            before=before,
            **along,
        ),
    )


def _count(
    walked: MergedAxes, operands: Iterable[tuple[int, DeviceView, Sequence[int]]], most: int
) -> int:
    """Elements of a pack, up to `most`: they lie side by side in all operands, on boundaries.

    An operand has its place in the walk, its view, and steps beside those of the walk.
    """
    operands, count = list(operands), most
    while count > 1 and not (
        count <= walked.inner
        and all(is_packable(walked, at, view, count, beside) for at, view, beside in operands)
    ):
        count //= 2
    return count


def _under(forward: Pooling, count: int) -> int:
    """Elements of a row of x under so many windows side by side."""
    return (count - 1) * forward.stride[-1] + forward.window[-1]


def _loaded(forward: Pooling, x: DeviceView, count: int) -> int:
    """Elements of a row of x that are loaded at once: they begin on boundaries."""
    loaded = WIDEST_ACCESS_BYTES // x.item_bytes
    while loaded > 1 and not (
        x.strides[-1] == 1
        and is_aligned(x, x.strides[:-1], loaded)
        and forward.padding[-1][0] % loaded == count * forward.stride[-1] % loaded == 0
    ):
        loaded //= 2
    return loaded


def pooling_indices(operation: PoolingIndices, call: Call) -> None:
    """Run `PoolingIndices` on (x, y)."""
    forward = operation.forward
    x = check("x", call.inputs[0], forward.x_shape, operation.dtype)
    index = check("the indices", call.output, forward.output_shape, "uint8")
    none = [0] * len(forward.window)
    where = (x.shape[2:], x.strides[2:], none, none)
    maxima = call.inputs[1]
    y = index  # in the place of one that is absent: nothing is written there
    if maxima is not None:
        y = check("y", maxima, forward.output_shape, operation.dtype)
    further = (operation.positive, maxima is not None)
    most = ROW_WINDOWS
    while most > 1 and _under(forward, most) > MOST_UNDER:
        most //= 2

    def plan() -> Launch | None:
        if not index.size:
            return None
        return _plan(
            *("pooling_indices", forward, index, [x], *where),
            most_in_row=most,
            loaded=lambda count: (_loaded(forward, x, count),),
            beside=(y,),
            further=further,
        )

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
        images = [index, dy]
        return _plan("pooling_from_indices", forward, dx, images, *where, most_in_row=ROW_ELEMENTS)

    launch(operation, (dx, index, dy), plan, (), call.stream)
