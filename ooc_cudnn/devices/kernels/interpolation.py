"""The choice between the kernels of interpolation.cu: linear interpolation, and its gradient."""

from __future__ import annotations

import math
from functools import partial

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    three,
)
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct, largest
from ooc_cudnn.devices.kernels.gather import Edges, block_over, lane_pack
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.launch_geometry import grid_of
from ooc_cudnn.devices.kernels.pooling import aligned_pack, lane_axis, six_axes
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.resampling.axis_windows import Linear
from ooc_cudnn.operations.resampling.forward import Ranges, Resampling

#: Packs of a thread, which share their row.
PACKS = 4
#: Sites of a pack: registers hold the neighbours of each.
MOST_SITES = 4
MISSING = Linear(1, 1, 1, 1, 0)


def is_linear(forward: Resampling) -> bool:
    """True if each output lies between neighbours along every axis."""
    return all(isinstance(windows, Linear) for windows in forward.windows)


def _edges(windows: Linear) -> Edges:
    """Output o lies at (o times + plus) / over in x."""
    plus = windows.half * (windows.step - windows.per)
    return Edges(2 * windows.step, plus, 2 * windows.per, windows.extent)


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
    lanes = lane_axis([result, source])
    out, read = six_axes([result, source], lanes=lanes)
    widest = WIDEST_ACCESS_BYTES // result.item_bytes
    if lanes is None:
        name, along = "rows", 4
        count = min(widest, MOST_SITES)
        while count > out.sizes[along]:
            count //= 2
        count = aligned_pack(result, out, along, count)
        row_packs = -(-out.sizes[along] // count)
    else:
        name, count = "lanes", lane_pack(out, read, result, source, widest)
        row_packs = out.sizes[4] * -(-out.sizes[5] // count)
    axes = [MISSING] * (3 - len(makes))
    axes += [windows for windows in forward.windows if isinstance(windows, Linear)]
    edges = [_edges(windows) for windows in axes]
    rows = math.prod(out.sizes[:4])
    blocks = block_over(rows, row_packs, PACKS)
    fill = partial(
        fill_struct,
        "interpolation.cu",
        **out.outer_sizes,
        made=out.sizes[2:5],
        first=three([start for start, _ in makes], 0),
        begins=three([start for start, _ in begins], 0),
        result=out.strides,
        source=read.strides,
        axis=[edge.fields for edge in edges],
        count=[windows.count for windows in axes],
        rows=rows,
        row_packs=row_packs,
        column_tiles=blocks.column_tiles,
        tiles=blocks.tiles,
    )
    wide = fill("Interpolation<long long>")
    # Places are computed for a few outputs behind the last one, and offsets from where the whole
    # source would begin.
    places = (
        (windows.count + widest) * edge.times + windows.extent * edge.over + abs(edge.plus)
        for windows, edge in zip(axes, edges, strict=True)
    )
    ends = zip(three([stop for _, stop in begins], 1), read.strides[2:5], strict=True)
    last = sum((stop - 1) * step for stop, step in ends)
    numbers = (largest(wide), *places, last, rows * row_packs * count)
    small = is_small([result, source], *numbers)
    types = index_type(small=small), CUDA_TYPES[forward.dtype]
    return Launch(
        "interpolation.cu",
        instance(f"interpolate_{name}", *types, backward, count, PACKS),
        grid_of(blocks.tiles),
        fill("Interpolation<int>") if small else wide,
        blocks.block,
    )
