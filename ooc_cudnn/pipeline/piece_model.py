"""What the pieces of many splits cost, from a few of them.

Buffers, arithmetic and traffic of a piece are products of its sizes on the axes (on h_y with halo
rows beside it), and each launch takes some seconds whatever its size. So pieces that are cut along
one axis alone tell what those cost that are cut along several; the exact price of the best splits
knows the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ooc_cudnn.operations.splittable import ALONE, AXES, Accumulation, Piece
from ooc_cudnn.pipeline.cuts import Cuts, Values
from ooc_cudnn.pipeline.piece_costs import PieceCosts, Probe
from ooc_cudnn.pipeline.piece_lines import UNCUT, Line, Ratios, Uncut, outer
from perfmodel import Split
from perfmodel.work import CHANNEL_STEP

#: Piece sizes on each axis.
Sizes = Mapping[str, tuple[int, ...]]

MIDDLE = Accumulation(first=False, last=False)
FIRST, LAST = Accumulation(first=True, last=False), Accumulation(first=False, last=True)
CHANNELS = ("c_y", "c_x")


#: Entries of `Probe.memory` that are no blocks.
ELEMENTS, BYTES = "largest elements", "largest bytes"


class Part(NamedTuple):
    """Pieces of one kind: where they stand in the arrays, and what tells all from a few of them.

    `least` and `most` are the smallest and the largest; `ends` those that begin and complete a sum.
    """

    where: tuple[slice, ...]
    lines: list[Line | Uncut]
    least: Probe
    most: Probe
    ends: tuple[Probe, ...]

    @property
    def names(self) -> Iterator[str]:
        """Of the memory that its pieces take."""
        return itertools.chain(self.most.memory, *(probe.memory for probe in self.ends[1:]))


class PieceModel:
    """Pieces of all splits that are made of some sizes, as arrays with the axes n, c_y, h_y, c_x.

    Parameters
    ----------
    costs : PieceCosts
    cuts : Cuts
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
    launching, completing_launching : array
        Seconds of the host to launch one piece in the middle of a sum, and what beginning and
        completing one takes beside that.
    names : tuple of str
        Of each block of memory; and `ELEMENTS` and `BYTES`, those of the largest buffer.
    memory : array
        How many bytes (or elements) each takes, with the names as a first axis.
    """

    def __init__(
        self, costs: PieceCosts, cuts: Cuts, sizes: Sizes, looked_at: Sizes | None = None
    ) -> None:
        self.call, self.costs, self.cuts, self.sizes = costs.call, costs, cuts, sizes
        self.looked_at = looked_at or sizes
        self._lines: dict[Hashable, Line] = {}
        shape = tuple(len(sizes[axis]) for axis in AXES)
        found = (self._part(part, place) for part, place in self._parts())
        parts = [part for part in found if part is not None]
        self.names = tuple(dict.fromkeys(name for part in parts for name in part.names))
        self.launch_seconds, self.work_seconds, self.completing_seconds = np.zeros((3, *shape))
        self.launching, self.completing_launching = np.zeros((2, *shape))
        self.memory: Values = np.zeros((len(self.names), *shape))
        for each in parts:
            self._fill(each)

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
            if rows.stop > 1 and self.cuts.keeps_rows(self.sizes["h_y"][-1]):
                yield {**box, "h_y": slice(1, rows.stop)}, place
                yield {**box, "h_y": slice(0, 1)}, place
            else:
                yield box, place

    def _part(self, part: Mapping[str, slice], place: Accumulation) -> Part | None:
        """What is known of the sizes of a part; None where none of them is legal."""
        known = {axis: self._known(axis, part[axis]) for axis in AXES}
        largest = self._first_legal(known)
        smallest = self._first_legal({axis: known[axis][::-1] for axis in AXES})
        if largest is None or smallest is None:
            return None
        least, most = self.probe(smallest, place), self.probe(largest, place)
        lines = [
            self._line(axis, self.sizes[axis][part[axis]], known, largest, place, least.seconds)
            for axis in AXES
        ]
        ends = () if place == ALONE else (self.probe(largest, FIRST), self.probe(largest, LAST))
        return Part(tuple(part[axis] for axis in AXES), lines, least, most, ends)

    def _fill(self, part: Part) -> None:
        """Fill the arrays for the sizes of a part."""
        where, lines, least, most, ends = part
        self.launch_seconds[where], self.launching[where] = least.seconds, least.launching
        beside = max(most.seconds - least.seconds, 0.0)
        self.work_seconds[where] = beside * outer([line.work for line in lines])
        counts = [float(most.memory.get(name, 0)) for name in self.names]
        of_n, *others = (line.memory(self.names) for line in lines)
        memory = outer([np.array(counts)[:, np.newaxis] * of_n, *others])
        self.memory[(slice(None), *where)] = memory
        self.completing_seconds[where] = self.completing_launching[where] = 0.0
        if not ends:
            return
        # What completes a sum is done once for each result, as large as the result.
        first, last = ends
        self.completing_launching[where] = first.launching + last.launching - 2 * most.launching
        if last.seconds > most.seconds:
            covered = outer(self._of_results(lines, [line.covered for line in lines]))
            self.completing_seconds[where] = (last.seconds - most.seconds) * covered
        for at, name in enumerate(self.names):
            extra = last.memory.get(name, 0) - most.memory.get(name, 0)
            if extra > 0 and name not in (ELEMENTS, BYTES):
                shares = outer(self._of_results(lines, [line.share for line in lines]))
                self.memory[at][where] += extra * shares

    def _of_results(self, lines: Sequence[Line | Uncut], values: list[Values]) -> list[Values]:
        """Values of the axes, of which those that are summed over make no difference."""
        return [
            np.ones(len(line.share)) if axis in self.call.reduced else found
            for axis, line, found in zip(AXES, lines, values, strict=True)
        ]

    def _known(self, axis: str, part: slice) -> tuple[int, ...]:
        """Sizes that are looked at, of those in a part: cut where these are cut."""
        known, extent = self.looked_at[axis], getattr(self.call.extents, axis)
        sizes = self.sizes[axis][part]
        cut = sizes[0] < extent
        if sizes == self.sizes[axis] and (cut or len(sizes) > 1):
            return known
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
        """The line along an axis: its ratios are about the same wherever the pieces stand."""
        if sizes == (largest[axis],) and self.cuts.cut(axis, *sizes).times == 1:
            return UNCUT
        looked_at, beside = self._telling(axis, known[axis]), largest
        if not self.costs.channels_cut_freely:
            beside = self._first_legal({**known, axis: looked_at[-1:]}) or largest
            beside = {**beside, axis: largest[axis]}
            looked_at = tuple(size for size in looked_at if self._may_be({**beside, axis: size}))
        key = axis, looked_at, largest[axis]
        found = self._lines.get((sizes, key))
        if found is None:
            ratios = self.costs.ratios.get(key)
            if ratios is None:
                probes = {
                    self._length(axis, size): self.probe({**beside, axis: size}, place)
                    for size in looked_at
                }
                ratios = Ratios(probes, self.probe(beside, place), launch_seconds)
                self.costs.ratios[key] = ratios
            ranges, _, (start, stop), _ = self.cuts.cut(axis, largest[axis])
            found = Line(self.cuts.lengths(axis, sizes), stop - start, ranges.extent, ratios)
            self._lines[sizes, key] = found
        return found

    def _telling(self, axis: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Of sizes, largest first, those that tell of the others: between them all is linear.

        Of channels kernels take steps; and pieces of several groups differ from those within one.
        """
        if axis in CHANNELS and not self.costs.channels_cut_freely:
            return sizes
        linear = [size for size in sizes if axis not in CHANNELS or size <= CHANNEL_STEP]
        return tuple(size for size in sizes if size not in linear[1:-1])

    def _may_be(self, sizes: Mapping[str, int]) -> bool:
        return self.call.is_legal(Split(**sizes))

    def _first_legal(self, sizes: Sizes) -> dict[str, int] | None:
        """The first piece that is legal: with groups, channels cannot be cut just as one likes."""
        if self.costs.channels_cut_freely:
            return {axis: each[0] for axis, each in sizes.items()}
        for c_y, c_x in itertools.product(sizes["c_y"], sizes["c_x"]):
            found = {"n": sizes["n"][0], "c_y": c_y, "h_y": sizes["h_y"][0], "c_x": c_x}
            if self._may_be(found):
                return found
        return None

    def _length(self, axis: str, size: int) -> float:
        """How long the range is that is looked at for a size."""
        cut = self.cuts.cut(axis, size).ranges
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
        n, c_y, rows, c_x = (self.cuts.cut(axis, sizes[axis]).ranges for axis in AXES)
        at = len(rows) // 2
        after = rows[at - 1] if at else None
        costs = [
            self.costs.of(Piece(n[0], c_y[0], rows[at], c_x[0], sweep, after), place)
            for sweep in range(call.sweeps)
        ]
        memory, *others = (
            {ELEMENTS: cost.largest_elements, BYTES: cost.largest_bytes, **cost.sizes}
            for cost in costs
        )
        for held in others:
            memory |= {name: max(memory.get(name, 0), count) for name, count in held.items()}
        return Probe(
            sum(cost.seconds for cost in costs), memory, sum(cost.launching for cost in costs)
        )


__all__ = ["BYTES", "ELEMENTS", "PieceModel", "Sizes", "Values"]
