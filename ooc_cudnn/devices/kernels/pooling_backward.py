"""The runner of pooling_backward.cu, and the choice of its kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    boolean,
    geometry,
    index_type,
    is_small,
    three,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.kernels.pooling import (
    STAGE_BYTES,
    aligned_pack,
    is_packed,
    lane_axis,
    mode_number,
    planes_a_block,
    pooling,
    six_axes,
    stage_words,
)
from ooc_cudnn.devices.kernels.pooling_indices import pooling_from_indices, pooling_indices
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.backward_pooling import PoolingBackward
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.pooling_indices import PoolingIndices

#: Packs of dx that a block makes at once, and lanes among them.
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


#: A thread of `unpool_apart` has so many elements of a window, and makes so many of dx; one of
#: `unpool_tile` so many of a stride of dx.
APART_TAPS, APART_ELEMENTS, CELL_ELEMENTS = 16, 48, 32
#: Strides one below the other that a thread makes where rows are staged: fewer windows an element.
STAGED_CELLS = 2
#: Shared memory for the x and dx of a box of rows and for its windows, at the most.
MOST_STAGE_BYTES = 46 * 1024


class Tile(NamedTuple):
    """The box of dx that a block makes: elements along b, d, h and w, and packs of lanes."""

    b: int
    d: int
    h: int
    w: int
    lanes: int

    def windows(self, window: tuple[int, ...], stride: tuple[int, ...], down: int = 1) -> int:
        """How many windows touch the box, of whole strides, times its packs of lanes: at most.

        Of `down` strides along h, where a thread makes so many of them.
        """
        cells = (stride[0], down * stride[1], stride[2])
        touching = [
            (-(-size // cell) * cell + k - 2) // s + 1
            for size, cell, k, s in zip(self[1:4], cells, window, stride, strict=True)
        ]
        return self.b * math.prod(touching) * self.lanes


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


def _phases(
    tile: Tile, sizes: Sequence[int], begin: Sequence[int], stride: Sequence[int]
) -> list[int]:
    """Where in a stride the tiles begin along d, h and w; -1 where not all do at the same."""
    return [
        first % step if size <= piece or piece % step == 0 else -1
        for piece, size, first, step in zip(tile[1:4], sizes[2:5], begin, stride, strict=True)
    ]


def choose_rows(
    sizes: tuple[int, ...],
    item_bytes: int,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    lane_bytes: int,
    *,
    phase: int = 0,
    whole: bool,
) -> tuple[Tile, int] | None:
    """The tile of whole rows for dx of `sizes` without lanes, and its words; None if none fits.

    Planes, as many as there is room for, else a band of rows of one. A tile of `whole` planes reads
    no rows of x but theirs. `phase` is where in a stride dx begins.

    >>> choose_rows((1, 10**5, 1, 13, 13, 1), 4, (1, 3, 3), (1, 2, 2), 6, whole=True)
    (Tile(b=24, d=1, h=13, w=13, lanes=1), 4060)
    >>> choose_rows((1, 10**4, 1, 224, 224, 1), 4, (1, 3, 3), (1, 2, 2), 6, whole=True)
    (Tile(b=1, d=1, h=16, w=224, lanes=1), 4260)
    """
    height, width = sizes[3:5]
    for nbytes in (STAGE_BYTES, STAGE_BYTES // 2):
        left = nbytes // item_bytes
        b = max(planes_a_block(sizes, left), 1)
        cell = STAGED_CELLS * stride[1]
        h = height if height * width <= left else max(left // width // cell, 1) * cell
        rows = h
        if not whole or h < height:
            # The first window that touches it begins so far before it.
            shift = (phase - window[1]) % stride[1] + window[1] - stride[1]
            of_x = (-(-h // cell) * cell - 1 + shift) // stride[1] * stride[1] + window[1]
            rows = max(h, of_x)
        words = stage_words(b * rows * width, item_bytes)
        tile = Tile(b, 1, h, width, 1)
        shared = words * item_bytes + tile.windows(window, stride, STAGED_CELLS) * lane_bytes
        if shared <= MOST_STAGE_BYTES:
            return tile, words
    return None


def plan_pooling_backward(
    operation: PoolingBackward,
    y: DeviceView | None,
    dy: DeviceView,
    x: DeviceView | None,
    dx: DeviceView,
) -> Launch | None:
    """Choose the kernel of pooling_backward.cu; None if there is nothing to do."""
    forward = operation.forward
    for name, view, shape in (
        ("dx", dx, operation.output_shape),
        ("dy", dy, forward.output_shape),
        ("y", y, forward.output_shape),
        ("x", x, forward.x_shape),
    ):
        if view is not None:
            check(name, view, shape, operation.dtype)
    if dx.size == 0:
        return None
    # The absent ones take the place of another and are never read.
    views = [dx, y or dy, dy, x or dx]
    axes = six_axes(views, lanes=lane_axis(views))
    sizes = axes[0].sizes
    window = three(forward.window, 1)
    # The stride of a single window says nothing: one as long as the window tells that none overlap.
    stride = tuple(
        max(step, size) if windows == 1 else step
        for step, size, windows in zip(
            three(forward.stride, 1), window, three(forward.output_shape[2:], 1), strict=True
        )
    )
    before = three([pair[0] for pair in forward.padding], 0)
    origin = three(operation.origin, 0)

    count = max(PACK_BYTES // dx.item_bytes, 1)
    while count > sizes[5]:
        count //= 2
    for view, each in zip(views, axes, strict=True):
        count = min(count, aligned_pack(view, each, 5, count))
    real_bytes = 8 if operation.dtype == "float64" else 4
    taps = math.prod(window)
    lane_bytes = real_bytes + (forward.is_max and (2 if taps < 2**15 else 4))
    phases = [(o + p) % step for o, p, step in zip(origin, before, stride, strict=True)]
    lane_packs = -(-sizes[5] // count)
    cell = math.prod(stride[1:]) * count
    plain = window[0] == stride[0] == 1 and not before[0]
    apart = (
        plain and not any(phases[1:]) and taps <= APART_TAPS and cell <= APART_ELEMENTS
        and all(k <= step for k, step in zip(window[1:], stride[1:], strict=True))
    )  # fmt: skip
    tile = choose_tile(sizes, count, window, stride, lane_bytes) if taps < 2**30 else None
    stage = 0
    if plain and sizes[5] == 1 and cell <= CELL_ELEMENTS and is_packed(axes[0]):
        x_sizes = axes[3].sizes
        whole = not origin[1] and x_sizes == sizes
        wide_enough = is_packed(axes[3]) and not origin[2] and x_sizes[4] == sizes[4]
        rows = None
        if not forward.is_max or (wide_enough and (whole or sizes[1] == 1)):
            rows = choose_rows(
                sizes, dx.item_bytes, window, stride, lane_bytes, phase=phases[1], whole=whole
            )
        if rows is not None:
            tile, stage = rows

    small = is_small(views, *[view.size for view in views], *window, *stride, *before)
    arguments = [index_type(small=small), CUDA_TYPES[operation.dtype], str(mode_number(forward))]
    windows = (*window, *stride)
    if apart and sizes[5] > 1:
        arguments += [str(count)]
        windows = (*window[1:], *stride[1:])
        tiles = [
            1,
            1,
            *(-(-size // step) for size, step in zip(sizes[3:5], stride[1:], strict=True)),
        ]
        total = math.prod(sizes[:3]) * math.prod(tiles) * lane_packs
        name, blocks = "unpool_apart", -(-total // BLOCK_THREADS)
        lane_tiles = 1
    elif tile is not None:
        by_warp = forward.is_max and taps >= WARP_TAPS
        starts = _phases(tile, sizes, [o + p for o, p in zip(origin, before, strict=True)], stride)
        wide = 1
        if count == 1 and not stage:
            wide = aligned_pack(dx, axes[0], 4, PACK_BYTES // dx.item_bytes)
        while wide > 1 and tile.w % wide and tile.w < sizes[4]:
            wide //= 2
        alike = cell <= CELL_ELEMENTS and min(starts[1:]) >= 0
        cells = (STAGED_CELLS if stage else 1) if alike and wide == 1 else 0
        arguments += [boolean(by_warp), str(count), str(wide), str(stage), str(cells)]
        arguments += map(str, (*tile, *starts))
        tiles = [
            -(-size // piece) for size, piece in zip(sizes[1:5], tile[:4], strict=True)
        ]  # b, d, h, w
        lane_tiles = -(-sizes[5] // (tile.lanes * count))
        total = sizes[0] * math.prod(tiles) * lane_tiles
        name, blocks = "unpool_tile", total
    else:
        tiles, lane_tiles, total = [1] * 4, 1, dx.size
        name, blocks = "unpool_direct", -(-total // BLOCK_THREADS)
    arguments += map(str, windows)
    return Launch(
        "pooling_backward.cu",
        f"{name}<{', '.join(arguments)}>",
        grid_of(blocks),
        geometry(
            *(sizes[0], sizes[1], sizes[5]),
            *sizes[2:5],
            *origin,
            *three(forward.x_shape[2:], 1),
            *three(forward.output_shape[2:], 1),
            *before,
            *(step for each in axes for step in each.strides),
            *tiles[1:],
            tiles[0],
            lane_tiles,
            total,
            small=small,
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
