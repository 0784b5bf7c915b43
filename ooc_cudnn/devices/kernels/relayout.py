"""Runners of relayout.cu: copies between any two layouts, and rows of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ooc_cudnn.devices.kernels import compile_ahead, compiling
from ooc_cudnn.devices.kernels.arguments import WORDS, instance
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    Rows,
    block_shape,
    common_rows,
    grid_of,
    may_be_whole,
    pack_size,
    packs_a_thread,
    transpose_tile,
)
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.memory.axes import merged_axes

_WORDS_OF_FILL = {**WORDS, 16: "uint4"}


def relayout(destination: DeviceView, value: DeviceView, stream: Any = None) -> None:
    """Copy `value` to `destination`, of the same type and shape, between any two layouts.

    Bit for bit. The two must not overlap. Fast between NCHW, NHWC and CHWN, and where the innermost
    axes agree; correct for any other strides.
    """
    views = (destination, value)
    launch("relayout", views, lambda: plan_relayout(destination, value), (), stream)


def fill_zero(
    pointer: int, width_bytes: int, count: int, pitch_bytes: int, stream: Any = None
) -> None:
    """Zero `count` rows of `width_bytes` bytes that begin `pitch_bytes` bytes apart.

    Fastest where address, width and pitch are multiples of 16 bytes.
    """
    if width_bytes < 0 or count < 0:
        raise ValueError(f"width_bytes is {width_bytes} and count {count}; neither may be negative")
    if count > 1 and pitch_bytes < width_bytes:
        raise ValueError(f"pitch_bytes is {pitch_bytes}, less than width_bytes {width_bytes}")
    if width_bytes == 0 or count == 0:
        return
    if count == 1 or pitch_bytes == width_bytes:
        width_bytes, count = width_bytes * count, 1
        pitch_bytes = width_bytes
    joint = pointer | width_bytes | pitch_bytes | WIDEST_ACCESS_BYTES
    word = joint & -joint  # the largest power of two that divides all
    width = width_bytes // word
    expression = f"fill_zero<{_WORDS_OF_FILL[word]}>"
    collected = compile_ahead.collected()
    if collected is not None:
        collected.kernels["relayout.cu", expression] = 0
        return
    compiling.function(compiling.current_device(), "relayout.cu", expression)(
        grid_of(width * count, BLOCK_THREADS),
        (BLOCK_THREADS,),
        (pointer, width, count, pitch_bytes // word),
        stream=stream,
    )


def plan_relayout(destination: DeviceView, value: DeviceView) -> Launch | None:
    """Validate the operands of `relayout` and choose its kernel; None if there is nothing to do."""
    if value.shape != destination.shape or value.dtype != destination.dtype:
        raise ValueError(
            f"value is {value.dtype} {value.shape} and destination is {destination.dtype} "
            f"{destination.shape}; a relayout keeps type and shape"
        )
    if destination.size == 0:
        return None
    transposed = plan_transposition(destination, value)
    if transposed is not None:
        return _plan_transpose(destination, value, transposed)
    if not (destination.flattens and value.flattens):
        return _plan_copy(destination, value, *merged_rows(destination, value))
    sizes, to = destination.flat()
    _, source = value.flat()
    return _plan_copy(destination, value, common_rows(sizes, [to, source], keep_channel=False))


class Axis(NamedTuple):
    """An axis of a copy: its extent, and its steps in destination and value, in elements."""

    extent: int
    destination: int
    value: int


#: An axis that is not there.
NO_AXIS = Axis(1, 0, 0)
#: Axes outside of a transpose or of rows that one launch takes, and axes of such a launch.
MOST_OUTSIDE = 3
MOST_AXES = 3 + MOST_OUTSIDE
#: Extent of each of them, at the most: a grid's y and z have so much.
MOST_BEYOND = 2**16 - 1
#: An axis as short as this one is joined by the batch, where that goes.
SHORT_AXIS = 32
#: From so long pieces on, packs are worth it that begin elsewhere than their runs.
SHIFTED_BYTES = 128


def axes_of_copy(destination: DeviceView, value: DeviceView) -> list[Axis]:
    """Axes of a copy, outermost in `destination` first; what follows each other in both is one.

    >>> nchw = DeviceView(4096, "float32", (64, 3, 10, 10), (300, 100, 10, 1))
    >>> nhwc = DeviceView(4096, "float32", (64, 3, 10, 10), (300, 1, 30, 3))
    >>> [tuple(axis) for axis in axes_of_copy(nchw, nhwc)]
    [(64, 300, 300), (3, 100, 1), (100, 1, 3)]
    """
    merged = merged_axes(destination.shape, [destination.strides, value.strides])
    inner = Axis(merged.inner, *merged.inner_strides)
    return [*map(Axis, merged.sizes, *merged.strides), inner]


class Outside(NamedTuple):
    """Axes outside of what the blocks of a launch go through: once each in the grid's y and z.

    >>> Outside.of([Axis(5, 4, 1), Axis(2, 60, 9), Axis(7, 2, 3)]).grid
    (7, 10)
    """

    axes: tuple[Axis, Axis, Axis]

    @classmethod
    def of(cls, axes: Sequence[Axis]) -> Outside | None:
        """Return them; None where a grid has no place for them."""
        first, second, third = (*sorted(axes, reverse=True), *[NO_AXIS] * MOST_OUTSIDE)[:3]
        if (
            len(axes) > MOST_OUTSIDE
            or max(first.extent, second.extent * third.extent) > MOST_BEYOND
        ):
            return None
        return cls((first, second, third))

    @property
    def grid(self) -> tuple[int, int]:
        """The grid's y and z."""
        first, second, third = self.axes
        return first.extent, second.extent * third.extent

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of relayout.cu's `Outside`."""
        return {
            "last": self.axes[-1].extent,
            "destination": [axis.destination for axis in self.axes],
            "value": [axis.value for axis in self.axes],
        }

    def keep_aligned(self, count: int) -> int:
        """The most words, up to so many, of packs that begin aligned at each place of the axes."""
        steps = [step for axis in self.axes for step in (axis.destination, axis.value)]
        while any(step % count for step in steps):
            count //= 2
        return count


NOTHING_OUTSIDE = Outside((NO_AXIS, NO_AXIS, NO_AXIS))


class Transposition(NamedTuple):
    """The geometry of relayout.cu's `transpose`, and its `Split`."""

    batch: int
    size_p: int
    size_q: int
    value_n: int
    value_q: int
    destination_n: int
    destination_p: int
    inner: int = 1
    outer_stride: int = 0
    split: str = "WHOLE"
    outside: Outside = NOTHING_OUTSIDE


def plan_transposition(destination: DeviceView, value: DeviceView) -> Transposition | None:
    """Find the axes p and q, contiguous in value and in destination; None if they are one.

    Of more axes than these and a batch, the shortest are outside.

    >>> shape = (64, 3, 10, 10)
    >>> nchw, nhwc, chwn = (300, 100, 10, 1), (300, 1, 30, 3), (1, 6400, 640, 64)
    >>> def view(strides):
    ...     return DeviceView(4096, "float32", shape, strides)
    >>> plan_transposition(view(chwn), view(nchw))[:7]
    (1, 300, 64, 0, 300, 0, 64)
    >>> plan_transposition(view(nhwc), view(nchw))[:7]
    (64, 100, 3, 300, 100, 300, 3)
    >>> plan_transposition(view(chwn), view(nhwc))[:10]  # p is (s, c), which is split in CHWN
    (1, 300, 64, 0, 300, 0, 6400, 3, 64, 'SPLIT_P')
    """
    axes = axes_of_copy(destination, value)
    q = next((axis for axis in axes if axis.destination == 1), None)
    p = next((axis for axis in axes if axis.value == 1 and axis.extent > 1), None)
    if p is None or q is None or p == q:
        return None
    (size_p, to_p, _), (size_q, _, of_q) = p, q
    rest = [axis for axis in axes if axis not in (p, q)]

    def joins_p(axis: Axis) -> bool:
        return size_p < SHORT_AXIS and size_p <= size_q and axis.value == size_p

    def joins_q(axis: Axis) -> bool:
        return size_q < SHORT_AXIS and size_q <= size_p and axis.destination == size_q

    batch = next((axis for axis in rest if joins_p(axis) or joins_q(axis)), None)
    batch = batch or max(rest, default=NO_AXIS)
    outside = Outside.of([axis for axis in rest if axis != batch])
    if outside is None:
        return None
    n, to_n, of_n = batch
    if n > 1 and joins_p(batch):
        return Transposition(
            1, size_p * n, size_q, 0, of_q, 0, to_p, size_p, to_n, "SPLIT_P", outside
        )
    if n > 1 and joins_q(batch):
        return Transposition(
            1, size_p, size_q * n, 0, of_q, 0, to_p, size_q, of_n, "SPLIT_Q", outside
        )
    return Transposition(n, size_p, size_q, of_n, of_q, to_n, to_p, outside=outside)


def merged_rows(destination: DeviceView, value: DeviceView) -> tuple[Rows, Outside]:
    """Rows of a copy between views whose spatial axes do not flatten into one, and axes outside.

    Rows of a taller tensor, say, that lie along another axis than the first: the axes outside of
    them are as in the taller one, and merge. Heads of channels do not: the fewest are outside.

    >>> taller = DeviceView(4096, "float32", (2, 3, 4, 2, 5), (420, 140, 35, 5, 1))  # 2 of 7 rows
    >>> packed = DeviceView(8192, "float32", (2, 3, 4, 2, 5), (120, 40, 10, 5, 1))
    >>> rows, outside = merged_rows(taller, packed)
    >>> rows.sizes, outside == NOTHING_OUTSIDE
    ((1, 24, 10), True)

    Raises
    ------
    ValueError
        If more than `MOST_AXES` axes are left.
    """
    *outer, inner = axes_of_copy(destination, value)
    shortest = sorted(outer)[: max(0, len(outer) - 2)]
    outside = Outside.of(shortest)
    if outside is None:
        raise ValueError(
            f"strides {destination.strides} and {value.strides} of shape {destination.shape} lie "
            "too scattered for one copy"
        )
    kept = [axis for axis in outer if axis not in shortest]
    kept = [NO_AXIS] * (2 - len(kept)) + kept + [inner]
    sizes, *strides = zip(*kept, strict=True)
    contiguous = inner.destination == inner.value == 1
    return Rows(sizes, tuple(strides), False, contiguous), outside


def _plan_copy(
    destination: DeviceView, value: DeviceView, rows: Rows, outside: Outside = NOTHING_OUTSIDE
) -> Launch:
    """Plan a copy of rows of packs."""
    item = destination.item_bytes
    count = outside.keep_aligned(pack_size(rows, [destination, value]))
    unroll = packs_a_thread(count * item)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll)
    return Launch(
        "relayout.cu",
        instance("copy_strided", WORDS[item], count, unroll, blocks.unroll_rows, rows.contiguous),
        (*grid_of(blocks.tiles), *outside.grid),
        fill_struct(
            *("relayout.cu", "CopyGeometry"),
            size=rows.sizes,
            destination=rows.strides[0],
            value=rows.strides[1],
            tiles=blocks.tiles,
            column_tiles=blocks.column_tiles,
            outside=outside.fields,
        ),
        blocks.block,
    )


def _plan_transpose(destination: DeviceView, value: DeviceView, on: Transposition) -> Launch:
    item = destination.item_bytes
    # Runs that follow each other without a gap.
    gapless_p = on.value_q == on.size_p and on.split != "SPLIT_Q"
    gapless_q = on.destination_p == on.size_q and on.split != "SPLIT_P"
    whole = [
        size
        for size, gapless in ((on.size_p, gapless_p), (on.size_q, gapless_q))
        if gapless and may_be_whole(size, item)
    ]
    p_across = (min(whole) if whole else min(on.size_p, on.size_q)) == on.size_p
    sizes = (on.size_p, on.size_q) if p_across else (on.size_q, on.size_p)
    tile = transpose_tile(*sizes, item, whole=bool(whole))[:: 1 if p_across else -1]
    tile_p, tile_q = tile

    def pack(*steps: int) -> int:
        count = on.outside.keep_aligned(WIDEST_ACCESS_BYTES // item)
        while any(step % count for step in steps):
            count //= 2
        return count

    def side(tile: int, size: int, gapless: bool, pointer: int, *steps: int) -> tuple[int, str]:
        """Words of a pack, and the `Side` of relayout.cu."""
        begin, widest = pointer // item, WIDEST_ACCESS_BYTES // item
        flat = pack(begin, tile_p * tile_q, steps[0]) if gapless and tile == size else 0
        aligned = pack(begin, tile, size, *steps)
        if widest not in (flat, aligned) and tile * item >= SHIFTED_BYTES:
            return widest, "SHIFTED"
        return (flat, "FLAT") if flat >= aligned else (aligned, "ALIGNED")

    load, read = side(
        tile_p, on.size_p, gapless_p, value.pointer,
        on.value_n, on.value_q, (on.split == "SPLIT_Q") * on.outer_stride,
    )  # fmt: skip
    store, written = side(
        tile_q, on.size_q, gapless_q, destination.pointer,
        on.destination_n, on.destination_p, (on.split == "SPLIT_P") * on.outer_stride,
    )  # fmt: skip
    tiles_p, tiles_q = -(-on.size_p // tile_p), -(-on.size_q // tile_q)
    # Where there is no batch, tiles side by side along the narrow axis fill whole runs together.
    p_near = (on.size_p >= on.size_q) == (on.batch > 1)
    near, far = (tiles_p, tiles_q) if p_near else (tiles_q, tiles_p)
    tiles = near * far * on.batch
    steps = zip(value.shape, value.strides, strict=True)
    value_words = 1 + sum((size - 1) * step for size, step in steps)
    geometry = on._asdict() | {"outside": on.outside.fields}
    del geometry["split"]
    return Launch(
        "relayout.cu",
        instance("transpose", WORDS[item], *tile, load, store, p_near, on.split, read, written),
        (*grid_of(tiles), *on.outside.grid),
        fill_struct(
            *("relayout.cu", "TransposeGeometry"),
            **geometry,
            near_tiles=near,
            far_tiles=far,
            tiles=tiles,
            value_words=value_words,
        ),
    )
