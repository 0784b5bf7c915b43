"""All splits made of some piece sizes, as arrays: what they move, hold and compute.

The formulas of `Counted` stand here once more, for arrays of axes (rings, n, c_y, h_y, c_x). Pieces
come from `piece_model`, so what is told of a split is good to a few percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.memory.alignment import ALIGNMENT
from ooc_cudnn.operations.splittable import AXES, SWEEP
from ooc_cudnn.pipeline.loop_orders import LoopOrder, different_orders
from ooc_cudnn.pipeline.piece_model import BYTES, ELEMENTS, PieceModel, Sizes, Values
from ooc_cudnn.pipeline.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Request,
)
from perfmodel import Split
from perfmodel.cached import cached_property

Mask = NDArray[np.bool_]
#: An axis that is not cut; told by identity, so that nothing is multiplied by it.
ONE: Values = np.ones((1,) * 5)
#: Where the values along an axis stand among those of all.
ALONG: dict[str, tuple[slice | None, ...]] = {
    axis: (None, *(slice(None) if axis == other else None for other in AXES)) for axis in AXES
}


class Grid:
    """Every split made of some piece sizes, largest first on each axis."""

    def __init__(
        self, request: Request, layout: str, sizes: Sizes, looked_at: Sizes | None = None
    ) -> None:
        self.request, self.call, self.sizes = request, request.chain, sizes
        self.shape = tuple(len(sizes[axis]) for axis in AXES)
        self.costs, self.cuts = request.piece_costs(layout), request.cuts
        lengths = {axis: self.cuts.lengths(axis, sizes[axis]) for axis in AXES}
        self.counts = {axis: self._along(axis, lengths[axis].times) for axis in AXES}
        self.pieces = product(self.counts.values())
        model = PieceModel(self.costs, self.cuts, sizes, looked_at)
        self.names, self.memory = model.names, model.memory[:, np.newaxis]
        self.compute_seconds: Values = (
            self.pieces * model.launch_seconds + model.work_seconds + model.completing_seconds
        )
        results = product(self.counts[axis] for axis in AXES if axis not in self.call.reduced)
        self.launching_seconds: Values = (
            self.pieces * model.launching + results * model.completing_launching
        )
        self.steps = self.pieces * self.call.sweeps
        self.piece_seconds = self.compute_seconds / self.steps

    def _along(self, axis: str, values: Sequence[float] | Values) -> Values:
        """Values along one axis, to be broadcast."""
        if len(values) == 1 and values[0] == 1:
            return ONE
        found: Values = np.asarray(values, np.float64)[ALONG[axis]]
        return found

    # Operands -----------------------------------------------------------------------------------

    @cached_property
    def seen(self) -> dict[str, dict[str, Values]]:
        """How many regions of each operand the ranges of each axis make."""
        found = {}
        for name, operand in self.call.operands.items():
            seen = found[name] = dict.fromkeys(AXES, ONE)
            for axis in operand.axes:
                if self.counts[axis] is not ONE:
                    seen[axis] = self.counts[axis]
                    if self.cuts.are_shared(name, axis):
                        each = [self.cuts.seen(name, axis, size) for size in self.sizes[axis]]
                        seen[axis] = self._along(axis, each)
        return found

    @cached_property
    def distinct(self) -> dict[str, Values]:
        """How many different regions of each operand the pieces need."""
        return {name: product(seen.values()) for name, seen in self.seen.items()}

    @cached_property
    def outside(self) -> dict[str, Mask | bool]:
        """Where an operand is not computed on as it lies."""
        found: dict[str, Mask | bool] = dict.fromkeys(self.call.operands, True)
        for name, may_cut_n in self.request.computed_on_in_place.items():
            axes = self.call.operands[name].axes - ({"n"} if may_cut_n else set())
            found[name] = product([self.counts[axis] for axis in axes]) > 1
        return found

    def where_moved(self, name: str, values: Values) -> Values:
        """Values where an operand is brought to a slot, nothing where it is computed on."""
        outside = self.outside[name]
        return values if outside is True else values * outside

    @cached_property
    def bytes_read(self) -> dict[str, Values]:
        """Bytes of all different regions of an operand, halo rows as often as they are needed."""
        found = {}
        for name in self.call.loaded:
            spec, operand = self.request.specs[name], self.call.operands[name]
            found[name] = ONE * spec.nbytes
            if "h_y" in operand.axes and len(spec.shape) > 2 and self.pieces is not ONE:
                rows = [self.cuts.rows_read(name, size) for size in self.sizes["h_y"]]
                row_bytes = spec.nbytes / spec.shape[self.call.row_axis]
                found[name] = self._along("h_y", rows) * row_bytes
        return found

    @cached_property
    def partly_seen(self) -> set[str]:
        """Operands of which several ranges of an axis may see one region: groups of channels."""
        return {
            name
            for name, operand in self.call.operands.items()
            if any(
                self.counts[axis] is not ONE and self.cuts.are_shared(name, axis)
                for axis in operand.axes
            )
        }

    # The link -----------------------------------------------------------------------------------

    @cached_property
    def apart(self) -> dict[tuple[str, str], Values]:
        """What a byte takes longer in rows that lie apart: `TransferModel.apart_seconds_per_byte`.

        Where several axes are cut, the one whose pieces lie in the narrowest rows tells.
        """
        found: dict[tuple[str, str], Values] = {}
        for way, name in self.request.ways:
            slower: Values = np.zeros((1,) * 5)
            for axis in self.call.operands[name].axes - {"n"}:
                if self.counts[axis] is ONE:
                    continue
                sizes, of = self.sizes[axis], self.cuts.apart_seconds_per_byte
                if any(of(way, name, axis, sizes[-1:])):  # the narrowest rows take longest
                    slower = np.maximum(slower, self._along(axis, of(way, name, axis, sizes)))
            found[way, name] = slower
        return found

    # Memory -------------------------------------------------------------------------------------

    @cached_property
    def _aligned(self) -> dict[str, Values]:
        """What each block takes in the arena."""
        aligned = np.ceil(self.memory / ALIGNMENT) * ALIGNMENT
        return dict(zip(self.names, aligned, strict=True))

    @cached_property
    def slot_bytes(self) -> dict[str, Values]:
        """Of each operand; nothing where it needs no slot."""
        return {name: self.where_moved(name, self._aligned[name]) for name in self.call.operands}

    @cached_property
    def scratch_bytes(self) -> Values:
        """Of everything that is no operand."""
        beside = set(self.names) - set(self.call.operands) - {ELEMENTS, BYTES}
        return sum((self._aligned[name] for name in beside), ONE * 0)

    @cached_property
    def legal(self) -> Mask:
        """Whether the call can be cut so, into pieces that are not too large."""
        batch = np.array(self.sizes["n"]).reshape(1, -1, 1, 1, 1) <= LARGEST_BATCH
        found: Mask = batch & (self._largest(ELEMENTS) <= LARGEST_PIECE_ELEMENTS)
        found = found & (self._largest(BYTES) <= LARGEST_PIECE_BYTES)
        if self.shape[1] == 1 or self.shape[3] == 1:
            return found
        whole = self.call.extents
        # Channels in groups cannot be cut just as one likes; others can.
        if self.costs.channels_cut_freely:
            return found
        table = [
            [self.call.is_legal(Split(whole.n, c_y, c_x, whole.h_y)) for c_x in self.sizes["c_x"]]
            for c_y in self.sizes["c_y"]
        ]
        channels: Mask = np.array(table).reshape(1, 1, len(table), 1, -1)
        return found & channels

    def _largest(self, what: str) -> Values:
        found: Values = self.memory[self.names.index(what)]
        return found

    @property
    def orders(self) -> tuple[LoopOrder, ...]:
        """The loop orders that differ for splits of this grid."""
        counts = {axis: 1 if self.counts[axis] is ONE else 2 for axis in AXES}
        return different_orders(self.request.loop_orders, counts | {SWEEP: self.call.sweeps})


def product(values: Iterable[Values]) -> Values:
    """The product of arrays of axes."""
    found = ONE
    for each in values:
        if each is not ONE:
            found = found * each
    return found
