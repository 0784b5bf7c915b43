"""The pieces of a split by class: pieces that are alike are counted, not gone through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import NamedTuple

from ooc_cudnn.operations.splittable import SWEEP, Accumulation, Piece, Splittable
from ooc_cudnn.operations.window import Range
from perfmodel import Split
from perfmodel.cached import cached_property


class Class(NamedTuple):
    """Ranges of one axis that are alike: one of them, and how many there are."""

    range: Range
    after: Range | None
    times: int
    first: bool
    last: bool


class PieceClasses:
    """The pieces of one split.

    Parameters
    ----------
    call : Splittable
    split : Split
    down : bool
        Whether pieces follow each other down the rows (`schedule.runs_down`).

    Attributes
    ----------
    axes : mapping
        Ranges of each axis.
    counts : mapping
        How many there are, and how many sweeps.
    pieces : int
        Pieces in all sweeps.
    """

    def __init__(self, call: Splittable, split: Split, *, down: bool) -> None:
        self.call, self.split, self.down = call, split, down
        self.axes = call.ranges(split)
        self.counts = {axis: len(ranges) for axis, ranges in self.axes.items()}
        self.counts[SWEEP] = call.sweeps
        self.pieces = math.prod(self.counts.values())

    def classes(self) -> list[tuple[Piece, Accumulation, int]]:
        """One piece of each class (equal shapes), with its place in the sum and how many."""
        images, channels, inputs = (self.range_classes(axis) for axis in ("n", "c_y", "c_x"))
        found = []
        for sweep, n, c_y, h_y, c_x in itertools.product(
            range(self.call.sweeps), images, channels, self.row_classes, inputs
        ):
            piece = Piece(n.range, c_y.range, h_y.range, c_x.range, sweep, h_y.after)
            ways = (n, c_y, h_y, c_x)
            place = Accumulation(all(way.first for way in ways), all(way.last for way in ways))
            found.append((piece, place, math.prod(way.times for way in ways)))
        return found

    def range_classes(self, axis: str) -> list[Class]:
        """One range of each class of an axis: of each size, and of a sum the first and the last."""
        ranges, end = self.axes[axis], self.counts[axis] - 1
        if not end:
            return [Class(ranges[0], None, 1, True, True)]
        reduced = axis in self.call.reduced
        counted: dict[tuple[int, bool, bool], Class] = {}
        at = 0
        while at <= end:
            range_, times = ranges[at], 1
            if ranges.alike and 0 < at < end - 1:
                times = end - at  # all between the first and the last are alike
            first, last = not reduced or at == 0, not reduced or at == end
            key = (range_[1] - range_[0], first, last)
            known = counted.get(key, Class(range_, None, 0, first, last))
            counted[key] = known._replace(times=known.times + times)
            at += times
        return list(counted.values())

    @cached_property
    def row_classes(self) -> list[Class]:
        """Row ranges that need equally many rows and padding of every operation."""
        ranges, call = self.axes["h_y"], self.call
        end, reduced = len(ranges) - 1, "h_y" in call.reduced

        def piece(at: int) -> Piece:
            return self.piece_of(ranges[at], ranges[at - 1] if self.down and at else None)

        # Between the first and the last piece that no border clips, all are alike. The very last
        # may be smaller, so it is looked at by itself.
        front, back = 0, end - 1
        while front < back and (
            call.meets_border(piece(front))
            or call.row_key(piece(front)) != call.row_key(piece(front + 1))
            or (reduced and front == 0)
        ):
            front += 1
        while front < back and (
            call.meets_border(piece(back))
            or call.row_key(piece(back)) != call.row_key(piece(front))
        ):
            back -= 1
        alike = max(0, back - front)
        classes: dict[Hashable, Class] = {}
        for at in (*range(front + 1), *range(front + 1 + alike, end + 1)):
            times, example = 1 + alike * (at == front), piece(at)
            first, last = not reduced or at == 0, not reduced or at == end
            rows = example.h_y
            key = (rows[1] - rows[0], call.row_key(example), first, last)
            known = classes.get(key, Class(rows, example.after, 0, first, last))
            classes[key] = known._replace(times=known.times + times)
        return list(classes.values())

    def piece_of(self, h_y: Range, after: Range | None, sweep: int = 0) -> Piece:
        """The first piece of the other axes, with the given rows."""
        axes = self.axes
        return Piece(axes["n"][0], axes["c_y"][0], h_y, axes["c_x"][0], sweep, after)
