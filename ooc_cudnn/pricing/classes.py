"""The pieces of a few splits exactly: those that are alike are counted, not gone through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.operations.splittable import AXES, Accumulation, Buffer, Launch, Piece
from ooc_cudnn.pricing.axes import Axes
from ooc_cudnn.pricing.piece_costs import PieceCosts
from ooc_cudnn.pricing.pieces import BYTES, ELEMENTS, Pieces, along_axes, small_enough
from perfmodel import Split


class PieceClass(NamedTuple):
    """Pieces of equal shape and place in the sum: one of them, and how many."""

    piece: Piece
    place: Accumulation
    times: int


def piece_classes(axes: Axes, split: Split, down: bool) -> Iterator[PieceClass]:
    """The pieces of a split by class; `down` where pieces follow each other down the rows."""
    images, channels, inputs = (axes.classes(a, getattr(split, a)) for a in ("n", "c_y", "c_x"))
    rows = axes.row_classes(split.h_y, down)
    for sweep in range(axes.call.sweeps):
        for found in itertools.product(images, channels, rows, inputs):
            n, c_y, h_y, c_x = found
            place = Accumulation(all(one.first for one in found), all(one.last for one in found))
            piece = Piece(n.range, c_y.range, h_y.range, c_x.range, sweep, h_y.after)
            yield PieceClass(piece, place, math.prod(one.times for one in found))


def launches_of(
    axes: Axes, costs: PieceCosts, split: Split, down: bool
) -> dict[Launch, Mapping[str, Buffer]]:
    """Every different launch of a split, with its buffers."""
    found: dict[Launch, Mapping[str, Buffer]] = {}
    for piece, place, _ in piece_classes(axes, split, down):
        launches, buffers = costs.launches(piece, place)
        for launch in launches:
            found.setdefault(launch, buffers)
    return found


def counted(axes: Axes, splits: Sequence[Split], rows: Sequence[Mapping[str, Any]]) -> Pieces:
    """Return a table of legal splits, of which the pieces were counted by `row`."""
    sizes = {axis: np.array([getattr(split, axis) for split in splits]) for axis in AXES}
    names = dict.fromkeys(name for row in rows for name in row["blocks"])

    def column(of: Any) -> Any:
        return np.array([of(row) for row in rows], float)

    blocks = {name: column(lambda row, name=name: row["blocks"].get(name, 0)) for name in names}
    return Pieces(
        **along_axes(axes, sizes),
        read_bytes={
            name: column(lambda row, name=name: row["read_bytes"][name])
            for name in axes.call.loaded
        },
        apart={way: column(lambda row, way=way: row["apart"][way]) for way in axes.request.ways},
        seconds=column(lambda row: row["seconds"]),
        first_seconds=column(lambda row: row["first_seconds"]),
        last_seconds=column(lambda row: row["last_seconds"]),
        launching=column(lambda row: row["launching"]),
        blocks=blocks,
        legal=small_enough(axes, sizes["n"], blocks),
    )


def row(axes: Axes, costs: PieceCosts, split: Split, down: bool) -> dict[str, Any]:
    """Count the pieces of a split."""
    call, blocks = axes.call, {ELEMENTS: 0, BYTES: 0}
    seconds = launching = 0.0
    first: Piece | None = None
    for piece, place, times in piece_classes(axes, split, down):
        cost = costs.of(piece, place)
        if first is None:
            first, first_seconds = piece, cost.seconds
        for block, count in cost.blocks.items():
            blocks[block] = max(blocks.get(block, 0), count)
        blocks[ELEMENTS] = max(blocks[ELEMENTS], cost.largest_elements)
        blocks[BYTES] = max(blocks[BYTES], cost.largest_bytes)
        seconds += times * cost.seconds
        launching += times * cost.launching
    assert first is not None
    last_sweep = first._replace(sweep=call.sweeps - 1)
    rows = axes.row_classes(split.h_y, down)
    return {
        "blocks": blocks,
        "seconds": seconds,
        "first_seconds": first_seconds,
        "last_seconds": cost.seconds,
        "launching": launching,
        "read_bytes": {name: read_bytes(axes, name, rows) for name in call.loaded},
        "apart": {
            (way, name): axes.apart_seconds_per_byte(way, name, last_sweep)
            for way, name in axes.request.ways
        },
    }


def read_bytes(axes: Axes, name: str, rows: Sequence[Any]) -> float:
    """Bytes of all regions of an operand once, under some classes of rows."""
    spec, call = axes.request.specs[name], axes.call
    if "h_y" not in call.operands[name].axes or len(spec.shape) < 3:
        return spec.nbytes
    return spec.nbytes / spec.shape[call.row_axis] * axes.rows_read(name, list(rows))
