"""Operands as dask arrays: checks of their chunks, and regions of them as tasks.

A region is the chunks that it fills, and strips of those that it cuts: dask's own slices, so what
travels between workers is the halo and no whole neighbour.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.core import flatten

from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import INTEGERS, ITEM_BYTES, TensorSpec, dtype_name

#: Adds to the graph under a key, as dask's documentation of graphs has it.
Tasks = dict[Any, Any]


def as_dask(array: Any, name: str) -> da.Array:
    """An operand as a dask array: what is none becomes a single chunk.

    Raises
    ------
    TypeError, ValueError
        If it is no array, or its chunks have unknown sizes.
    """
    if not isinstance(array, da.Array):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise TypeError(f"{name} must be an array, not {type(array).__name__}")
        return da.from_array(np.asarray(array) if _is_tensor(array) else array, chunks=-1)
    if any(math.isnan(extent) for extent in array.shape):
        raise ValueError(
            f"{name} has chunks of unknown sizes, {array.chunks}; where every chunk begins must be "
            f"known: {name}.compute_chunk_sizes() finds out"
        )
    if 0 in array.shape:
        raise ValueError(f"{name} must not be empty, but has shape {array.shape}")
    if any(0 in axis for axis in array.chunks):  # what a mask leaves of chunks
        array = array.rechunk(tuple(tuple(filter(None, axis)) for axis in array.chunks))
    return array


def _is_tensor(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def spec_of(array: da.Array, name: str, widened: str = "") -> TensorSpec:
    """An operand as a call plans with it; integers as they are once they have been `widened`."""
    dtype = dtype_name(array.dtype, name=f"{name}: dtype", integers=bool(widened))
    if dtype in INTEGERS:
        dtype = widened
    return TensorSpec(tuple(map(int, array.shape)), dtype, "pageable")


def check_whole_channels(array: da.Array, name: str, function: str) -> None:
    """Raise ValueError if an array is cut along channels."""
    if array.ndim > 1 and array.numblocks[1] > 1:
        raise ValueError(
            f"{name} is cut along its channels, into {array.chunks[1]}, but {function} needs all "
            f"channels of a position: {name}.rechunk({{1: -1}}) joins them"
        )


def starts(chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the start of each chunk of an axis, and at last its extent.

    >>> starts((4, 4, 2))
    (0, 4, 8, 10)
    """
    return (0, *itertools.accumulate(chunks))


class _Part(NamedTuple):
    """The part of a chunk of one axis, by number, that a range meets; all where `cut` is None."""

    chunk: int
    cut: slice | None


class Regions:
    """Regions of one dask array, as tasks that cut its chunks."""

    def __init__(self, array: da.Array, tasks: Tasks, name: str) -> None:
        self._array, self._tasks, self._name = array, tasks, name
        self._found: dict[tuple[int, Range], tuple[_Part, ...]] = {}
        self._starts = tuple(starts(chunks) for chunks in array.chunks)

    def __getitem__(self, region: Region) -> Any:
        """Nested lists of keys, one level an axis, that `join` makes one array of."""
        return self._nested((), [self._parts(*each) for each in enumerate(region)])

    def _parts(self, axis: int, wanted: Range) -> tuple[_Part, ...]:
        key = axis, wanted
        if key not in self._found:
            self._found[key] = tuple(_parts(self._starts[axis], wanted))
        return self._found[key]

    def _nested(self, before: tuple[_Part, ...], axes: list[tuple[_Part, ...]]) -> Any:
        if not axes:
            return self._key(before)
        return [self._nested((*before, part), axes[1:]) for part in axes[0]]

    def _key(self, parts: tuple[_Part, ...]) -> Any:
        chunk = (self._array.name, *(part.chunk for part in parts))
        if all(part.cut is None for part in parts):
            return chunk
        cuts = tuple(part.cut or slice(None) for part in parts)
        said = "_".join(f"{cut.start}:{cut.stop}" if cut.stop else "" for cut in cuts)
        key = (self._name, *(part.chunk for part in parts), said)
        self._tasks[key] = (operator.getitem, chunk, cuts)
        return key


def _parts(begins: tuple[int, ...], wanted: Range) -> Iterator[_Part]:
    first = bisect_right(begins, wanted[0]) - 1
    for chunk in range(first, len(begins) - 1):
        start, stop = begins[chunk], begins[chunk + 1]
        if start >= wanted[1]:
            return
        inside = max(start, wanted[0]) - start, min(stop, wanted[1]) - start
        if inside[0] < inside[1]:
            yield _Part(chunk, None if inside == (0, stop - start) else slice(*inside))


def join(nested: Any) -> Any:
    """One array of nested lists of them; the array itself where there is one.

    Raises
    ------
    TypeError
        If they are arrays of different frameworks.
    ValueError
        If their shapes do not fit each other.

    >>> join([[np.zeros((1, 2)), np.ones((1, 1))]]).tolist()
    [[0.0, 0.0, 1.0]]
    """
    alone = nested
    while isinstance(alone, list) and len(alone) == 1:
        alone = alone[0]
    if not isinstance(alone, list):
        return alone
    frameworks = sorted({type(each).__module__.partition(".")[0] for each in flatten(nested)})
    if len(frameworks) > 1:
        raise TypeError(
            f"the chunks of one array are arrays of {' and of '.join(frameworks)}: make them alike "
            "with array.map_blocks(numpy.asarray), or cupy.asarray"
        )
    pieces = list(flatten(nested))
    if all(type(each) is np.ndarray and each.dtype.name in ITEM_BYTES for each in pieces):
        return _in_pinned_memory(nested, pieces[0])
    return da.core.concatenate3(nested)


def _in_pinned_memory(nested: Any, first: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same, which is copied to a card without staging; its memory is kept for the next one."""
    chunks = da.core.chunks_from_arrays(nested)
    device, shape = get_device(current().device), tuple(map(sum, chunks))
    out: np.ndarray[Any, Any]
    try:
        out = empty_in(device, "pinned", shape, first.dtype.name, "channels_first")
    except HostOutOfMemoryError:  # it need not be pinned
        out = np.empty(shape, first.dtype)
    for region, chunk in zip(da.core.slices_from_chunks(chunks), flatten(nested), strict=True):
        if out[region].shape != chunk.shape:  # else what it leaves out is what was there before
            raise ValueError(
                f"a chunk has shape {chunk.shape}, where those beside it leave {out[region].shape}"
            )
        out[region] = chunk
    return out
