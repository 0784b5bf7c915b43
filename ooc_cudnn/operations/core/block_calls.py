"""Block calls: a call cut along images, channels and every spatial axis at once.

A piece is cut along one spatial axis, its plan's rows, and lives inside its call. A tile may be
cut along all of them, and what it takes and makes is whole for whoever runs it: another machine.
Which elements of an operand a tile touches is what pieces along each axis say (`TiledCall`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ooc_cudnn.operations.core.call import Region, Tile, TiledCall
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.row_axis import ROW_AXIS


class TileCall(NamedTuple):
    """A call for a tile, and the region of the whole call's operands that each of its own is."""

    call: TiledCall
    regions: Mapping[str, Region]


def whole_tile(call: TiledCall) -> Tile:
    """The tile that is all of a call."""
    images, channels, *sites = _whole(call.tile_shape)
    return Tile(images, channels, tuple(sites))


def call_of_tile(call: TiledCall, tile: Tile) -> TileCall:
    """The call that makes a tile; its results may be larger, where whole windows are looked at.

    What it touches along one axis does not depend on the others.

    Raises
    ------
    TypeError
        If calls of its kind are not made in tiles.
    """
    if tile == whole_tile(call) and not may_be_tiled(call):
        wholes = {name: _whole(operand.shape) for name, operand in call.operands.items()}
        return TileCall(call, wholes)
    return TileCall(call.on_tile(tile), _regions(call, tile))


def is_made_in_tiles(call: TiledCall) -> bool:
    """True if there are calls for tiles of some sites: not where all are summed over first."""
    return call.sweeps == 1 and type(call).on_tile is not TiledCall.on_tile


def may_be_tiled(call: TiledCall) -> bool:
    """True if it may be cut at all: not if all it makes is made of padding."""
    axes = range(ROW_AXIS, len(call.tile_shape))
    return not any(
        turned.reads_nothing((0, turned.extents.h_y)) for turned in map(call.along, axes)
    )


def legal_cuts(call: TiledCall, axis: int, cuts: Iterable[int]) -> tuple[int, ...]:
    """Select places to cut a spatial axis at, between which every tile has something to read.

    An output row may see padding alone, and a row of x may be seen by no window.
    """
    turned, legal = call.along(axis), [0]
    extent = turned.extents.h_y
    for cut in sorted(set(cuts)):
        if legal[-1] < cut < extent and not turned.reads_nothing((legal[-1], cut)):
            legal.append(cut)
    while len(legal) > 1 and turned.reads_nothing((legal[-1], extent)):
        legal.pop()
    return (*legal, extent)


def _whole(shape: Shape) -> Region:
    return tuple((0, extent) for extent in shape)


def _regions(call: TiledCall, tile: Tile) -> dict[str, Region]:
    """Region of each operand that a tile touches: along each axis that of a piece of these rows."""
    piece = call.whole_piece(call.sweeps - 1)._replace(n=tile.images)
    if call.keeps_channels:
        piece = piece._replace(c_y=tile.channels)
    regions = {name: list(call.region(name, piece) or ()) for name in call.operands}
    for axis, rows in enumerate(tile.sites, ROW_AXIS):
        turned = call.along(axis)
        for name, region in regions.items():
            if len(region) > axis:
                region[axis] = turned.tile_rows(name, rows)
    return {name: tuple(region) for name, region in regions.items()}
