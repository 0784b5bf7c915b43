"""Lazy results: a described call on dask arrays becomes a dask array.

Forward functions and gradients of data make a block of the result for each chunk; what is summed
over images and sites makes a part for each, and a tree of sums in a fixed order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ooc_cudnn.dask.chunks import Regions, Tasks, as_dask, check_whole_channels, spec_of, starts
from ooc_cudnn.dask.work import Part, Work, client_settings, run_block
from ooc_cudnn.functions.call.spec import Description
from ooc_cudnn.operations.core.block_calls import (
    call_of_tile,
    legal_cuts,
    may_be_tiled,
)
from ooc_cudnn.operations.core.call import Tile, TiledCall
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import DTYPES, INTEGERS, numpy_dtype

#: So many parts of a sum are added in one task.
SUMMED_AT_ONCE = 8
#: The operands that may be integers: stored images.
IMAGES = ("x",)

Arrays = Mapping[str, da.Array]


def lazily(function: str, description: Description) -> da.Array:
    """The result of a call on dask arrays, block by block.

    Raises
    ------
    TypeError, ValueError
        As the function on plain arrays; and for chunks that cannot be.
    """
    arrays, call = describe_operands(function, description)
    return map_blocks(function, call, arrays)


def describe_operands(function: str, description: Description) -> tuple[Arrays, TiledCall]:
    """The operands of a call as dask arrays, and the whole call."""
    operands = {**description.arrays, **description.beside}
    arrays = {name: as_dask(array, name) for name, array in operands.items()}
    dtype = _floating(arrays)
    specs = {
        name: spec_of(array, name, dtype if name in IMAGES else "")
        for name, array in arrays.items()
    }
    call = description.build(specs, current())
    return {name: arrays[name] for name in description.arrays}, call


def _floating(arrays: Arrays) -> str:
    """The type that integers are widened to: the other operands', float32 where there is none."""
    found = [str(array.dtype) for array in arrays.values() if str(array.dtype) not in INTEGERS]
    return max(
        (name for name in found if name in DTYPES), key=DTYPES.__getitem__, default="float32"
    )


def map_blocks(function: str, call: TiledCall, arrays: Arrays) -> da.Array:
    """The first result of a call, a block for each chunk."""
    cuts = _cuts(function, call, arrays)
    work, blocks, tasks, name = _begun(function, call, arrays, cuts)
    result = call.operands[work.result]
    for index, block in blocks.items():
        wanted = (block.images, _channels_of(call, block), *block.sites)
        tasks[(name, *index)] = _task(function, work, Part(block, wanted), arrays, tasks, name)
    channels = cuts[1] if call.keeps_channels else (0, result.shape[1])
    chunks = tuple(
        tuple(stop - start for start, stop in pairwise(each))
        for each in (cuts[0], channels, *cuts[2:])
    )
    return _array(name, tasks, arrays, chunks, result.dtype)


def _channels_of(call: TiledCall, block: Tile) -> Range:
    if call.keeps_channels:
        return block.channels
    return (0, call.operands[call.results[0]].shape[1])


def sum_blocks(
    function: str,
    call: TiledCall,
    arrays: Arrays,
    finish: Callable[..., Any],
    *,
    fold: Callable[[list[Any]], Any] | None = None,
    in_order: bool = False,
    shape: tuple[int, ...],
    dtype: str,
) -> da.Array:
    """Sum over all blocks: parts, a tree of folds in a fixed order, and `finish`.

    Parameters
    ----------
    fold : callable
        Makes one part of a list of them; their sum in float64 when left out.
    in_order : bool
        Whether all parts are folded at once, each after the one before.
    finish : callable
        Of the last part the result, of this shape and dtype.
    """
    cuts = _cuts(function, call, arrays)
    work, blocks, tasks, name = _begun(function, call, arrays, cuts, str(finish))
    whole = tuple((0, extent) for extent in call.operands[work.result].shape)
    part, parts = name_keys(name, "part"), []
    for index, block in blocks.items():
        parts.append((part, *index))
        tasks[parts[-1]] = _task(function, work, Part(block, whole), arrays, tasks, name)
    level, width = 0, len(parts) if in_order else SUMMED_AT_ONCE
    while len(parts) > 1:
        groups = [parts[at : at + width] for at in range(0, len(parts), width)]
        parts = [(name_keys(name, "sum"), level, at) for at in range(len(groups))]
        tasks.update(
            (key, (fold or total, group)) for key, group in zip(parts, groups, strict=True)
        )
        level += 1
    tasks[(name, *(0 for _ in shape))] = (finish, parts[0])
    return _array(name, tasks, arrays, tuple((extent,) for extent in shape), dtype)


def total(parts: list[Any]) -> Any:
    """Parts added one after the other, in float64.

    >>> total([np.float32([1, 2]), np.float32([3, 4])]).tolist()
    [4.0, 6.0]
    """
    found = parts[0].astype("float64")
    for part in parts[1:]:
        found = found + part
    return found


# Cutting ------------------------------------------------------------------------------------------


def _cuts(function: str, call: TiledCall, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
    """The starts of blocks on each axis, and at last its extent: over the chunks of an operand."""
    shape = call.tile_shape
    if not may_be_tiled(call):
        return tuple((0, extent) for extent in shape)
    name = _guide(call, arrays)
    guide = arrays[name]
    channels: tuple[int, ...] = (0, shape[1])
    if call.keeps_channels:
        channels = starts(guide.chunks[1])
    else:
        for operand in call.streamed:
            if operand in arrays:
                check_whole_channels(arrays[operand], operand, function)
    sites = []
    for axis in range(2, len(shape)):
        cuts: Iterable[int] = starts(guide.chunks[axis])
        if tuple(guide.shape[2:]) != tuple(shape[2:]):
            cuts = _cuts_over(call, name, axis, cuts)
        sites.append(legal_cuts(call, axis, cuts))
    return starts(guide.chunks[0]), channels, *sites


def _guide(call: TiledCall, arrays: Arrays) -> str:
    """The operand whose chunks the result follows: one of its shape, or what leads the call."""
    shape = call.tile_shape
    streamed = [name for name in call.streamed if name in arrays]
    alike = [name for name in streamed if tuple(arrays[name].shape) == tuple(shape)]
    for names in (("x",), ("y",), tuple(streamed)):
        for name in names:
            if name in alike:
                return name
    return call.lead if call.lead in arrays else streamed[0]


def _cuts_over(call: TiledCall, name: str, axis: int, cuts: Iterable[int]) -> list[int]:
    """Rows of what is cut whose windows have their middle at these rows of an operand."""
    turned = call.along(axis)
    whole = turned.whole_piece()

    def middle(row: int) -> int:
        region = turned.region(name, whole._replace(h_y=(row, row + 1))) or ()
        return (region[axis][0] + region[axis][1] - 1) // 2

    rows = range(turned.extents.h_y)
    return [bisect_left(rows, cut, key=middle) for cut in cuts]


# Graphs -------------------------------------------------------------------------------------------


def _begun(
    function: str,
    call: TiledCall,
    arrays: Arrays,
    cuts: tuple[tuple[int, ...], ...],
    *more: Any,
) -> tuple[Work, dict[tuple[int, ...], Tile], Tasks, str]:
    """The work, its blocks by their place in the grid, the first tasks, and the array's name."""
    from_client = client_settings()
    result = call.results[0]
    work = Work(function, call, tuple(arrays), result, from_client)
    token = tokenize(
        function,
        repr(call),
        sorted(from_client.items()),
        cuts,
        [a.name for a in arrays.values()],
        more,
    )
    name = f"{function}-{token}"
    blocks = {}
    for index in product(*(range(len(each) - 1) for each in cuts)):
        images, channels, *sites = (
            (each[at], each[at + 1]) for at, each in zip(index, cuts, strict=True)
        )
        blocks[index] = Tile(images, channels, tuple(sites))
    return work, blocks, {name_keys(name, "work"): work}, name


def _task(
    function: str, work: Work, part: Part, arrays: Arrays, tasks: Tasks, name: str
) -> tuple[Any, ...]:
    regions = call_of_tile(work.call, part.block).regions
    operands = [
        Regions(array, tasks, name_keys(name, f"halo_{operand}"))[regions[operand]]
        for operand, array in arrays.items()
    ]
    return (run_block, name_keys(name, "work"), part, *operands)


def name_keys(name: str, kind: str) -> str:
    """Keys beside those of an array; dask's fusing joins names, so none may be another's end.

    >>> name_keys("pooling_forward-0a1b", "halo_x")
    'pooling_forward_halo_x-0a1b'
    """
    function, _, token = name.rpartition("-")
    return f"{function}_{kind}-{token}"


def _array(
    name: str, tasks: Tasks, arrays: Arrays, chunks: tuple[tuple[int, ...], ...], dtype: str
) -> da.Array:
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=list(arrays.values()))
    lead = next(iter(arrays.values()))
    meta = da.utils.meta_from_array(lead._meta, ndim=len(chunks), dtype=numpy_dtype(dtype))
    return da.Array(graph, name, chunks, meta=meta)


def drop_scaling(call: TiledCall) -> TiledCall:
    """The same with alpha 1: of what is summed it is for the sum."""
    plain: Any = call
    made: TiledCall = replace(plain, alpha=1.0)
    return made


def scaled_to(alpha: float, dtype: str) -> Callable[..., Any]:
    """Return the function from a sum to a result: times alpha, in its type."""
    return _Scaled(alpha, dtype)


class _Scaled:
    def __init__(self, alpha: float, dtype: str) -> None:
        self.alpha, self.dtype = alpha, dtype

    def __repr__(self) -> str:
        return f"scaled by {self.alpha} to {self.dtype}"

    def __call__(self, part: Any) -> Any:
        return (self.alpha * part if self.alpha != 1 else part).astype(numpy_dtype(self.dtype))


def as_numpy(array: Any) -> Any:
    """A small array of any framework as NumPy's."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
