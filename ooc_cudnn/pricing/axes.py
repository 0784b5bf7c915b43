"""The axes of a call, each cut into ranges of some size whatever the others are.

All splits ask the same of the same sizes, so each answer is found once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import NamedTuple

from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.operations.splittable import Piece, Region
from ooc_cudnn.operations.window import Range, Ranges
from ooc_cudnn.pricing.request import Direction, Request


class RangeClass(NamedTuple):
    """Ranges of one axis that are alike: one of them, how many, and where they stand in a sum.

    `after` is the range before, if what both need of the rows between is still on the device.
    """

    range: Range
    times: int
    first: bool = True
    last: bool = True
    after: Range | None = None


class Axes:
    """The axes of a request's call, cut."""

    def __init__(self, request: Request) -> None:
        self.request, self.call = request, request.chain
        #: An axis cut into ranges of a size.
        self.ranges: Callable[[str, int], Ranges] = cache(self.call.axis_ranges)
        self.seen = cache(self._seen)
        self.classes = cache(self._classes)
        self.row_classes = cache(self._row_classes)
        self.apart_seconds_per_byte = cache(self._apart_seconds_per_byte)

    def times(self, axis: str, size: int) -> int:
        """How many ranges these are."""
        return len(self.ranges(axis, size))

    def _seen(self, name: str, axis: str, size: int) -> int:
        """How many regions of an operand the ranges of an axis make."""
        return self.call.distinct(name, axis, self.ranges(axis, size))

    def lengths(self, axis: str, size: int) -> dict[int, int]:
        """How many of the ranges have which length."""
        found = self.ranges(axis, size)
        if found.alike:
            ends = found[0][1] - found[0][0], found[-1][1] - found[-1][0]
            return {ends[0]: len(found)} if ends[0] == ends[1] else {
                ends[0]: len(found) - 1, ends[1]: 1
            }  # fmt: skip
        return Counter(stop - start for start, stop in found)

    def _classes(self, axis: str, size: int) -> list[RangeClass]:
        """One range of each class: of each length, and of a sum the first and the last."""
        ranges, reduced = self.ranges(axis, size), axis in self.call.reduced
        end, at = len(ranges) - 1, 0
        counted: dict[Hashable, RangeClass] = {}
        while at <= end:
            # all between the first and the last may be alike
            times = end - at if ranges.alike and 0 < at < end - 1 else 1
            first, last = not reduced or at == 0, not reduced or at == end
            start, stop = ranges[at]
            key = stop - start, first, last
            known = counted.get(key, RangeClass(ranges[at], 0, first, last))
            counted[key] = known._replace(times=known.times + times)
            at += times
        return list(counted.values())

    def _row_classes(self, size: int, down: bool) -> list[RangeClass]:
        """One row range of each class: of equally many rows and padding of every operation.

        `down` where pieces follow each other down the rows.
        """
        ranges, call, reduced = self.ranges("h_y", size), self.call, "h_y" in self.call.reduced
        end = len(ranges) - 1

        def piece(at: int) -> Piece:
            after = ranges[at - 1] if down and at else None
            return self._whole._replace(h_y=ranges[at], after=after)

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
        classes: dict[Hashable, RangeClass] = {}
        for at in (*range(front + 1), *range(front + 1 + alike, end + 1)):
            times, example = 1 + alike * (at == front), piece(at)
            first, last = not reduced or at == 0, not reduced or at == end
            key = (ranges[at][1] - ranges[at][0], call.row_key(example), first, last)
            known = classes.get(key, RangeClass(ranges[at], 0, first, last, example.after))
            classes[key] = known._replace(times=known.times + times)
        return list(classes.values())

    def rows_read(self, name: str, classes: list[RangeClass]) -> int:
        """Rows of an operand that all pieces read: halo rows in each piece they go to."""
        rows = 0
        for found in classes:
            region = self._region(name, self._whole._replace(h_y=found.range, after=found.after))
            rows += found.times * (region[self.call.row_axis][1] - region[self.call.row_axis][0])
        return rows

    def middle(self, size: int) -> list[RangeClass]:
        """Row classes as if no border clipped any piece but the first: enough to compare splits."""
        ranges = self.ranges("h_y", size)
        at = len(ranges) // 2
        if not at:
            return [RangeClass(ranges[0], 1)]
        inner = RangeClass(ranges[at], len(ranges) - 1, after=ranges[at - 1])
        return [RangeClass(ranges[0], 1), inner]

    def _apart_seconds_per_byte(
        self, way: Direction, name: str, piece: Piece | None, axis: str = "", size: int = 0
    ) -> float:
        """What a byte of an operand takes longer since its pieces lie in rows apart.

        Of pieces like one, or of those that are cut along one axis alone.
        """
        request, placement = self.request, self.request.crosses_as(name)
        if piece is None:
            piece = Piece(**self._whole._asdict() | {axis: self.ranges(axis, size)[0]})
        region = self.call.region(name, piece)
        if placement == "device" or region is None:
            return 0.0
        spec, shape = request.specs[name], tuple(stop - start for start, stop in region)
        rows = rows_of(shape, spec.strides, spec.itemsize)
        return request.machine.transfer.apart_seconds_per_byte(f"copy_{way}", placement, rows)

    def _region(self, name: str, piece: Piece) -> Region:
        region = self.call.region(name, piece)
        return ((0, 0),) * 5 if region is None else region

    @property
    def _whole(self) -> Piece:
        """The piece that is the whole call, in the last sweep."""
        return self.call.whole_piece(self.call.sweeps - 1)
