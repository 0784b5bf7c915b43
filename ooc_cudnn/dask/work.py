"""Tasks of a worker: one block each, by the engine, under the worker's own settings.

Device, memory limit and machine model are the worker's. What shapes numbers (`allow_tf32`,
`deterministic`, `verify`) are those of the client, when the array was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ooc_cudnn.dask.chunks import join
from ooc_cudnn.dask.versions import check_version, version
from ooc_cudnn.functions.call.decorator import call as run_call
from ooc_cudnn.functions.call.spec import Description, Specs
from ooc_cudnn.network.ir.tensor import extents
from ooc_cudnn.operations.core.block_calls import TileCall, call_of_tile
from ooc_cudnn.operations.core.call import Region, Tile, TiledCall
from ooc_cudnn.settings import current, settings
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import dtype_name, numpy_dtype

#: The settings that a task takes from its client.
FROM_CLIENT = ("allow_tf32", "deterministic", "verify")


def client_settings() -> dict[str, Any]:
    """Settings in force here that tasks take along."""
    return {name: getattr(current(), name) for name in FROM_CLIENT}


@dataclass(frozen=True)
class Work:
    """Data that all blocks of an array have in common; one key of its graph.

    Attributes
    ----------
    function : str
        What profiles and errors call it.
    call : TiledCall
        The whole call.
    operands : tuple of str
        Those that tasks are given arrays for, in their order.
    result : str
        The operand that is made.
    settings : mapping
        `client_settings`.
    version : str
        Of the client's library; a worker with another one refuses the work.
    """

    function: str
    call: TiledCall
    operands: tuple[str, ...]
    result: str
    settings: Mapping[str, Any]
    version: str = field(default_factory=version)


@dataclass(frozen=True)
class Part:
    """One block of a `Work`, and the region of the result that is wanted."""

    block: Tile
    wanted: Region


def run_block(work: Work, part: Part, *operands: Any) -> Any:
    """Make one block.

    Parameters
    ----------
    *operands : nested lists of arrays
        For `Work.operands`, what the block touches of each.
    """
    check_version(work.version)
    with settings(**work.settings, progress=False):
        tile = _call_of(work, part.block)
        arrays = {
            name: _widened(join(nested), tile.call.operands[name].dtype)
            for name, nested in zip(work.operands, operands, strict=True)
        }
        for name, array in arrays.items():
            if tuple(array.shape) != extents(tile.regions[name]):
                raise ValueError(
                    f"{work.function}: a chunk of {name} has shape {tuple(array.shape)}, where the "
                    f"dask array says {extents(tile.regions[name])}"
                )

        def build(specs: Specs, settings: Settings) -> TiledCall:
            return tile.call

        description = Description(build, arrays, (tile.call,), results=tile.call.results)
        result = run_call(work.function, description)
    if len(tile.call.results) > 1:
        result = result[tile.call.results.index(work.result)]
    return trim(result, tile.regions[work.result], part.wanted)


@lru_cache(maxsize=1024)
def _remembered(call: TiledCall, block: Tile) -> TileCall:
    return call_of_tile(call, block)


def _call_of(work: Work, block: Tile) -> TileCall:
    """The call of a block; an equal one is the same object, so its plan is found again."""
    return _remembered(work.call, block)


def _widened(array: Any, dtype: str) -> Any:
    """Images that travelled as integers, in the type of the call."""
    if dtype_name(array.dtype, integers=True) == dtype:
        return array
    return array.astype(numpy_dtype(dtype))


def trim(array: Any, made: Region, wanted: Region) -> Any:
    """The region that is wanted, of a larger one that was made."""
    if made == wanted:
        return array
    cut = tuple(slice(b[0] - a[0], b[1] - a[0]) for a, b in zip(made, wanted, strict=True))
    return array[cut].copy()
