"""The runner of pooling_gradient.cu, and the choice of its kernel."""

from __future__ import annotations

import math
from operator import add
from typing import NamedTuple

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    three,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.kernels.pooling import (
    SixAxes,
    aligned_pack,
    is_padded,
    lane_axis,
    mode_name,
    overhang,
    pooling,
    six_axes,
)
from ooc_cudnn.devices.kernels.pooling_indices import pooling_from_indices, pooling_indices
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.pooling.indices import PoolingIndices

#: Packs of dx that a block of `unpool_tile` makes at once, and lanes among them.
TILE_PACKS = 2048
TILE_LANES = 8
#: Where channels do not lie beside each other, tiles hold whole runs of so many elements along w.
ALONG_W = 8
#: Bytes of a pack: wider ones need more registers and shared memory than they save.
PACK_BYTES = 16
#: Shared memory of a block: as many blocks as a multiprocessor runs shall fit.
SHARED_BYTES = 28 * 1024
#: From so many elements on, a warp looks for the maximum of a window.
WARP_TAPS = 64
#: Registers of a strip for x and dx, and elements of windows that it scatters at a time: they are
#: written out one by one.
STRIP_WORDS, STRIP_TAPS = 96, 256
#: Threads that there are to be before one goes further down its strip.
STRIP_THREADS = 2**19
#: Where whole rows are made: strips of a block, and what it takes to begin one, in steps down it.
FEWEST_STRIPS, START_STEPS, WARP = 160, 2, 32
#: Shared memory for them.
PLANES_BYTES = 16 * 1024
#: Blocks that there are to be before one has more planes.
FEWEST_BLOCKS = 1024


class Tile(NamedTuple):
    """The box of dx that a block makes: elements along b, d, h and w, and packs of lanes."""

    b: int
    d: int
    h: int
    w: int
    lanes: int

    def windows(self, window: tuple[int, ...], stride: tuple[int, ...]) -> int:
        """Most windows that touch the box, times its packs of lanes."""
        touching = [
            (size + k - 2) // s + 1 for size, k, s in zip(self[1:4], window, stride, strict=True)
        ]
        return self.b * math.prod(touching) * self.lanes


class Strips(NamedTuple):
    """Strides of dx along d, h and w, and the lanes of a pack of a thread."""

    cells: tuple[int, ...]
    pack: int


def choose_strips(
    sizes: tuple[int, ...],
    padded: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    count: int,
    item_bytes: int,
    *,
    is_max: bool,
) -> Strips | None:
    """Strips for dx of `sizes` (six axes), which begins at `padded` in x with its padding.

    None if a window and a stride have too many elements for registers.

    >>> sizes = (1, 96, 1, 55, 55, 1024)
    >>> choose_strips(sizes, (0, 1, 1), (1, 3, 3), (1, 2, 2), 4, 4, is_max=True)
    Strips(cells=(1, 28, 28), pack=4)
    >>> choose_strips(sizes, (0, 0, 0), (1, 20, 20), (1, 1, 1), 4, 4, is_max=True) is None
    True
    """
    cells = tuple(
        (begin + size - 1) // step - begin // step + 1
        for begin, size, step in zip(padded, sizes[2:5], stride, strict=True)
    )
    reach = [(k - 1) // step for k, step in zip(window, stride, strict=True)]
    over = (reach[0] + 1) * (reach[2] + 1) * math.prod(window)
    results = stride[0] * max(window[1], stride[1]) * stride[2] * max(item_bytes // 4, 1)
    under = (reach[0] * stride[0] + window[0]) * window[1] * (reach[2] * stride[2] + window[2])
    while count:
        held = results * count + (under * -(-count * item_bytes // 4) if is_max else 0)
        whole = sizes[5] % count == 0
        if whole and held <= STRIP_WORDS and over * count <= STRIP_TAPS:
            return Strips(cells, count)
        count //= 2
    return None


def is_packed(axes: SixAxes) -> bool:
    """True if planes follow each other without a gap, and their rows."""
    sizes, strides = axes
    wanted = sizes[3] * sizes[4], sizes[4], 1
    steps = strides[1], strides[3], strides[4]
    extents = sizes[1], sizes[3], sizes[4]
    return sizes[2] == 1 and all(
        extent == 1 or step == packed
        for extent, step, packed in zip(extents, steps, wanted, strict=True)
    )


def stage_words(words: int, item_bytes: int) -> int:
    """Shared memory for a run of so many words, which may begin and end within packs.

    >>> stage_words(9, 4)
    12
    """
    pack = WIDEST_ACCESS_BYTES // item_bytes
    return (words + 2 * pack - 2) // pack * pack


class Planes(NamedTuple):
    """Block of `unpool_planes`: planes, rows of strides, rows a thread, words."""

    b: int
    h: int
    rows: int
    words: int


def choose_planes(
    sizes: tuple[int, ...], cells: tuple[int, ...], stride: int, reach: int, item_bytes: int
) -> Planes | None:
    """Whole planes of dx of `sizes`, as many as fit, else rows of one; None if not even a few do.

    A thread begins `reach` windows before its first row, so it makes several.

    >>> choose_planes((1, 10**5, 1, 13, 13, 1), (1, 7, 7), 2, 1, 4)
    Planes(b=24, h=7, rows=7, words=4060)
    >>> choose_planes((1, 10**4, 1, 110, 110, 1), (1, 55, 55), 2, 1, 4)
    Planes(b=1, h=18, rows=6, words=3964)
    """
    height, width = sizes[3:5]
    left = PLANES_BYTES // item_bytes
    b = min(left // (height * width), max(sizes[0] * sizes[1] // FEWEST_BLOCKS, 1), sizes[1])
    h = cells[1] if b else left // (stride * width)
    if not h:
        return None

    def steps(rows: int) -> tuple[bool, int]:
        strips = max(b, 1) * -(-h // rows) * cells[2]
        return strips < FEWEST_STRIPS, -(-strips // WARP) * (rows + reach + START_STEPS)

    rows = min(range(1, h + 1), key=steps)
    words = b * height * width if b else h * stride * width
    return Planes(max(b, 1), h, rows, stage_words(words, item_bytes))


def choose_tile(
    sizes: tuple[int, ...],
    count: int,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    lane_bytes: int,
) -> Tile | None:
    """Return the tile for dx of `sizes` (six axes) in packs of `count` lanes; None if none fits.

    A lane of a window takes `lane_bytes` of shared memory.

    >>> choose_tile((1, 8, 1, 112, 112, 1), 1, (1, 2, 2), (1, 2, 2), 8)
    Tile(b=1, d=1, h=56, w=56, lanes=1)
    """
    lanes = _piece(-(-sizes[5] // count), TILE_LANES)
    left = TILE_PACKS * (2 if sizes[5] == 1 else 1) // lanes
    squarest = 2 ** math.ceil(math.log2(left) / 2)
    w = _piece(sizes[4], squarest, math.lcm(stride[2], ALONG_W if sizes[5] == 1 else 1))
    h = _piece(sizes[3], max(left // w, 1), stride[1])
    d = _piece(sizes[2], max(left // (w * h), 1), stride[0])
    b = _piece(sizes[1], max(left // (w * h * d), 1))
    tile = Tile(b, d, h, w, lanes)
    while tile.windows(window, stride) * count * lane_bytes > SHARED_BYTES:
        # planes first: they share no windows
        name = "b" if tile.b > 1 else max(("lanes", "d", "h", "w"), key=lambda n: getattr(tile, n))
        size = getattr(tile, name)
        if size == 1:
            return None
        tile = tile._replace(**{name: -(-size // 2)})
    return tile


def _piece(extent: int, longest: int, step: int = 1) -> int:
    """Cut an extent into equal pieces of at most `longest`, multiples of `step` where possible.

    >>> _piece(112, 64), _piece(55, 64, 2), _piece(100, 40, 3)
    (56, 55, 36)
    """
    if extent <= longest:
        return extent
    size = -(-extent // -(-extent // longest))
    rounded = -(-size // step) * step
    return rounded if rounded <= longest else size


class Gradient(NamedTuple):
    """A gradient of pooling as its kernels see it; operands are dx, y, dy and x."""

    operation: PoolingBackward
    views: tuple[DeviceView, ...]
    axes: list[SixAxes]
    window: tuple[int, ...]  # along three spatial axes, as all that follows
    stride: tuple[int, ...]
    before: tuple[int, ...]  # padding
    padded: tuple[int, ...]  # where dx begins in x with its padding
    pack: int  # lanes that one access moves in every operand
    strips: Strips | None
    is_contiguous: bool  # along w, whatever is read
    is_flat: bool  # depth needs no windows

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of dx."""
        return self.axes[0].sizes

    @classmethod
    def of(cls, operation: PoolingBackward, views: tuple[DeviceView, ...]) -> Gradient:
        """See what the choice of a kernel depends on."""
        forward, axes = operation.forward, six_axes(views, lanes=lane_axis(views))
        window, windows = three(forward.window, 1), three(forward.output_shape[2:], 1)
        # The stride of a single window says nothing: one as long as the window tells that none
        # overlap.
        steps = zip(three(forward.stride, 1), window, windows, strict=True)
        stride = tuple(max(step, size) if number == 1 else step for step, size, number in steps)
        before = three([pair[0] for pair in forward.padding], 0)
        padded = tuple(map(add, three(operation.origin, 0), before))
        count = max(PACK_BYTES // views[0].item_bytes, 1)
        while count > axes[0].sizes[5]:
            count //= 2
        for view, view_axes in zip(views, axes, strict=True):
            count = min(count, aligned_pack(view, view_axes, 5, count))
        is_deep = windows[0] != three(forward.x_shape[2:], 1)[0] or before[0] != 0
        strips = choose_strips(
            *(axes[0].sizes, padded, window, stride, count, views[0].item_bytes),
            is_max=forward.is_max,
        )
        contiguous = all(each.strides[4] == 1 for each in axes[1:])
        flat = window[0] == stride[0] == 1 and not is_deep
        return cls(
            *(operation, views, axes, window, stride, before, padded, count, strips),
            *(contiguous, flat),
        )


class Choice(NamedTuple):
    """A kernel and its arguments behind type and mode; how dx is cut along b, d, h, w and lanes."""

    kernel: str
    arguments: tuple[int | bool, ...]
    tiles: tuple[int, ...]
    lane_tiles: int
    total: int  # of the struct
    blocks: int


def by_planes(gradient: Gradient) -> Choice | None:
    """Collect whole rows in shared memory: without lanes, where rows of dx follow each other."""
    strips, sizes, window = gradient.strips, gradient.sizes, gradient.window
    if strips is None or not gradient.is_flat or sizes[5] > 1 or not is_packed(gradient.axes[0]):
        return None
    stride = gradient.stride
    reach = (window[1] - 1) // stride[1]
    planes = choose_planes(sizes, strips.cells, stride[1], reach, gradient.views[0].item_bytes)
    if planes is None:
        return None
    tiles = (-(-sizes[1] // planes.b), 1, -(-strips.cells[1] // planes.h), 1)
    blocks = sizes[0] * math.prod(tiles)
    flags = (gradient.is_contiguous, is_padded(gradient.operation.forward))
    cut = (planes.words, planes.b, planes.h, strips.cells[2], planes.rows)
    arguments = (*cut, *flags, *window[1:], *stride[1:])
    return Choice("unpool_planes", arguments, tiles, 1, blocks, blocks)


def by_strips(gradient: Gradient) -> Choice | None:
    """Go down strips of dx in registers."""
    strips, sizes, stride = gradient.strips, gradient.sizes, gradient.stride
    if strips is None:
        return None
    packs = -(-sizes[5] // strips.pack)
    lanes = _piece(packs, TILE_LANES)
    lane_tiles = -(-packs // lanes)
    deep, high, wide = strips.cells
    cells = math.prod(sizes[:2]) * packs * deep * high * wide
    rows = min(max(cells // STRIP_THREADS, 1), high)
    rows = -(-high // -(-high // rows))
    # A thread writes its stride at once where that is a pack: half the accesses, or fewer.
    whole = gradient.padded[2] % stride[2] == 0 and sizes[4] % stride[2] == 0 and sizes[5] == 1
    dx, axes = gradient.views[0], gradient.axes[0]
    joins = whole and aligned_pack(dx, axes, 4, stride[2]) == stride[2] in (2, 4)
    unit = sizes[5] == 1 and gradient.is_contiguous
    flags = (unit, is_padded(gradient.operation.forward), gradient.is_flat)
    cut = (strips.pack, stride[2] if joins else 1, lanes, rows)
    tiles = (1, deep, -(-high // rows), wide)
    total = -(-math.prod(sizes[:2]) * math.prod(tiles) // (BLOCK_THREADS // lanes)) * lane_tiles
    arguments = (*cut, *flags, *gradient.window, *stride)
    return Choice("unpool_strips", arguments, tiles, lane_tiles, total, total)


def by_tile(gradient: Gradient) -> Choice | None:
    """Make boxes of dx from what their windows give, in shared memory."""
    operation, sizes, count = gradient.operation, gradient.sizes, gradient.pack
    is_max, taps = operation.forward.is_max, math.prod(gradient.window)
    if taps >= 2**30:
        return None
    real_bytes = 8 if operation.dtype == "float64" else 4
    lane_bytes = real_bytes + (is_max and (2 if taps < 2**15 else 4))
    tile = choose_tile(sizes, count, gradient.window, gradient.stride, lane_bytes)
    if tile is None:
        return None
    wide = 1
    if count == 1:
        dx, axes = gradient.views[0], gradient.axes[0]
        wide = aligned_pack(dx, axes, 4, PACK_BYTES // dx.item_bytes)
    while wide > 1 and tile.w % wide and tile.w < sizes[4]:
        wide //= 2
    tiles = tuple(-(-size // piece) for size, piece in zip(sizes[1:5], tile[:4], strict=True))
    lane_tiles = -(-sizes[5] // (tile.lanes * count))
    total = sizes[0] * math.prod(tiles) * lane_tiles
    cut = (is_max and taps >= WARP_TAPS, count, wide, *tile)
    arguments = (*cut, *gradient.window, *gradient.stride)
    return Choice("unpool_tile", arguments, tiles, lane_tiles, total, total)


def directly(gradient: Gradient) -> Choice:
    """Make each element from global memory: always possible."""
    total = math.prod(gradient.sizes)
    windows = (*gradient.window, *gradient.stride)
    return Choice("unpool_direct", windows, (1,) * 4, 1, total, -(-total // BLOCK_THREADS))


#: The kernels of pooling_gradient.cu, best first.
CANDIDATES = (by_planes, by_strips, by_tile, directly)


def plan_pooling_backward(
    operation: PoolingBackward,
    y: DeviceView | None,
    dy: DeviceView,
    x: DeviceView | None,
    dx: DeviceView,
) -> Launch | None:
    """Take the first of `CANDIDATES` that serves; None if there is nothing to do."""
    forward = operation.forward
    y_shape = forward.output_shape
    shapes = {"dx": operation.output_shape, "dy": y_shape, "y": y_shape, "x": forward.x_shape}
    for (name, shape), view in zip(shapes.items(), (dx, dy, y, x), strict=True):
        if view is not None:
            check(name, view, shape, operation.dtype)
    if dx.size == 0:
        return None
    # The absent ones take the place of another and are never read.
    gradient = Gradient.of(operation, (dx, y or dy, dy, x or dx))
    choice = next(filter(None, (candidate(gradient) for candidate in CANDIDATES)))
    return _launch(gradient, choice)


def _launch(gradient: Gradient, choice: Choice) -> Launch:
    forward, axes, window = gradient.operation.forward, gradient.axes, gradient.window
    views, before = gradient.views, gradient.before
    beyond = [overhang(each, window) for each in axes]
    sizes = [view.size for view in views]
    small = is_small(views, *sizes, *window, *gradient.stride, *before, *beyond)
    index, dtype = index_type(small=small), CUDA_TYPES[forward.dtype]
    strides = (f"{name}_stride" for name in ("dx", "y", "dy", "x"))
    return Launch(
        "pooling_gradient.cu",
        instance(choice.kernel, index, dtype, mode_name(forward), *choice.arguments),
        grid_of(choice.blocks),
        fill_struct(
            *("pooling_gradient.cu", f"UnpoolingGeometry<{index}>"),
            **axes[0].outer_sizes,
            dx=gradient.sizes[2:5],
            origin=three(gradient.operation.origin, 0),
            x=three(forward.x_shape[2:], 1),
            y=three(forward.output_shape[2:], 1),
            before=before,
            **dict(zip(strides, (each.strides for each in axes), strict=True)),
            tiles=choice.tiles[1:],
            b_tiles=choice.tiles[0],
            lane_tiles=choice.lane_tiles,
            total=choice.total,
        ),
    )


def pooling_backward(operation: PoolingBackward, call: Call) -> None:
    """Run `PoolingBackward` on (y, dy, x), of averages (dy,), or on (index, dy)."""
    if operation.indexed:
        pooling_from_indices(operation, call)
        return
    (y, dy, x), output = call.inputs, call.output
    if not operation.forward.is_max:
        y = x = None
    if dy is None or (operation.forward.is_max and (y is None or x is None)):
        raise ValueError(f"{operation.forward.mode} lacks one of y, dy and x")
    launch(
        operation,
        (output, y, dy, x),
        lambda: plan_pooling_backward(operation, y, dy, x, output),
        (),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {
    Pooling: pooling,
    PoolingBackward: pooling_backward,
    PoolingIndices: pooling_indices,
}
