"""What all splits made of some piece sizes are estimated to cost, at once.

The formulas of `Counted` stand here once more, for arrays of axes (rings, n, c_y, h_y, c_x). Pieces
come from `piece_model`, so an estimate is good to a few percent; it says which splits are
worth pricing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.operations.splittable import AXES, SWEEP, Piece
from ooc_cudnn.pipeline.counted import RING_DEPTHS
from ooc_cudnn.pipeline.loop_orders import LoopOrder, different_orders
from ooc_cudnn.pipeline.piece_model import BYTES, ELEMENTS, PieceModel, Sizes, Values
from ooc_cudnn.pipeline.request import (
    ALIGNMENT,
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Request,
)
from perfmodel import Split
from perfmodel.search_guided import WORTH_A_CUT, WORTH_TWICE_THE_PIECES

Mask = NDArray[np.bool_]
_ONE: Values = np.ones((1,) * 5)


class Link(NamedTuple):
    """Seconds of moving an operand one way: so many per byte, and so many per copy."""

    per_byte: float
    per_copy: float


class Grid:
    """Every split made of some piece sizes, largest first on each axis."""

    def __init__(
        self, request: Request, layout: str, sizes: Sizes, looked_at: Sizes | None = None
    ) -> None:
        self.request, self.call, self.sizes = request, request.chain, sizes
        self.shape = tuple(len(sizes[axis]) for axis in AXES)
        self.ranges = {
            axis: [self.call.axis_ranges(axis, size) for size in sizes[axis]] for axis in AXES
        }
        self.counts = {
            axis: self._along(axis, [len(cut) for cut in self.ranges[axis]]) for axis in AXES
        }
        self.pieces = _product(self.counts.values())
        model = PieceModel(request.piece_costs(layout), sizes, looked_at)
        self.memory = {name: values[np.newaxis] for name, values in model.memory.items()}
        self.compute_seconds: Values = (
            self.pieces * model.launch_seconds + model.work_seconds + model.completing_seconds
        )
        results = _product(self.counts[axis] for axis in AXES if axis not in self.call.reduced)
        self.launched = self.pieces * model.launches + results * model.completing_launches
        self.piece_seconds = self.compute_seconds / (self.pieces * self.call.sweeps)

    def _along(self, axis: str, values: Sequence[float]) -> Values:
        """Values along one axis, to be broadcast."""
        if len(values) == 1 and values[0] == 1:
            return _ONE
        shape = [1] * 5
        shape[1 + AXES.index(axis)] = len(values)
        return np.array(values, dtype=np.float64).reshape(shape)

    # Operands -----------------------------------------------------------------------------------

    @cached_property
    def seen(self) -> dict[str, dict[str, Values]]:
        """How many regions of each operand the ranges of each axis make."""
        call = self.call
        return {
            name: {
                axis: self._along(axis, [call.distinct(name, axis, cut) for cut in cuts])
                for axis, cuts in self.ranges.items()
            }
            for name in call.operands
        }

    @cached_property
    def distinct(self) -> dict[str, Values]:
        """How many different regions of each operand the pieces need."""
        return {name: _product(seen.values()) for name, seen in self.seen.items()}

    @cached_property
    def outside(self) -> dict[str, Mask | bool]:
        """Where an operand is not computed on as it lies."""
        found: dict[str, Mask | bool] = dict.fromkeys(self.call.operands, True)
        for name, may_cut_n in self.request.computed_on_in_place.items():
            axes = self.call.operands[name].axes - ({"n"} if may_cut_n else set())
            found[name] = _product([self.counts[axis] for axis in axes]) > 1
        return found

    @cached_property
    def bytes_read(self) -> dict[str, Values]:
        """Bytes of all different regions of an operand, halo rows as often as they are needed."""
        found = {}
        for name in self.call.loaded:
            spec, operand = self.request.specs[name], self.call.operands[name]
            found[name] = _ONE * spec.nbytes
            if "h_y" in operand.axes and len(spec.shape) > 2 and self.pieces is not _ONE:
                found[name] = found[name] / spec.shape[2] * self._rows_read(name)
        return found

    def _rows_read(self, name: str) -> Values:
        """Rows of an operand that all pieces of each size read, one image and channel of it."""
        height, call = self.request.specs[name].shape[2], self.call
        rows = []
        n, c_y, c_x = (self.ranges[axis][0][0] for axis in ("n", "c_y", "c_x"))
        for cuts in self.ranges["h_y"]:
            count = len(cuts)
            if count == 1:
                rows.append(float(height))
                continue
            at = count // 2
            piece = Piece(n, c_y, cuts[at], c_x, call.sweeps - 1, cuts[at - 1])
            region = call.region(name, piece)
            read = region[2][1] - region[2][0] if region else 0
            own = height * (cuts[at][1] - cuts[at][0]) / cuts[-1][1]
            # All pieces but one have the rows beside their own.
            rows.append(height + (count - 1) * max(read - own, 0.0))
        return self._along("h_y", rows)

    def _loads(self, name: str, slots: Values, order: LoopOrder) -> Values:
        """How many regions are copied in: `Counted.loads`.

        A loop that a region does not depend on loads again what does not fit the slots of all
        regions that the loops inside it need.
        """
        inner, loads = self.distinct[name], self.distinct[name]
        for axis in order:
            if axis == SWEEP:
                again = self.call.sweeps_of(name)
                if again > 1:
                    loads = loads * np.where(inner > slots, float(again), 1.0)
                continue
            times, seen = self.counts[axis], self.seen[name][axis]
            if times is _ONE:
                continue
            if seen is not _ONE:
                inner = inner / seen
            if seen is _ONE or name in self._partly_seen:
                loads = loads * np.where(inner > slots, times / seen, 1.0)
        return loads

    @cached_property
    def _partly_seen(self) -> set[str]:
        """Operands of which several ranges of an axis may see one region: groups of channels."""
        return {
            name
            for name, seen in self.seen.items()
            if any(
                seen[axis] is not _ONE and (seen[axis] != self.counts[axis]).any() for axis in AXES
            )
        }

    # The price ----------------------------------------------------------------------------------

    def _link(self, direction: Literal["in", "out"], name: str) -> Link:
        """The line that the seconds of an operand's copies lie on."""
        count = self.request.specs[name].nbytes
        one, two = (self.request.copy_seconds(direction, name, count, copies) for copies in (1, 2))
        return Link((2 * one - two) / max(count, 1), two - one)

    @cached_property
    def _ways(self) -> list[tuple[Literal["in", "out"], str]]:
        """What crosses the link, and which way."""
        ways: list[tuple[Literal["in", "out"], str]] = [("in", name) for name in self.call.loaded]
        return ways + [("out", name) for name in self.call.results]

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(way, name): self._link(way, name) for way, name in self._ways}

    @cached_property
    def _apart(self) -> dict[tuple[str, str], Values]:
        """What a byte takes longer in rows that lie apart: `TransferModel.apart_seconds_per_byte`.

        Where several axes are cut, the one whose pieces lie in the narrowest rows tells.
        """
        found: dict[tuple[str, str], Values] = {}
        for way, name in self._ways:
            slower: Values = np.zeros((1,) * 5)
            for axis in self.call.operands[name].axes - {"n"}:
                if self.counts[axis] is not _ONE:
                    slower = np.maximum(slower, self._apart_along(axis, way, name))
            found[way, name] = slower
        return found

    def _apart_along(self, axis: str, way: Literal["in", "out"], name: str) -> Values:
        """The same, where one axis alone is cut: the width of rows is as the piece's extent."""
        cuts, request = self.ranges[axis], self.request
        least = {other: self.ranges[other][0][0] for other in AXES} | {axis: cuts[-1][0]}
        rows = request.rows(name, Piece(**least, sweep=self.call.sweeps - 1))
        unit = rows.width_bytes / (cuts[-1][0][1] - cuts[-1][0][0])
        values = [
            request.apart_seconds_per_byte(
                way, name, rows._replace(width_bytes=unit * (cut[0][1] - cut[0][0]))
            )
            if len(cut) > 1
            else 0.0
            for cut in cuts
        ]
        return self._along(axis, values)

    def _rings(self, order: LoopOrder) -> tuple[Values, Mask | bool]:
        """Slots to try, deepest first, with parameters whole and, if that matters, in a ring."""
        depths: list[Values] = [_ONE * depth for depth in RING_DEPTHS]
        if self.call.sweeps > 1:
            block = self._block(order)
            depths = [2 * block, block + 1, block, *depths]
        elif self.pieces is _ONE:
            depths = depths[-1:]
        shape = np.broadcast_shapes(*(depth.shape for depth in depths))
        stacked = np.concatenate([np.broadcast_to(depth, shape) for depth in depths])
        parameters = set(self.call.operands) - set(self.call.streamed)
        if all(self.distinct[name].max() == 1 for name in parameters):
            return stacked, True
        whole = np.repeat([True, False], len(stacked)).reshape(-1, 1, 1, 1, 1)
        return np.concatenate([stacked, stacked]), whole

    def _block(self, order: LoopOrder) -> Values:
        """Pieces of one sweep before the next: `PieceClasses.block_pieces`."""
        inside = order[order.index(SWEEP) + 1 :] if SWEEP in order else ()
        return _product([self.counts[axis] for axis in inside])

    def seconds(self, order: LoopOrder, limit_bytes: int) -> Values:
        """Seconds of every split with its best rings; infinite where none fit: `Counted.priced`."""
        call, (depths, whole), at_once = self.call, self._rings(order), self._block(order)
        memory: Values = self._scratch_bytes
        copy_in = first_in = np.zeros((1,) * 5)
        steps = self.pieces * call.sweeps
        stays: Mask = np.ones((1,) * 5, bool)
        for name in call.operands:
            distinct, streamed = self.distinct[name], name in call.streamed
            slots = np.minimum(distinct, depths)
            if streamed and call.sweeps > 1 and call.sweeps_of(name) == 1:
                slots = np.minimum(slots, float(RING_DEPTHS[0]))
            elif not streamed:
                slots = distinct if whole is True else np.where(whole, distinct, slots)
            memory = memory + slots * self._slot_bytes[name]
            if name not in call.loaded:
                continue
            loads, link = self._loads(name, slots, order), self._links["in", name]
            per_byte = link.per_byte + self._apart["in", name]
            per_load = per_byte * self.bytes_read[name] / distinct + link.per_copy
            spent = per_load * loads * self.outside[name]
            steps = steps + loads * self.outside[name]
            copy_in = copy_in + spent
            first_in = first_in + spent * np.minimum(1.0, (at_once if streamed else 1.0) / loads)
            if streamed and call.sweeps > 1:
                stays = stays & (loads == distinct)
        copy_out = last_out = np.zeros((1,) * 5)
        for name in call.results:
            distinct, link = self.distinct[name], self._links["out", name]
            per_byte = link.per_byte + self._apart["out", name]
            spent = per_byte * self.request.specs[name].nbytes + link.per_copy * distinct
            spent = spent * self.outside[name]
            steps = steps + distinct * self.outside[name]
            copy_out = copy_out + spent
            kept = np.where(stays & (name in call.streamed), at_once, 1.0)
            last_out = last_out + spent * np.minimum(1.0, kept / distinct)
        latency_in, latency_out = self.request.latency
        copy_in, first_in = copy_in + latency_in, first_in + latency_in
        copy_out, last_out = copy_out + latency_out, last_out + latency_out
        compute, piece = self.compute_seconds, self.piece_seconds
        # perfmodel.closed_form, with and without overlap
        slowdown = self.request.slowdown
        both = np.minimum(
            (copy_in - first_in) * slowdown.copy_in, (copy_out - last_out) * slowdown.copy_out
        )
        slowed_in = copy_in + both * (1.0 - 1.0 / slowdown.copy_in)
        slowed_out = copy_out + both * (1.0 - 1.0 / slowdown.copy_out)
        machine = self.request.machine
        issue = steps * machine.step_seconds + self.launched * machine.launch_seconds
        overlapped = np.maximum(
            np.maximum(np.maximum(slowed_in + piece, first_in + compute), issue) + last_out,
            first_in + piece + slowed_out,
        )
        seconds = np.where(
            (depths > 1) & (self.pieces * call.sweeps > 1),
            overlapped,
            np.maximum(copy_in + compute + copy_out, issue),
        )
        seconds = seconds + machine.call_seconds
        seconds = np.where((memory <= limit_bytes) & self._legal, seconds, np.inf)
        best: Values = np.broadcast_to(seconds.min(axis=0), self.shape)
        return best

    @cached_property
    def _slot_bytes(self) -> dict[str, Values]:
        """Of each operand; nothing where it needs no slot."""
        return {
            name: _aligned(self.memory[name]) * self.outside[name] for name in self.call.operands
        }

    @cached_property
    def _scratch_bytes(self) -> Values:
        """Of everything that is no operand."""
        beside = set(self.memory) - set(self.call.operands) - {ELEMENTS, BYTES}
        return sum((_aligned(self.memory[name]) for name in beside), _ONE * 0)

    @cached_property
    def _legal(self) -> Mask:
        """Whether the call can be cut so, into pieces that are not too large."""
        batch = np.array(self.sizes["n"]).reshape(1, -1, 1, 1, 1) <= LARGEST_BATCH
        found: Mask = batch & (self.memory[ELEMENTS] <= LARGEST_PIECE_ELEMENTS)
        found = found & (self.memory[BYTES] <= LARGEST_PIECE_BYTES)
        if self.shape[1] == 1 or self.shape[3] == 1:
            return found
        whole = self.call.extents
        table = [
            [self.call.is_legal(Split(whole.n, c_y, c_x, whole.h_y)) for c_x in self.sizes["c_x"]]
            for c_y in self.sizes["c_y"]
        ]
        channels: Mask = np.array(table).reshape(1, 1, len(table), 1, -1)
        return found & channels

    @property
    def floor_seconds(self) -> float:
        """About what no split can be faster than: it all crosses the link once, and is computed."""
        floor = self.request.floor
        # one piece comes in before the first is computed, and one leaves after the last
        ends = (floor.streamed_in + floor.streamed_out) / self.pieces
        return max(floor.seconds, float((self.compute_seconds + ends).min()))

    # The best -----------------------------------------------------------------------------------

    @property
    def orders(self) -> tuple[LoopOrder, ...]:
        """The loop orders that differ for splits of this grid."""
        counts = {axis: 1 if self.counts[axis] is _ONE else 2 for axis in AXES}
        return different_orders(self.request.loop_orders, counts | {SWEEP: self.call.sweeps})

    def best(self, limit_bytes: int, count: int) -> Iterator[tuple[float, Split]]:
        """The splits that are estimated to be fastest, in no order, with their seconds."""
        seconds = self.seconds(self.orders[0], limit_bytes)
        for order in self.orders[1:]:
            seconds = np.minimum(seconds, self.seconds(order, limit_bytes))
        seconds = seconds.ravel()
        rank = seconds * self._caution
        count = min(count, len(rank))
        for at in np.argpartition(rank, count - 1)[:count]:
            if np.isfinite(rank[at]):
                chosen = np.unravel_index(at, self.shape)
                sizes = {axis: self.sizes[axis][i] for axis, i in zip(AXES, chosen, strict=True)}
                yield float(seconds[at]), Split(**sizes)

    @cached_property
    def _caution(self) -> Values:
        """`perfmodel.search_guided.caution` of every split."""
        found: Values = 1.0 + WORTH_TWICE_THE_PIECES * np.log2(self.pieces)
        for axis, worth in WORTH_A_CUT.items():
            found = found + worth * (self.counts[axis] > 1)
        return np.broadcast_to(found[0], self.shape).ravel()


def _product(values: Iterable[Values]) -> Values:
    found = _ONE
    for each in values:
        if each is not _ONE:
            found = found * each
    return found


def _aligned(count: Values) -> Values:
    aligned: Values = np.ceil(count / ALIGNMENT) * ALIGNMENT
    return aligned
