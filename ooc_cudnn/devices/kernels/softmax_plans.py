"""The kernel of a softmax over the channels, and its geometry. Plain functions, no GPU.

Channels that are contiguous are rows: in the registers of a few threads or a block each
(`softmax_rows`), by way of shared memory where rows do not begin on wide boundaries
(`softmax_staged`), or, beyond all registers of a block, in chunks (`softmax_long`). The longest are
swept like images, by many blocks each. Contiguous sites are columns: in registers
(`softmax_columns`) or swept twice (`softmax_columns_swept`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, Rows, grid_of, pack_size
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.tensor import ACCUMULATOR, ITEM_BYTES

#: Of `Task` in softmax_steps.cuh.
FORWARD = ("ACCURATE", "LOG")
#: Whose strides the structs have.
OPERANDS = ("result", "first", "second")

WARP = 32
#: Numbers of packs or items that kernels are compiled for.
PACKS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
#: Bytes that neighbouring threads read together, at the least: a line of the cache.
LINE_BYTES = 128
STAGE_BYTES = (16384, 32768)
#: Registers that a thread of a column has for values, in bytes of the arithmetic type.
COLUMN_BYTES = 256
#: Threads that share a row, where a warp is too few: a block (1024 have registers for
#: one operand); and those of a row in chunks.
BLOCK_LANES = (BLOCK_THREADS, 2 * BLOCK_THREADS)
FORWARD_LANES = (*BLOCK_LANES, 4 * BLOCK_THREADS)
CHUNK_LANES = 4 * BLOCK_THREADS
#: Longer rows are shared by all blocks: a block's second reading would miss the cache. How many
#: rows there are does not count, so that rows of a piece have the same bits as all.
LONG_ROW = 2**17
#: So few short rows take less time than the way through shared memory, as wide as their packs are.
FEW_ROWS = 2**12
STAGED_ROWS = 8  # a multiple of it is whole packs, whatever the channels


class SitesByChannels(NamedTuple):
    """Sizes (n, c, sites) and each operand's strides; images are joined where they can be."""

    images: int
    channels: int
    sites: int
    strides: tuple[tuple[int, int, int], ...]

    @property
    def is_rows(self) -> bool:
        """True if the channels are contiguous in every operand."""
        return all(stride[1] == 1 for stride in self.strides)


def sites_by_channels(views: Sequence[DeviceView]) -> SitesByChannels:
    """Read sizes and strides off the views; images that continue each other's sites are joined."""
    (n, c, s), _ = views[0].flat()
    strides = tuple(view.flat()[1] for view in views)
    if c == 1:  # no stride to speak of
        strides = tuple((of_n, 1, of_s) for of_n, _, of_s in strides)
    if s == 1:
        strides = tuple((0, of_c, of_n) for of_n, of_c, _ in strides)
        n, s = 1, n
    elif n == 1 or all(of_n == s * of_s for of_n, _, of_s in strides):
        n, s = 1, n * s
    return SitesByChannels(n, c, s, strides)


def lane_elements(dtype: str) -> int:
    """Elements of one operand's row that a thread keeps in registers."""
    return 16 if dtype == "float64" else 32


def _at_least(number: int) -> int:
    return next(packs for packs in PACKS if packs >= number)


def plan_rows(task: str, views: Sequence[DeviceView], sites: SitesByChannels) -> Launch:
    """Choose the kernel for contiguous channels."""
    dtype, item = views[0].dtype, views[0].item_bytes
    channels = sites.channels
    rows = Rows(
        (sites.images, sites.sites, channels),
        tuple((of_n, of_s, 1) for of_n, _, of_s in sites.strides),
        True,
        True,
    )
    full = WIDEST_ACCESS_BYTES // item
    count = pack_size(rows, views)
    packs, total = -(-channels // count), sites.images * sites.sites
    may_stage = count < full and all(stride[2] == channels for stride in sites.strides)
    # A thread has a row, as in a stage: the sum is of the same order, and so are its bits.
    alone = may_stage and channels <= WARP and total <= FEW_ROWS
    if may_stage and not alone:
        staged = _plan_staged(task, views, sites)
        if staged is not None:
            return staged

    most = lane_elements(dtype)
    lanes = 1
    while not alone and lanes < min(packs, WARP) and lanes * count * item < LINE_BYTES:
        lanes *= 2
    while lanes < WARP and -(-packs // lanes) * count > most:
        lanes *= 2
    forward = task in FORWARD
    name = "softmax_rows"
    if -(-packs // lanes) * count > most:
        blocks = FORWARD_LANES if forward else BLOCK_LANES
        fitting = [block for block in blocks if -(-packs // block) * count <= most]
        lanes = fitting[0] if fitting else CHUNK_LANES
        name = "softmax_rows" if fitting else "softmax_long"
    per_lane = -(-packs // lanes)
    if name == "softmax_long":
        # Registers are of this chunk and of the next, and of the two operands of a gradient.
        halves = 2 if forward or item < 4 else 4
        per_lane = max(most // halves // count, 1)
    threads = max(BLOCK_THREADS, lanes)
    tiles = -(-total // (threads // lanes))
    return Launch(
        "softmax.cu",
        f"{name}<{CUDA_TYPES[dtype]}, {task}, {count}, {_at_least(per_lane)}, {lanes}>",
        grid_of(tiles),
        _row_geometry(views, sites, 1, tiles, sites.sites),
        (threads, 1),
    )


def _row_geometry(
    views: Sequence[DeviceView], sites: SitesByChannels, tile: int, tiles: int, middle_tiles: int
) -> np.ndarray:
    strides = [(of_n, of_s, 1) for of_n, _, of_s in sites.strides]
    return fill_struct(
        *("softmax.cu", "SoftmaxRows"),
        size=(sites.images, sites.sites, sites.channels),
        **dict(zip(OPERANDS, strides, strict=True)),
        tile_rows=tile,
        tiles=tiles,
        middle_tiles=middle_tiles,
    )


def _plan_staged(task: str, views: Sequence[DeviceView], sites: SitesByChannels) -> Launch | None:
    """Rows without gaps, moved many at a time; None if they are too long for that."""
    dtype, item = views[0].dtype, views[0].item_bytes
    channels = sites.channels
    operands = 1 if task in FORWARD else 2
    fitting = [stage for stage in STAGE_BYTES if STAGED_ROWS * channels * item * operands <= stage]
    lanes = 1 if channels <= WARP else 8 if channels <= 2 * WARP else WARP
    if not fitting or -(-channels // lanes) > lane_elements(dtype) * (2 if lanes == 1 else 1):
        return None
    tile = fitting[0] // operands // item // channels // STAGED_ROWS * STAGED_ROWS
    images = Rows(
        (1, sites.images, channels * sites.sites),
        tuple((0, of_n, 1) for of_n, _, _ in sites.strides),
        True,
        True,
    )
    count = pack_size(images, views)
    middle_tiles = -(-sites.sites // tile)
    tiles = sites.images * middle_tiles
    per_lane = _at_least(-(-channels // lanes))
    return Launch(
        "softmax.cu",
        f"softmax_staged<{CUDA_TYPES[dtype]}, {task}, {count}, {per_lane}, {lanes}, {fitting[0]}>",
        grid_of(tiles),
        _row_geometry(views, sites, tile, tiles, middle_tiles),
    )


def plan_columns(task: str, views: Sequence[DeviceView], sites: SitesByChannels) -> Launch:
    """Choose the kernel for contiguous sites; the swept one is right for any strides."""
    dtype = views[0].dtype
    forward = task in FORWARD
    rows = Rows(
        (sites.images, sites.channels, sites.sites),
        sites.strides,
        False,
        sites.sites == 1 or all(stride[2] == 1 for stride in sites.strides),
    )
    count = pack_size(rows, views)

    # In registers: as many threads down a column as its channels need.
    most = COLUMN_BYTES // ITEM_BYTES[ACCUMULATOR[dtype]] // (1 if forward else 2)
    for width in (count, max(1, count // 2)) if rows.contiguous else ():
        down = 1
        while down < WARP and -(-sites.channels // down) * width > most:
            down *= 2
        if -(-sites.channels // down) * width <= most:
            packs = _at_least(-(-sites.channels // down))
            return _columns(
                f"softmax_columns<{CUDA_TYPES[dtype]}, {task}, {width}, {packs}>",
                sites,
                width,
                (BLOCK_THREADS // down, down),
            )

    width = min(count, 4)
    contiguous_channels = sites.is_rows
    return _columns(
        f"softmax_columns_swept<{CUDA_TYPES[dtype]}, {task}, {width}, {4 if width > 1 else 8}>",
        sites,
        width,
        # Threads side by side read neighbours, whichever these are.
        (1, BLOCK_THREADS) if contiguous_channels else (WARP, BLOCK_THREADS // WARP),
    )


def _columns(expression: str, sites: SitesByChannels, count: int, block: tuple[int, int]) -> Launch:
    packs = -(-sites.sites // count)
    tiles = -(-packs // block[0])
    across = -(-packs // tiles)  # equal pieces, so that few threads lie past the end
    return Launch(
        "softmax_columns.cu",
        expression,
        grid_of(sites.images * tiles),
        fill_struct(
            *("softmax_columns.cu", "SoftmaxColumns"),
            images=sites.images,
            channels=sites.channels,
            sites=sites.sites,
            **dict(zip(OPERANDS, sites.strides, strict=True)),
            column_tiles=tiles,
        ),
        (across, block[1]),
    )
