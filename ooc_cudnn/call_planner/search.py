"""The search for a split: one grid from lines, and the best of it priced exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.call_planner.axes import Axes
from ooc_cudnn.call_planner.exact_table import count_pieces, equal_pieces, stack_rows
from ooc_cudnn.call_planner.grid_table import Sizes, interpolate_pieces
from ooc_cudnn.call_planner.loop_orders import LoopOrder, different_orders, runs_down
from ooc_cudnn.call_planner.piece_costs import PieceCosts
from ooc_cudnn.call_planner.pieces import Pieces, Values
from ooc_cudnn.call_planner.request import LARGEST_BATCH, Request
from ooc_cudnn.call_planner.slot_rings import Rings, candidate_rings, fill_rings
from ooc_cudnn.call_planner.table import Table, table
from ooc_cudnn.operations.core.call import ALONE, AXES, SWEEP
from ooc_cudnn.operations.core.launch import Buffer, Launch
from perfmodel import Split
from perfmodel.cached import cached_property
from perfmodel.closed_form import Stages, number_at

LaunchOf = tuple[Launch, Mapping[str, Buffer]]

#: Piece sizes of one axis that are looked at, at most.
SIZES = 24
#: Lines may tell so much more memory than a split takes: what is beyond a limit by no more may fit.
SLACK = 0.06
#: Splits of the grid that may be priced exactly, and how many at once.
FINALISTS, AT_ONCE = 64, 4
#: The search goes on as long as the next ones promise to save the first share of the best. Their
#: estimates are taken to be as much too high as the worst one before them, and at least by the
#: second factor.
WORTH_PRICING, TOO_HIGH = 0.003, 0.99
#: One split in so many is priced first. A split is left out if computing it, or issuing its steps,
#: alone takes so many times as long as the best of these.
ONE_IN, TOO_SLOW = 16, 1.5
#: Sizes of an axis that are looked at between two of the grid.
BETWEEN = 4
#: The best of these are told: a plan and its runners-up.
NAMED = 5
#: Share of the seconds that a cut of an axis must save: rows and channels of a tensor are strided,
#: halos and sums are more work, and a prediction sees that only in part.
WORTH_A_CUT = {"h_y": 0.003, "c_x": 0.003, "c_y": 0.003}
#: Share of the seconds that twice as many pieces must save.
WORTH_TWICE_THE_PIECES = 0.0001


class PricedSplit(NamedTuple):
    """Everything that is known of one split of a request, in its best order with its best rings.

    `seconds` are those of the overlapped call, infinite where the split is illegal or nothing fits.
    """

    request: Request
    layout: str
    split: Split
    order: LoopOrder
    rings: tuple[tuple[str, int], ...]
    memory: tuple[tuple[str, int], ...]
    stages: Stages
    seconds: float
    bytes_in: int
    bytes_out: int
    legal: bool

    @property
    def memory_bytes(self) -> int:
        """Device memory, workspace apart."""
        return sum(count for _, count in self.memory)


class Candidate(NamedTuple):
    """A split of the grid, the order that suits it best, and its seconds with caution by lines."""

    split: Split
    order: LoopOrder
    seconds: float


class Search:
    """A request in one layout.

    Parameters
    ----------
    request : Request
    layout : str
    """

    def __init__(self, request: Request, layout: str) -> None:
        self.request, self.call, self.layout = request, request.chain, layout
        self.axes, self.costs = Axes(request), PieceCosts(request, layout)
        self._row = cache(self._counted)

    def candidates(self, axis: str) -> tuple[int, ...]:
        """Piece sizes worth trying on an axis, largest first."""
        extent = getattr(self.call.extents, axis)
        if not self.call.may_cut(axis):
            return (extent,)
        return even_sizes(extent, SIZES, LARGEST_BATCH if axis == "n" else extent)

    @cached_property
    def whole(self) -> tuple[float, int]:
        """Seconds of computing at the least, however cut; and the bytes of all in one piece."""
        compute = self.request.machine.compute
        pieces = [self.call.whole_piece(sweep) for sweep in range(self.call.sweeps)]
        seconds = sum(
            compute.least_seconds(launch.operation.work())
            for piece in pieces
            for launch in self.costs.launches(piece, ALONE)[0]
        )
        return seconds, max(self.costs.of(piece, ALONE).memory_bytes for piece in pieces)

    @cached_property
    def grid(self) -> tuple[Sizes, Pieces]:
        """All splits that are made of the candidates."""
        sizes = {axis: self.candidates(axis) for axis in AXES}
        return sizes, interpolate_pieces(self.axes, self.costs, sizes)

    def best(self, limit_bytes: int, beat: float = math.inf) -> list[PricedSplit]:
        """The few splits that take least and fit, priced exactly, best first.

        None of those that would not `beat` a call of so many seconds is looked for.
        """
        rows, ranks, ratio = dict[Split, tuple[Table, int]](), dict[Split, float](), TOO_HIGH
        ranked = self._ranked(limit_bytes, beat)
        while ranked:
            # each time as many as before together, and a few
            count = len(ranks) + AT_ONCE
            next_ones, ranked = ranked[:count], ranked[count:]
            if next_ones[0].seconds * ratio > min((beat, *ranks.values())) * (1 - WORTH_PRICING):
                break
            for order in {one.order: None for one in next_ones}:
                estimates = {one.split: one.seconds for one in next_ones if one.order == order}
                for split, row in self._exactly(tuple(estimates), (order,), limit_bytes).items():
                    rows[split] = row
                    ranks[split] = _seconds(row) * float(caution(self.counts(split)))
                    ratio = min(ratio, ranks[split] / estimates[split])
        named = sorted(ranks, key=ranks.__getitem__)[:NAMED]
        return [self._priced(split, *rows[split]) for split in named]

    def finer(self, best: PricedSplit, limit_bytes: int) -> PricedSplit:
        """The best of a split of the grid and of those with somewhat larger pieces.

        Where memory is too short for the next size of the grid, pieces may be half as large again.
        """
        around = []
        for axis in AXES:
            size, extent = getattr(best.split, axis), getattr(self.call.extents, axis)
            larger = min((each for each in self.candidates(axis) if each > size), default=size)
            if best.memory_bytes * larger > limit_bytes * size:
                counts = range(-(-extent // larger) + 1, -(-extent // size))
                for count in counts[:: max(1, -(-len(counts) // BETWEEN))]:
                    around.append(replace(best.split, **{axis: -(-extent // count)}))
        neighbours = self.prices(around, limit_bytes, (best.order,))
        return min((best, *neighbours), key=lambda each: each.seconds)

    def _ranked(self, limit_bytes: int, beat: float) -> list[Candidate]:
        """The splits that seem best within a limit, best first."""
        if self.whole[0] >= beat:
            return []
        sizes, pieces = self.grid
        shape, about = [len(sizes[axis]) for axis in AXES], int(limit_bytes * (1 + SLACK))
        orders = self._orders([pieces.counts])
        fit = pieces.legal & (fill_rings(pieces, 1.0, False).memory_bytes <= about)
        places = np.nonzero(np.broadcast_to(fit, shape))
        # leave out what is slow by computing, or by issuing its steps, alone
        some, _ = self._least(pieces.at([along[::ONE_IN] for along in places]), orders[:1], about)
        least = np.maximum(pieces.seconds, pieces.number * self.request.machine.step_seconds)
        least = np.broadcast_to(least, shape)[places]
        if len(least) > FINALISTS:
            enough = np.partition(least, FINALISTS)[FINALISTS]  # the best may be found not to fit
            near = least <= min(max(TOO_SLOW * some.min(initial=np.inf), enough), beat)
            places = tuple(along[near] for along in places)
        pieces = pieces.at(places)
        best, in_order = self._least(pieces, orders, about)
        seconds = best * caution(pieces.counts)
        chosen = np.argsort(seconds, kind="stable")[:FINALISTS]

        def split(row: int) -> Split:
            at = zip(AXES, places, strict=True)
            return Split(**{axis: sizes[axis][along[row]] for axis, along in at})

        return [
            Candidate(split(row), orders[in_order[row]], float(seconds[row]))
            for row in chosen[seconds[chosen] < np.inf]
        ]

    def _least(
        self, pieces: Pieces, orders: Sequence[LoopOrder], limit_bytes: int
    ) -> tuple[Values, Any]:
        """The seconds of each row in the best order with the best rings; and which order it is."""
        seconds: Values = np.full(pieces.seconds.shape, np.inf)
        in_order = np.zeros(seconds.shape, int)
        for index, order in enumerate(orders):
            for priced in self._tables(pieces, order, limit_bytes):
                in_order[priced.seconds < seconds] = index
                np.minimum(seconds, priced.seconds, out=seconds)
        return seconds, in_order

    def _orders(self, counts: Iterable[Mapping[str, Any]]) -> tuple[LoopOrder, ...]:
        """The loop orders that differ for some splits, of which there are so many ranges."""
        most = dict.fromkeys(AXES, 1)
        for each in counts:
            most = {axis: max(most[axis], int(np.max(each[axis]))) for axis in AXES}
        return different_orders(self.request.loop_orders, most | {SWEEP: self.call.sweeps})

    def _tables(self, pieces: Pieces, order: LoopOrder, limit_bytes: int) -> Iterator[Table]:
        for each in candidate_rings(pieces, order, limit_bytes):
            if np.any(each.depth):
                yield table(pieces, order, each)

    def pieces(self, splits: Sequence[Split], down: bool) -> Pieces:
        """The pieces of legal splits, counted; `down` where they follow each other so."""
        return stack_rows(self.axes, [self._row(split, down) for split in splits])

    def _counted(self, split: Split, down: bool) -> Mapping[str, Any]:
        return count_pieces(self.axes, self.costs, split, down)

    def goes_down(self, split: Split, order: LoopOrder) -> bool:
        """True if the pieces of a split follow each other down the rows."""
        counts = self.counts(split)
        return counts["h_y"] > 1 and runs_down(order, counts)

    def counts(self, split: Split) -> dict[str, int]:
        """Ranges of each axis; and the sweeps."""
        counts = {axis: self.axes.times(axis, getattr(split, axis)) for axis in AXES}
        return counts | {SWEEP: self.call.sweeps}

    def prices(
        self, splits: Sequence[Split], limit_bytes: int, orders: Sequence[LoopOrder] = ()
    ) -> list[PricedSplit]:
        """Price the splits that fit exactly, each in the best order with the best rings."""
        legal = [split for split in splits if self.call.is_legal(split)]
        orders = orders or self._orders(map(self.counts, legal))
        found = self._exactly(legal, orders, limit_bytes)
        return [self._priced(split, *made) for split, made in found.items()]

    def _exactly(
        self, splits: Sequence[Split], orders: Iterable[LoopOrder], limit_bytes: int
    ) -> dict[Split, tuple[Table, int]]:
        """Find the best table and row of each legal split that fits."""
        best: dict[Split, tuple[Table, int]] = {}
        for order in orders:
            for down in (True, False):
                group = [split for split in splits if self.goes_down(split, order) is down]
                if group:
                    for priced in self._tables(self.pieces(group, down), order, limit_bytes):
                        for row, split in enumerate(group):
                            least = _seconds(best[split]) * (1 - 1e-9) if split in best else np.inf
                            if priced.seconds[row] < least:
                                best[split] = priced, row
        return best

    def launches(self, split: Split, order: LoopOrder) -> tuple[LaunchOf, ...]:
        """Every different launch of a split, with its buffers."""
        unique: dict[Launch, Mapping[str, Buffer]] = {}
        for piece, place, _ in equal_pieces(self.axes, split, self.goes_down(split, order)):
            launches, buffers = self.costs.launches(piece, place)
            for launch in launches:
                unique.setdefault(launch, buffers)
        return tuple(unique.items())

    def with_rings(self, split: Split, order: LoopOrder, depth: int, whole: bool) -> PricedSplit:
        """A split in one order, with rings of so many slots."""
        pieces, made = self.held(split, order, depth, whole)
        return self._priced(split, table(pieces, order, made), 0)

    def held(self, split: Split, order: LoopOrder, depth: int, whole: bool) -> tuple[Pieces, Rings]:
        """Bytes that a split holds in one order, with rings of so many slots."""
        pieces = self.pieces([split], self.goes_down(split, order))
        return pieces, fill_rings(pieces, float(depth), whole)

    def _priced(self, split: Split, priced: Table, row: int) -> PricedSplit:
        """One row of a table."""
        pieces = priced.pieces
        slots = {name: round(number_at(each, row)) for name, each in priced.rings.slots.items()}
        memory = [
            (
                f"{name}: {count} slot{'s' * (count > 1)}",
                count * round(number_at(pieces.slot_bytes[name], row)),
            )
            for name, count in slots.items()
        ]
        for name, nbytes in pieces.scratch_bytes.items():
            memory.append((name.replace("_", " "), round(number_at(nbytes, row))))
        return PricedSplit(
            self.request,
            self.layout,
            split,
            priced.order,
            tuple(slots.items()),
            tuple((name, count) for name, count in memory if count),
            priced.stages.at(row),
            number_at(priced.seconds, row),
            round(number_at(priced.bytes_in, row)),
            round(number_at(priced.bytes_out, row)),
            bool(number_at(pieces.legal, row)),
        )


def _seconds(row: tuple[Table, int]) -> float:
    return float(row[0].seconds[row[1]])


def caution(counts: Mapping[str, Any]) -> Any:
    """Factor by which the seconds of splits count more than those of the whole."""
    cuts = sum(worth * (counts[axis] > 1) for axis, worth in WORTH_A_CUT.items())
    number = math.prod(counts[axis] for axis in AXES)
    return 1.0 + cuts + WORTH_TWICE_THE_PIECES * np.log2(number)


def even_sizes(extent: int, at_most: int, largest: int) -> tuple[int, ...]:
    """Return piece sizes that cut `extent` into 1, 2, 3, 4, 6, 8, 12, ... even pieces.

    Largest first, always with `extent` itself and 1; none above `largest`. Where the series is
    longer than `at_most`, it is thinned evenly but for its first third: of few pieces, one more or
    less makes a difference.

    Examples
    --------
    >>> even_sizes(64, 24, 64)
    (64, 32, 22, 16, 11, 8, 6, 4, 3, 2, 1)
    >>> even_sizes(64, 6, 64)
    (64, 32, 22, 8, 4, 1)
    >>> even_sizes(64, 24, 30)
    (22, 16, 11, 8, 6, 4, 3, 2, 1)
    """
    sizes, power = {extent, 1}, 1
    while power <= extent:
        # counts 2^k and 3 * 2^(k-1): a piece holds ceil(extent / count)
        sizes |= {-(-extent // count) for count in (power, 3 * power // 2) if count <= extent}
        power *= 2
    series = sorted((size for size in sizes if size <= largest), reverse=True)
    if len(series) > at_most:
        kept = at_most // 3
        step = (len(series) - 1 - kept) / (at_most - 1 - kept)
        thinned = [series[kept + round(pick * step)] for pick in range(at_most - kept)]
        series = series[:kept] + thinned
    return tuple(series)
