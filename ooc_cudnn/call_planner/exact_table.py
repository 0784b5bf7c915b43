"""Exact costs of a few tilings, counting classes of equal tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.call_planner.axes import Axes
from ooc_cudnn.call_planner.piece_costs import PieceCosts
from ooc_cudnn.call_planner.pieces import Pieces
from ooc_cudnn.operations.core.call import Accumulation, Piece
from perfmodel import Split


class EqualPieces(NamedTuple):
    """Pieces of equal shape and place in the sum: one of them, and how many."""

    piece: Piece
    place: Accumulation
    times: int


def equal_pieces(axes: Axes, split: Split, down: bool) -> Iterator[EqualPieces]:
    """The pieces of a split by class; `down` where pieces follow each other down the rows."""
    images, channels, inputs = (axes.classes(a, getattr(split, a)) for a in ("n", "c_y", "c_x"))
    rows = axes.classes("h_y", split.h_y, down)
    for sweep in range(axes.call.sweeps):
        for group in itertools.product(images, channels, rows, inputs):
            n, c_y, h_y, c_x = group
            place = Accumulation(all(one.first for one in group), all(one.last for one in group))
            piece = Piece(n.range, c_y.range, h_y.range, c_x.range, sweep, h_y.after)
            yield EqualPieces(piece, place, math.prod(one.times for one in group))


def count_pieces(axes: Axes, costs: PieceCosts, split: Split, down: bool) -> dict[str, Any]:
    """Count the pieces of a legal split: a row of `Pieces`, but for what all rows share."""
    blocks = dict[str, int]()
    seconds = launching = 0.0
    every = [
        (piece, times, costs.of(piece, place))
        for piece, place, times in equal_pieces(axes, split, down)
    ]
    for _, times, cost in every:
        seconds += times * cost.seconds
        launching += times * cost.launching
        for block, count in cost.blocks.items():
            blocks[block] = max(blocks.get(block, 0), count)
    (first, _, first_cost), (_, _, last_cost) = every[0], every[-1]
    last_sweep = first._replace(sweep=axes.call.sweeps - 1)
    rows = axes.classes("h_y", split.h_y, down)
    return {
        **axes.along(lambda axis, of: of(getattr(split, axis))),
        "read_bytes": {name: axes.read_bytes(name, rows) for name in axes.call.loaded},
        "apart": {way: axes.apart_seconds_per_byte(*way, last_sweep) for way in axes.request.ways},
        "seconds": seconds,
        "first_seconds": first_cost.seconds,
        "last_seconds": last_cost.seconds,
        "launching": launching,
        "blocks": blocks,
    }


def stack_rows(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> Pieces:
    """Return some rows as a table."""
    return Pieces(request=axes.request, **_columns(rows))


def _columns(rows: Sequence[Any]) -> Any:
    if not isinstance(rows[0], Mapping):
        return np.array(rows, float)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _columns([row.get(name, 0) for row in rows]) for name in names}
