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
    FEWEST_THREADS,
    MODES,
    aligned_pack,
    lane_axis,
    pooling,
    six_axes,
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


#: A thread of `unpool_boxes` looks at so many taps of windows, at the most, all of them unrolled.
BOX_TAPS = 160
#: And makes so many elements.
BOX_ELEMENTS = 32
#: Boxes that are tried, in strides along h and w: where windows overlap, where they do not, and
#: there with lanes. Where windows overlap in packs of lanes, tiles are as fast.
Boxes = tuple[tuple[int, int], ...]
BOXES: Boxes = ((4, 2), (2, 2), (4, 1), (2, 1), (1, 1))
APART_BOXES: Boxes = ((2, 2), (2, 1), (1, 1))
LANE_BOXES: Boxes = ((1, 1),)


class Tile(NamedTuple):
    """The box of dx that a block makes: elements along b, d, h and w, and packs of lanes."""

    b: int
    d: int
    h: int
    w: int
    lanes: int

    def windows(self, window: tuple[int, ...], stride: tuple[int, ...]) -> int:
        """How many windows touch the box, at the most, times its packs of lanes."""
        touching = [
            (size + k - 2) // s + 1 for size, k, s in zip(self[1:4], window, stride, strict=True)
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


def choose_box(
    sizes: tuple[int, ...],
    lanes: int,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    phases: Sequence[int],
) -> tuple[int, int] | None:
    """Return the box of a thread of `unpool_boxes`, in strides; None where it does not serve.

    `sizes` are the six of dx, the last one in packs of so many `lanes`. Larger boxes look at fewer
    windows an element, but hang over the edges of small images.

    >>> choose_box((1, 10**4, 1, 56, 56, 1), 1, (1, 3, 3), (1, 2, 2), (0, 0, 0))
    (4, 2)
    >>> choose_box((1, 10**4, 1, 56, 56, 1), 1, (1, 3, 3), (1, 1, 1), (0, 0, 0)) is None
    True
    """
    if window[0] > 1 or stride[0] > 1:
        return None
    axes = list(zip(window[1:], stride[1:], phases[1:], strict=True))
    beside = [max((k - 1 - phase) // s, 0) + (phase > 0) for k, s, phase in axes]
    if max(beside) > 1:  # too many overlap
        return None

    candidates = APART_BOXES if lanes == 1 else LANE_BOXES
    if any(beside):
        candidates = BOXES if lanes == 1 else ()

    def windows(box: tuple[int, int]) -> int:
        return (box[0] + beside[0]) * (box[1] + beside[1])

    def boxes(box: tuple[int, int]) -> int:
        pairs = zip(sizes[3:5], stride[1:], box, strict=True)
        along = (-(-size // (step * each)) for size, step, each in pairs)
        return math.prod(sizes[:3]) * sizes[5] * math.prod(along)

    fitting = [
        box
        for box in candidates
        if windows(box) * math.prod(window) <= BOX_TAPS
        and math.prod(box) * math.prod(stride) * lanes <= BOX_ELEMENTS
        and (boxes(box) >= FEWEST_THREADS or box == (1, 1))
    ]
    # A thread's other work, its place among them, is as much as some windows.
    return min(fitting, key=lambda box: boxes(box) * (windows(box) + 2), default=None)


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
    lane_packs, box = -(-sizes[5] // count), None
    if not before[0] and taps <= BOX_TAPS:
        box = choose_box((*sizes[:5], lane_packs), count, window, stride, phases)
    tile = choose_tile(sizes, count, window, stride, lane_bytes) if taps < 2**30 else None

    small = is_small(views, *[view.size for view in views], *window, *stride, *before)
    arguments = [index_type(small=small), CUDA_TYPES[operation.dtype], str(MODES[forward.mode])]
    windows = (*window, *stride)
    if box is not None:
        wide = 1
        if count == 1:
            wide = aligned_pack(dx, axes[0], 4, PACK_BYTES // dx.item_bytes)
            wide = math.gcd(wide, box[1] * stride[2])
        padded = any(
            first > 0 or (sites - 1) * step - first + k > extent
            for first, sites, step, k, extent in zip(
                before[1:], axes[2].sizes[3:5], stride[1:], window[1:],
                three(forward.x_shape[2:], 1)[1:], strict=True,
            )
        )  # fmt: skip
        unit = all(each.sizes[4] == 1 or each.strides[4] == 1 for each in axes)
        arguments += [str(count), str(wide), boolean(padded), boolean(unit), *map(str, box)]
        windows = (*phases[1:], *window[1:], *stride[1:])
        pairs = zip(sizes[3:5], stride[1:], box, strict=True)
        tiles = [1, 1, *(-(-size // (step * each)) for size, step, each in pairs)]
        total = math.prod(sizes[:3]) * math.prod(tiles) * lane_packs
        name, blocks = "unpool_boxes", -(-total // BLOCK_THREADS)
        lane_tiles = 1
    elif tile is not None:
        by_warp = forward.is_max and taps >= WARP_TAPS
        wide = aligned_pack(dx, axes[0], 4, PACK_BYTES // dx.item_bytes) if count == 1 else 1
        while wide > 1 and tile.w % wide and tile.w < sizes[4]:
            wide //= 2
        starts = _phases(tile, sizes, [o + p for o, p in zip(origin, before, strict=True)], stride)
        arguments += [boolean(by_warp), str(count), str(wide), *map(str, tile), *map(str, starts)]
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
