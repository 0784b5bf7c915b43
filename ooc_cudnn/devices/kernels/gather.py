"""The choice between the kernels of gather_*.cu, for what is made of elements as they are.

Crops, padding, strided parts and nearest neighbours, and the gradients of all these. Where channels
lie side by side `gather_nhwc` has packs of them; elsewhere, and where they are no whole packs,
`gather_nchw` has packs of whole rows, which begin anywhere.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    boolean,
    index_type,
    is_small,
)
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct, largest
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.kernels.pooling import SixAxes, aligned_pack, lane_axis, six_axes
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.resampling.axis_windows import Windows
from ooc_cudnn.operations.resampling.forward import Ranges, Resampling

#: Packs of a thread of `gather_nhwc`: those of copies are all loaded before the first is stored.
UNROLL, UNROLL_SUMS = 4, 1
#: Packs of a thread of `gather_nchw`.
ROW_PACKS = 4
#: Packs of channels of fewer bytes are slower than rows that are put together.
FEWEST_LANE_BYTES = 8
#: Neighbouring threads move a multiple of so many packs of a row together: lines of the cache.
LINE_PACKS = 8


class Edges(NamedTuple):
    """Along one axis: the run of place k begins at floor((k times + plus) / over) in the source.

    It ends where that of the next place begins.
    """

    times: int
    plus: int
    over: int
    extent: int  # of the source

    @property
    def fields(self) -> dict[str, int]:
        """The struct `GatherAxis` of gather.cuh."""
        whole, rest = divmod(self.times, self.over)
        return {**self._asdict(), "whole": whole, "rest": rest}

    @classmethod
    def forward(cls, windows: Windows, first: int, begin: int, extent: int) -> Edges:
        """Edges of outputs from `first` on, in a part of x of that extent from `begin` on.

        >>> Edges.forward(Windows(5, 7, step=1, before=1), 2, 0, 5)
        Edges(times=1, plus=1, over=1, extent=5)
        """
        plus = first * windows.step - (windows.before + begin) * windows.per
        return cls(windows.step, plus, windows.per, extent)

    @classmethod
    def backward(cls, windows: Windows, first: int, begin: int, extent: int) -> Edges:
        """Edges of elements of x from `first` on, in a part of y of that extent from `begin` on.

        Output o sees i where i + before is floor(o step / per).

        >>> Edges.backward(Windows(5, 7, step=1, before=1), 2, 0, 7)
        Edges(times=1, plus=3, over=1, extent=7)
        """
        step, per = windows.step, windows.per
        return cls(per, (first + windows.before) * per + step - 1 - begin * step, step, extent)


MISSING = Edges(1, 0, 1, 1)


def is_gather(forward: Resampling) -> bool:
    """True if each output is one element of x, as it is, or none."""
    return not forward.is_max and all(
        isinstance(windows, Windows) and windows.reach == 1 and windows.step > 0
        for windows in forward.windows
    )


def plan(
    forward: Resampling,
    makes: Ranges,
    result: DeviceView,
    source: DeviceView,
    begins: Ranges,
    *,
    backward: bool,
) -> Launch | None:
    """Choose a kernel that makes a part of y of a part of x, or of dx of dy; None for no elements.

    `makes` is where the result is in the whole, `begins` where the source is.
    """
    if result.size == 0:
        return None
    lanes = lane_axis([result])
    out, read = six_axes([result, source], lanes=lanes)
    if lanes is not None:  # of the source they may lie apart
        read = read._replace(strides=(*read.strides[:5], source.strides[lanes]))
    edges, takes_one = [MISSING] * (3 - len(makes)), True
    spatial = zip(forward.windows, makes, begins, source.shape[2:], strict=True)
    for windows, (first, _), (begin, _), extent in spatial:
        assert isinstance(windows, Windows)
        of = Edges.backward if backward else Edges.forward
        edges.append(of(windows, first, begin, extent))
        takes_one = takes_one and (not backward or windows.step == windows.per)
    widest = WIDEST_ACCESS_BYTES // result.item_bytes
    count = lane_pack(out, read, result, source, widest)
    if _has_rows(out) and (count == 1 or count * result.item_bytes < FEWEST_LANE_BYTES):
        name, count, packs_each = "gather_nchw", widest, ROW_PACKS
        # Where some row begins within a pack, it is one more.
        aligned = aligned_pack(result, out, 5 if out.sizes[5] > 1 else 4, widest) == widest
        row_packs = -(-(out.sizes[4] * out.sizes[5] + (0 if aligned else widest - 1)) // widest)
    else:
        name, packs_each = "gather_nhwc", UNROLL if takes_one else UNROLL_SUMS
        row_packs = out.sizes[4] * -(-out.sizes[5] // count)
    rows = math.prod(out.sizes[:4])
    blocks = block_over(rows, row_packs, packs_each)
    fill = partial(
        fill_struct,
        **out.outer_sizes,
        made=out.sizes[2:5],
        result=out.strides,
        source=read.strides,
        axis=[edge.fields for edge in edges],
        rows=rows,
        row_packs=row_packs,
        column_tiles=blocks.column_tiles,
        tiles=blocks.tiles,
    )
    file = f"{name}.cu"
    wide = fill(file, "Gather<long long>")
    reach = (
        edge.times * (size + widest) + abs(edge.plus)
        for edge, size in zip(edges, out.sizes[2:5], strict=True)
    )
    small = is_small([result, source], largest(wide), *reach, rows * row_packs * widest)
    arguments = (
        index_type(small=small),
        CUDA_TYPES[forward.dtype],
        boolean(takes_one),
        str(count),
        str(packs_each),
    )
    return Launch(
        file,
        f"{name}<{', '.join(arguments)}>",
        grid_of(blocks.tiles),
        fill(file, "Gather<int>") if small else wide,
        blocks.block,
    )


def lane_pack(
    made: SixAxes, read: SixAxes, result: DeviceView, source: DeviceView, most: int
) -> int:
    """Lanes of a pack that is an aligned access in both."""
    while most > made.sizes[5]:
        most //= 2
    return aligned_pack(source, read, 5, aligned_pack(result, made, 5, most))


def _has_rows(made: SixAxes) -> bool:
    """True if (w, lane) is one run of memory."""
    return made.sizes[4] == 1 or made.strides[4] == made.sizes[5]


class Blocks(NamedTuple):
    """Layout of blocks of threads over rows."""

    block: tuple[int, int]
    column_tiles: int
    tiles: int


def block_over(rows: int, packs: int, packs_each: int) -> Blocks:
    """Lay blocks of threads over rows of packs; a thread has so many packs of a row, at the most.

    >>> block_over(1000, 9088, 4)
    Blocks(block=(256, 1), column_tiles=9, tiles=9000)
    >>> block_over(1000, 14, 4)
    Blocks(block=(8, 32), column_tiles=1, tiles=32)
    """
    column_tiles = -(-packs // (BLOCK_THREADS * packs_each))
    lines = -(-packs // (column_tiles * packs_each * LINE_PACKS))
    across = min(packs, lines * LINE_PACKS)
    down = BLOCK_THREADS // across
    return Blocks((across, down), column_tiles, -(-rows // down) * column_tiles)
