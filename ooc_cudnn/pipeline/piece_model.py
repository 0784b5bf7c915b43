"""What the pieces of many splits cost, from a few of them.

Buffers, arithmetic and traffic of a piece are products of its sizes on the axes (on h_y with halo
rows beside it), and each launch takes some seconds whatever its size. So pieces that are cut along
one axis alone tell what those cost that are cut along several; the exact price of the best splits
knows the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.operations.splittable import ALONE, AXES, Accumulation, Piece
from ooc_cudnn.pipeline.piece_costs import Cut, PieceCosts, Probe
from perfmodel import Split

Values = NDArray[np.float64]
#: Piece sizes on each axis.
Sizes = Mapping[str, tuple[int, ...]]

MIDDLE = Accumulation(first=False, last=False)
FIRST, LAST = Accumulation(first=True, last=False), Accumulation(first=False, last=True)
CHANNELS = ("c_y", "c_x")


#: Entries of `Probe.memory` that are no blocks.
ELEMENTS, BYTES = "largest elements", "largest bytes"


class PieceModel:
    """Pieces of all splits that are made of some sizes, as arrays with the axes n, c_y, h_y, c_x.

    Parameters
    ----------
    costs : PieceCosts
    sizes : mapping from axis to tuple of int
        Largest first.
    looked_at : mapping from axis to tuple of int, optional
        Sizes of the pieces that the others are told from; `sizes` when left out.

    Attributes
    ----------
    launch_seconds, work_seconds : array
        Of one piece of each split, and of all pieces of one sweep beside that.
    completing_seconds : array
        What it takes to complete the sums of all results.
    launches, completing_launches : array
        Of one piece in the middle of a sum, and of beginning and completing one beside that.
    memory : mapping from name to array
        Bytes of each block; and the elements and bytes of the largest buffer.
    """

    def __init__(self, costs: PieceCosts, sizes: Sizes, looked_at: Sizes | None = None) -> None:
        self.call, self.costs, self.sizes = costs.call, costs, sizes
        self.looked_at = looked_at or sizes
        shape = tuple(len(sizes[axis]) for axis in AXES)
        self.launch_seconds, self.work_seconds, self.completing_seconds = np.zeros((3, *shape))
        self.launches, self.completing_launches = np.zeros((2, *shape))
        self.memory: dict[str, Values] = {}
        self._lines: dict[Hashable, Line] = {}
        for part, place in self._parts():
            self._fill(shape, part, place)

    def _parts(self) -> Iterator[tuple[dict[str, slice], Accumulation]]:
        """Boxes of sizes in which pieces are of one kind; a later one is right where they overlap.

        Where an axis is cut that is summed over there is an accumulator; and rows that are cut may
        have kept rows beside them.
        """
        everything = {axis: slice(0, len(sizes)) for axis, sizes in self.sizes.items()}
        extents, reduced = self.call.extents, self.call.reduced
        boxes = []
        if any(self.sizes[axis][-1] < getattr(extents, axis) for axis in reduced):
            boxes.append((everything, MIDDLE))
        if all(self.sizes[axis][0] >= getattr(extents, axis) for axis in reduced):
            boxes.append(({**everything, **dict.fromkeys(reduced, slice(0, 1))}, ALONE))
        for box, place in boxes:
            rows = box["h_y"]
            if rows.stop > 1 and self._keeps_rows:
                yield {**box, "h_y": slice(1, rows.stop)}, place
                yield {**box, "h_y": slice(0, 1)}, place
            else:
                yield box, place

    @cached_property
    def _keeps_rows(self) -> bool:
        """Whether pieces that follow each other down the rows differ from others."""
        call = self.call
        n, c_y, rows, c_x = (self.costs.cut(axis, self.sizes[axis][-1]).ranges for axis in AXES)
        at = len(rows) // 2
        piece = Piece(n[0], c_y[0], rows[at], c_x[0], 0, rows[at - 1])
        return call.row_key(piece) != call.row_key(piece._replace(after=None))

    def _fill(self, shape: tuple[int, ...], part: Mapping[str, slice], place: Accumulation) -> None:
        """Fill the arrays for the sizes of a part."""
        call = self.call
        sizes = {axis: self.sizes[axis][part[axis]] for axis in AXES}
        known = {axis: self._known(axis, part[axis]) for axis in AXES}
        largest = self._first_legal(known)
        smallest = self._first_legal({axis: known[axis][::-1] for axis in AXES})
        if largest is None or smallest is None:
            return
        least = self.probe(smallest, place)
        most = self.probe(largest, place)
        lines = {
            axis: self._line(axis, sizes[axis], known, largest, place, least.seconds)
            for axis in AXES
        }
        beside = max(most.seconds - least.seconds, 0.0)
        where = tuple(part[axis] for axis in AXES)
        self.launch_seconds[where], self.launches[where] = least.seconds, least.launches
        self.work_seconds[where] = beside * _outer([lines[axis].work for axis in AXES])
        for name, count in most.memory.items():
            found = self.memory.setdefault(name, np.zeros(shape))
            found[where] = count * _outer([lines[axis].memory(name) for axis in AXES])
        for name in self.memory.keys() - most.memory.keys():
            self.memory[name][where] = 0.0
        self.completing_seconds[where] = 0.0
        if place == ALONE:
            return
        # What completes a sum is done once for each result, as large as the result.
        last = self.probe(largest, LAST)
        ends = self.probe(largest, FIRST).launches + last.launches
        self.completing_launches[where] = ends - 2 * most.launches
        shares = _outer([
            np.ones(len(sizes[axis])) if axis in call.reduced else lines[axis].share
            for axis in AXES
        ])  # fmt: skip
        self.completing_seconds[where] = max(last.seconds - most.seconds, 0.0) * _outer([
            np.ones(len(sizes[axis])) if axis in call.reduced else lines[axis].covered
            for axis in AXES
        ])  # fmt: skip
        for name, count in last.memory.items():
            extra = count - most.memory.get(name, 0)
            if extra > 0 and name not in (ELEMENTS, BYTES):
                self.memory.setdefault(name, np.zeros(shape))[where] += extra * shares

    def _known(self, axis: str, part: slice) -> tuple[int, ...]:
        """Sizes that are looked at, of those in a part: cut where these are cut."""
        known, extent = self.looked_at[axis], getattr(self.call.extents, axis)
        if part == slice(0, len(self.sizes[axis])):
            return known
        cut = self.sizes[axis][part][0] < extent
        return tuple(size for size in known if (size < extent) == cut) or known[-1:]

    def _line(
        self,
        axis: str,
        sizes: tuple[int, ...],
        known: Sizes,
        largest: Mapping[str, int],
        place: Accumulation,
        launch_seconds: float,
    ) -> Line | Uncut:
        """The line along an axis: about the same in all parts that hold the same pieces of it."""
        if sizes == (largest[axis],) and self.costs.cut(axis, *sizes).times == 1:
            return UNCUT
        # Between a few rows and many all is linear; of channels, kernels take steps.
        ends = tuple(dict.fromkeys((known[axis][0], known[axis][-1])))
        looked_at = known[axis] if axis in CHANNELS else ends
        beside = self._first_legal({**known, axis: looked_at[-1:]}) or largest
        beside = {**beside, axis: largest[axis]}
        looked_at = tuple(size for size in looked_at if self._may_be({**beside, axis: size}))
        key = axis, sizes, looked_at, largest[axis]
        if key not in self._lines:
            probes = {
                self._length(axis, size): self.probe({**beside, axis: size}, place)
                for size in looked_at
            }
            cuts = [self.costs.cut(axis, size) for size in (largest[axis], *sizes)]
            self._lines[key] = Line(cuts, probes, self.probe(beside, place), launch_seconds)
        return self._lines[key]

    def _may_be(self, sizes: Mapping[str, int]) -> bool:
        return self.costs.channels_cut_freely or self.call.is_legal(Split(**sizes))

    def _first_legal(self, sizes: Sizes) -> dict[str, int] | None:
        """The first piece that is legal: with groups, channels cannot be cut just as one likes."""
        for c_y, c_x in itertools.product(sizes["c_y"], sizes["c_x"]):
            found = {"n": sizes["n"][0], "c_y": c_y, "h_y": sizes["h_y"][0], "c_x": c_x}
            if self._may_be(found):
                return found
        return None

    def _length(self, axis: str, size: int) -> float:
        """How long the range is that is looked at for a size."""
        cut = self.costs.cut(axis, size).ranges
        start, stop = cut[len(cut) // 2 if axis == "h_y" else 0]
        return float(stop - start)

    def probe(self, sizes: Mapping[str, int], place: Accumulation) -> Probe:
        """Cost of a piece of these sizes, away from the borders if it can be."""
        key = tuple(sizes[axis] for axis in AXES), place
        found = self.costs.probes.get(key)
        if found is None:
            found = self.costs.probes[key] = self._probe(sizes, place)
        return found

    def _probe(self, sizes: Mapping[str, int], place: Accumulation) -> Probe:
        call = self.call
        n, c_y, rows, c_x = (self.costs.cut(axis, sizes[axis]).ranges for axis in AXES)
        at = len(rows) // 2
        after = rows[at - 1] if at else None
        memory: dict[str, int] = {}
        seconds, launches = 0.0, 0
        for sweep in range(call.sweeps):
            cost = self.costs.of(Piece(n[0], c_y[0], rows[at], c_x[0], sweep, after), place)
            seconds += cost.seconds
            launches += len(cost.launches)
            held = {ELEMENTS: cost.largest_elements, BYTES: cost.largest_bytes, **cost.sizes}
            for name, count in held.items():
                memory[name] = max(memory.get(name, 0), count)
        return Probe(seconds, memory, launches)


class Uncut:
    """The line along an axis that is whole in all pieces: of one size, that of the largest."""

    share = covered = work = np.ones(1)

    def memory(self, name: str) -> Values:
        """Bytes of a block, over those of the largest piece."""
        return self.share


UNCUT = Uncut()


class Line:
    """Pieces that are cut along one axis alone.

    Parameters
    ----------
    cuts : sequence of Cut
        Those of the largest piece, and of each size.
    probes : mapping from extent to Probe
        Pieces of some sizes.
    base : Probe
        The largest piece.
    launch_seconds : float
        What a piece of any size takes.

    Attributes
    ----------
    share, covered, work : array
        For each size, over the axis' largest piece: the extent of its largest piece, that of all
        its pieces, and the seconds of all its pieces without those of launching.
    """

    def __init__(
        self,
        cuts: Sequence[Cut],
        probes: Mapping[float, Probe],
        base: Probe,
        launch_seconds: float,
    ) -> None:
        (start, stop), extent, cuts = cuts[0].first, cuts[0].ranges.extent, cuts[1:]
        counts = np.array([cut.times for cut in cuts], float)
        ends = np.array([(*cut.first, *cut.last) for cut in cuts], float)
        first, last = ends[:, 1] - ends[:, 0], ends[:, 3] - ends[:, 2]
        self.share: Values = first / (stop - start)
        self.covered = np.full(len(cuts), extent / (stop - start))
        beside = base.seconds - launch_seconds
        found = probes.values()
        # Ratios to the largest piece, by row: of seconds, and of each block.
        ratios = np.array([
            [(probe.seconds - launch_seconds) / beside if beside > 0 else 1.0 for probe in found],
            *(
                [probe.memory.get(name, 0) / max(count, 1) for probe in found]
                for name, count in base.memory.items()
            ),
        ])  # fmt: skip
        levels = np.array(list(probes))
        of_first = _between(levels, ratios, first)
        (of_last,) = _between(levels, ratios[:1], last) if (last != first).any() else of_first[:1]
        self.work = np.maximum((counts - 1) * of_first[0] + of_last, 0.0)
        self._memory: dict[str, Values] = dict(zip(base.memory, of_first[1:], strict=True))

    def memory(self, name: str) -> Values:
        """Bytes of a block for each size, over those of the largest piece."""
        return self._memory.get(name, self.share)


def _between(levels: Values, ratios: Values, sizes: Values) -> Values:
    """Ratios, by row, between the sizes looked at; beyond, as the first and the last line go on."""
    if len(levels) == 1:
        same: Values = np.repeat(ratios, len(sizes), axis=1)
        return same
    levels, known = levels[::-1], ratios[:, ::-1]
    above = np.searchsorted(levels[1:-1], sizes, side="right") + 1
    below = above - 1
    along = (sizes - levels[below]) / (levels[above] - levels[below])
    found: Values = known[:, below] + (known[:, above] - known[:, below]) * along
    return found


def _outer(vectors: Sequence[Values]) -> Values:
    """The products of the values of all axes."""
    n, c_y, h_y, c_x = vectors
    found: Values = n[:, None, None, None] * c_y[:, None, None] * (h_y[:, None] * c_x)
    return found


__all__ = ["BYTES", "ELEMENTS", "PieceModel", "Sizes", "Values"]
