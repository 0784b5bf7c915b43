"""Walks of a tensor channel by channel, or image by image. No GPU needed.

The counterpart of `kernels/group_walk.cuh`: which axis is innermost, how wide the packs are, how
many blocks share a group.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ooc_cudnn.devices.kernels.arguments import instance
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct, struct_type
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    SHORTEST_RUN,
    Rows,
    block_shape,
    common_rows,
    grid_of,
    pack_size,
    packs_a_thread,
)
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView

#: Blocks that a reduction is shared by: four for each multiprocessor of an H200. Each leaves
#: partial sums, which another launch adds up. (In bfloat16, channels-last, moments of a ResNet's
#: maps take 1.3 times as long by 2048 blocks, and 0.93 times by 264.)
REDUCTION_BLOCKS = 528
#: Blocks of an elementwise pass. Each reads its channels' vectors once, which takes as long as a
#: tile or two. (By 8192 the gradient of a batch normalization takes 1.1 times as long.)
ELEMENTWISE_BLOCKS = 2112
#: Packs that a block has of a row of columns: a warp's width. At most 256 columns in all.
COLUMN_PACKS = 32


class GroupWalk(NamedTuple):
    """A walk over operands of one shape, as `GroupWalk` and the templates of the kernels take it.

    With `columns` the groups are the columns of rows, `repeats` times all of them; a block has
    some neighbouring ones and `groups` counts the blocks side by side.
    """

    size: tuple[int, ...]  # up to `group_stride` as in the struct
    last_inner: int
    groups: int
    parts: int
    tiles: int
    column_tiles: int
    stride: tuple[tuple[int, ...], ...]
    group_stride: tuple[int, ...]
    pack: int
    unroll: int
    unroll_rows: bool
    columns: bool
    repeats: int
    block: tuple[int, int]

    def launch(
        self, source: str, kernel: str, *arguments: str | int, with_columns: bool = True
    ) -> Launch:
        """A kernel that walks so: a block for every part of every group.

        Its template ends with COUNT, UNROLL, UNROLL_ROWS and, if wanted, COLUMNS.
        """
        flags = [self.unroll_rows, self.columns] if with_columns else [self.unroll_rows]
        kind = f"GroupWalk<{len(self.stride)}>"
        names = struct_type("group_walk.cuh", kind).names or ()
        return Launch(
            source,
            instance(kernel, *arguments, self.pack, self.unroll, *flags),
            grid_of(self.groups * self.parts),
            fill_struct("group_walk.cuh", kind, **{name: getattr(self, name) for name in names}),
            self.block,
        )


Views = Sequence[DeviceView]


class Most(NamedTuple):
    """Limits of a thread: packs, all loaded before the first is used, and their elements."""

    packs: int = 8
    elements: int = 8


MOST = Most()


def walk_images(views: Views, blocks: int) -> GroupWalk:
    """Walk image by image: all channels and sites of one are a group.

    Worked out once for views alike, as `walk_channels` is.
    """
    return _remembered(_walk_images, blocks, MOST, *map(_signature, views))


def walk_channels(views: Views, blocks: int, most: Most = MOST) -> GroupWalk:
    """Walk channel by channel: a channel of all images is a group.

    `most` bounds what a thread has, where many operands, or sums, want registers.
    """
    return _remembered(_walk_channels, blocks, most, *map(_signature, views))


def _signature(view: DeviceView) -> tuple[Any, ...]:
    return view.pointer % WIDEST_ACCESS_BYTES, view.dtype, view.shape, view.strides


@functools.lru_cache(maxsize=4096)
def _remembered(
    walk: Callable[[Views, int, Most], GroupWalk],
    blocks: int,
    most: Most,
    *signatures: tuple[Any, ...],
) -> GroupWalk:
    return walk([DeviceView(*signature) for signature in signatures], blocks, most)


def _walk_images(views: Views, blocks: int, most: Most) -> GroupWalk:
    (n, c, s), _ = views[0].flat()
    steps = [view.flat()[1] for view in views]
    rows = common_rows((1, c, s), steps, keep_channel=False)
    strides = tuple(
        (step[0], *of_rows[1:]) for step, of_rows in zip(steps, rows.strides, strict=True)
    )
    rows = rows._replace(sizes=(n, *rows.sizes[1:]), strides=strides)
    return _walk_runs(views, rows, blocks, most, images=True)


def _walk_channels(views: Views, blocks: int, most: Most) -> GroupWalk:
    sizes, _ = views[0].flat()
    steps = [view.flat()[1] for view in views]
    if sizes[1] == 1:  # one group, of all there is: axes may merge past the channel
        rows = common_rows(sizes, steps, keep_channel=False)
        return _walk_runs(views, rows, blocks, most, images=True)
    rows = common_rows(sizes, steps, keep_channel=True)
    if rows.inner_is_channel:
        return _walk_columns(views, rows, blocks, most)
    return _walk_runs(views, rows, blocks, most, images=False)


def _walk_runs(views: Views, rows: Rows, blocks: int, most: Most, *, images: bool) -> GroupWalk:
    """Groups that are runs: the outer axis is the group (`images`), or the middle one."""
    outer, middle, inner = rows.sizes
    groups, lines = (outer, middle) if images else (middle, outer)
    count = min(pack_size(rows, views), most.elements)
    unroll = min(packs_a_thread(count * views[0].item_bytes), most.packs)
    empty = lines == 0 or inner == 0
    shape = block_shape(max(lines, 1), -(-max(inner, 1) // count), unroll)
    across, down = shape.block
    # As many threads as there is work for, and for a short single row no fewer than a warp.
    if lines == 1 and shape.column_tiles == 1:
        across = max(across, min(-(-inner // count), SHORTEST_RUN))
    down = min(down, -(-max(lines, 1) // (unroll if shape.unroll_rows else 1)))
    tiles = 0 if empty else shape.tiles
    parts = max(1, min(tiles, blocks // max(groups, 1)))
    return GroupWalk(
        size=(1, lines, inner),
        last_inner=inner,
        groups=groups,
        parts=parts,
        tiles=tiles,
        column_tiles=shape.column_tiles,
        stride=tuple((0, steps[1] if images else steps[0], steps[2]) for steps in rows.strides),
        group_stride=tuple(steps[0] if images else steps[1] for steps in rows.strides),
        pack=count,
        unroll=unroll,
        unroll_rows=shape.unroll_rows,
        columns=False,
        repeats=1,
        block=(across, down),
    )


def _walk_columns(views: Views, rows: Rows, blocks: int, most: Most) -> GroupWalk:
    """Groups that are columns; short rows without gaps are joined until they fill a block's width.

    Twenty rows of three channels, say, are one row of sixty columns.
    """
    channels = rows.sizes[2]
    repeats, last_inner = 1, channels
    count = min(pack_size(rows, views), most.elements)
    if rows.contiguous and all(stride[1] == channels for stride in rows.strides):
        unjoined = rows
        wide = min(WIDEST_ACCESS_BYTES // views[0].item_bytes, most.elements)
        while True:  # the widest packs that suit the rows they would join
            rows, repeats, last_inner = _joined(unjoined, wide)
            count = min(pack_size(rows, views), most.elements)
            if count >= wide or wide == 1:
                break
            wide //= 2
    outer, middle, inner = rows.sizes
    unroll = min(packs_a_thread(count * views[0].item_bytes), most.packs)
    packs = -(-inner // count)
    groups = -(-packs // COLUMN_PACKS)
    across = -(-packs // groups)
    down = BLOCK_THREADS // across
    tiles = -(-outer * middle // (down * unroll))
    parts = max(1, min(tiles, blocks // groups))
    return GroupWalk(
        size=rows.sizes,
        last_inner=last_inner,
        groups=groups,
        parts=parts,
        tiles=tiles,
        column_tiles=1,
        stride=rows.strides,
        group_stride=(0,) * len(views),
        pack=count,
        unroll=unroll,
        unroll_rows=True,
        columns=True,
        repeats=repeats,
        block=(across, down),
    )


def _joined(rows: Rows, count: int) -> tuple[Rows, int, int]:
    """Join rows of channels to rows of whole packs that fill a block's width.

    Returns them, how often the channels repeat in each, and the length of the last one.

    >>> rows = common_rows((1, 3, 50), [(150, 1, 3)], keep_channel=True)
    >>> _joined(rows, 4)[0].sizes, *_joined(rows, 4)[1:]
    ((1, 2, 120), 40, 30)
    """
    outer, middle, channels = rows.sizes
    repeats = count // math.gcd(channels, count)
    repeats *= max(1, COLUMN_PACKS * count // (channels * repeats))
    repeats = max(1, min(repeats, middle))
    joined, inner = -(-middle // repeats), channels * repeats
    strides = tuple((stride[0], inner, 1) for stride in rows.strides)
    rows = rows._replace(sizes=(outer, joined, inner), strides=strides)
    return rows, repeats, (middle - (joined - 1) * repeats) * channels
