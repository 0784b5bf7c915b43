"""A tensor as rows, packs, tiles and blocks of threads. Pure arithmetic, no GPU needed.

Words: a row is a run of elements along the innermost axis; a pack is what one thread moves in one
access; a tile is what one block of threads does at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ooc_cudnn.devices.kernels.cuda_structs import constant
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView

BLOCK_THREADS = constant("element.cuh", "BLOCK_THREADS")
LARGEST_GRID = 2**31 - 1  # along x
SHORTEST_RUN = 32  # packs that neighbouring threads move together, at the least: a warp

Triple = tuple[int, int, int]


def grid_of(work: int, of_a_block: int = 1) -> tuple[int]:
    """Blocks for so much work, up to what a grid may have: blocks then go on with the next."""
    return (min(-(-work // of_a_block), LARGEST_GRID),)


class Rows(NamedTuple):
    """(n, c, s) as (outer, middle, inner), for all operands of one call."""

    sizes: Triple
    strides: tuple[Triple, ...]  # of each operand, in elements
    inner_is_channel: bool
    contiguous: bool  # along inner, in every operand


def common_rows(sizes: Triple, strides: Sequence[Triple], *, keep_channel: bool) -> Rows:
    """Choose the innermost axis and merge axes that follow each other in every operand.

    Where the operands disagree about the innermost axis, the first one (the destination) decides.
    With `keep_channel` the channel remains the whole of the middle or the inner axis, because a
    parameter is looked up with it.

    >>> common_rows((2, 3, 5), [(15, 5, 1)], keep_channel=False)
    Rows(sizes=(1, 1, 30), strides=((30, 30, 1),), inner_is_channel=False, contiguous=True)
    >>> common_rows((2, 3, 5), [(15, 1, 3)], keep_channel=True)
    Rows(sizes=(1, 10, 3), strides=((30, 3, 1),), inner_is_channel=True, contiguous=True)
    """
    _, c, s = sizes
    channel_agrees = c == 1 or all(stride[1] == 1 for stride in strides)
    spatial_agrees = s == 1 or all(stride[2] == 1 for stride in strides)
    if channel_agrees and spatial_agrees:
        inner_is_channel = c > s
    elif channel_agrees or spatial_agrees:
        inner_is_channel = channel_agrees
    else:
        inner_is_channel = c > 1 and strides[0][1] < strides[0][2]

    order = (0, 2, 1) if inner_is_channel else (0, 1, 2)
    # Each axis is its size and one stride per operand.
    axes = [(sizes[axis], tuple(stride[axis] for stride in strides)) for axis in order]
    outer, middle, inner = axes
    if not keep_channel:
        middle, inner = _merge(middle, inner)
    if not keep_channel or inner_is_channel:
        outer, middle = _merge(outer, middle)
    if not keep_channel:
        middle, inner = _merge(middle, inner)
    # A stride that is never taken: the packed one, which constrains no alignment.
    inner_strides = (1,) * len(strides) if inner[0] == 1 else inner[1]
    middle_strides = (
        tuple(inner[0] * step for step in inner_strides) if middle[0] == 1 else middle[1]
    )
    outer_strides = (
        tuple(middle[0] * step for step in middle_strides) if outer[0] == 1 else outer[1]
    )
    return Rows(
        (outer[0], middle[0], inner[0]),
        tuple(zip(outer_strides, middle_strides, inner_strides, strict=True)),
        inner_is_channel,
        all(step == 1 for step in inner_strides),
    )


_Axis = tuple[int, tuple[int, ...]]


def _merge(outside: _Axis, inside: _Axis) -> tuple[_Axis, _Axis]:
    """The two axes as one, the outside one then of size 1; unchanged where they do not merge."""
    size, steps = inside
    one = (1, (0,) * len(steps))
    if outside[0] == 1:
        return one, inside
    if size == 1:
        return one, outside
    if all(step_out == size * step for step_out, step in zip(outside[1], steps, strict=True)):
        return one, (outside[0] * size, steps)
    return outside, inside


def is_aligned(view: DeviceView, steps: Iterable[int], count: int) -> bool:
    """True if packs of `count` elements, begun so many elements apart, are aligned accesses.

    A pack of more than 16 bytes is several, each on a boundary of 16.

    >>> is_aligned(DeviceView(4096, "float32", (2, 6), (6, 1)), (6,), 4)  # rows of 24 bytes
    False
    """
    boundary = min(WIDEST_ACCESS_BYTES, count * view.item_bytes)
    return view.pointer % boundary == 0 and all(
        step * view.item_bytes % boundary == 0 for step in steps
    )


def pack_size(rows: Rows, views: Sequence[DeviceView], most: int | None = None) -> int:
    """The most elements, a power of two, of a pack that begins every row of every view aligned.

    Up to `most`; when that is left out, up to what one access moves of the widest elements.

    >>> view = DeviceView(4096, "float32", (1, 2, 6), (12, 6, 1))
    >>> pack_size(common_rows((1, 2, 6), [view.strides], keep_channel=True), [view])
    2
    """
    if not rows.contiguous:
        return 1
    count = most or WIDEST_ACCESS_BYTES // max(view.item_bytes for view in views)
    while count > max(rows.sizes[2], 1):
        count //= 2
    steps = [
        [step for size, step in zip(rows.sizes[:2], strides[:2], strict=True) if size != 1]
        for strides in rows.strides
    ]
    while count > 1 and not all(map(is_aligned, views, steps, [count] * len(views))):
        count //= 2
    return count


def packs_a_thread(access_bytes: int, *, light: bool = False) -> int:
    """Return the packs a thread takes: enough bytes in flight, in registers that are there.

    `light` promises few registers a pack, and much work a thread that its packs can share.
    """
    return 8 if light or access_bytes <= 4 else 4


class Blocks(NamedTuple):
    """Layout of blocks of threads over rows of packs."""

    block: tuple[int, int]
    unroll_rows: bool  # a thread's packs lie in one column, else along one row
    tiles: int
    column_tiles: int


def block_shape(rows: int, packs: int, unroll: int, *, one_column: bool = False) -> Blocks:
    """Lay blocks of up to 256 threads over `rows` rows of `packs` packs, `unroll` packs a thread.

    A thread's packs lie along one row where rows are long enough for that, else in one column.
    `one_column` asks for a column whatever the shape (a channel's parameters are then read once).

    >>> block_shape(rows=1000, packs=6, unroll=4)
    Blocks(block=(6, 42), unroll_rows=True, tiles=6, column_tiles=1)
    >>> block_shape(rows=1000, packs=1500, unroll=4)
    Blocks(block=(188, 1), unroll_rows=False, tiles=2000, column_tiles=2)
    """
    unroll_rows = one_column or (rows > 1 and packs < SHORTEST_RUN * unroll)
    packs_each = 1 if unroll_rows else unroll
    # Equal pieces of a row, as wide as a block allows, so that few lanes lie past its end.
    column_tiles = -(-packs // (BLOCK_THREADS * packs_each))
    across = -(-packs // (column_tiles * packs_each))
    down = BLOCK_THREADS // across
    row_tiles = -(-rows // (down * (unroll if unroll_rows else 1)))
    return Blocks((across, down), unroll_rows, row_tiles * column_tiles, column_tiles)


# A tile of a transpose: so long along the axis across, at most, and so many bytes in all; measured
# on an H200, with packs of 16 bytes.
TRANSPOSE_CHANNELS = 64
TRANSPOSE_TILE_BYTES = 16384
TRANSPOSE_LONGEST = 1024
#: What memory moves at once. A piece of a run that is no multiple of it fetches its ends twice.
BURST_BYTES = 64
#: What a cache moves at once: pieces of the axis across are multiples of it if that idles little.
LINE_BYTES = 128
#: Elements of a run that a tile may have as a whole.
MOST_WHOLE = 256
#: A longer piece may leave so much more of the last one idle than the best.
IDLE = 1.2


def transpose_tile(
    across: int, along: int, item_bytes: int, *, whole: bool = False
) -> tuple[int, int]:
    """The tile of a transpose between two layouts, of two axes `across` and `along`.

    Few channels get a tile exactly as narrow and accordingly long, and so does an axis across that
    is to be in it as a `whole`.

    >>> transpose_tile(3, 10**6, 4), transpose_tile(64, 10**6, 4), transpose_tile(100, 49, 4)
    ((3, 1024), (64, 64), (64, 49))
    >>> transpose_tile(169, 256, 4, whole=True)
    (169, 16)
    """
    burst = BURST_BYTES // item_bytes
    if not whole:
        across = _piece(across, TRANSPOSE_CHANNELS, burst, LINE_BYTES // item_bytes)
    longest = TRANSPOSE_TILE_BYTES // item_bytes // across // 32 * 32
    return across, _piece(along, min(max(longest, burst), TRANSPOSE_LONGEST), burst)


def may_be_whole(extent: int, item_bytes: int) -> bool:
    """True if runs of that extent end within a burst, and a tile may have whole ones.

    >>> may_be_whole(13 * 13, 4), may_be_whole(28 * 28, 4), may_be_whole(12 * 12, 4)
    (True, False, False)
    """
    return extent <= MOST_WHOLE and extent * item_bytes % BURST_BYTES != 0


def _piece(extent: int, longest: int, burst: int, line: int = 1) -> int:
    """Size of the pieces of an extent: of whole bursts, long, and with little left in the last.

    Of whole lines, too, if that leaves little.

    >>> _piece(192, 64, 16), _piece(196, 64, 16), _piece(784, 64, 16), _piece(50, 64, 16)
    (64, 48, 64, 50)
    >>> _piece(96, 64, 16), _piece(96, 64, 16, 32)
    (48, 32)
    """
    if extent <= longest:
        return extent
    lanes = {size: -(-extent // size) * size for size in range(burst, longest + 1, burst)}
    fewest = min(lanes.values(), default=0)
    good = [size for size in lanes if lanes[size] <= IDLE * fewest]
    return max([size for size in good if size % line == 0] or good, default=longest)
