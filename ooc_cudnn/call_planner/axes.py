"""The axes of a call, each cut into ranges of some size whatever the others are.

All splits ask the same of the same sizes, so each answer is found once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from ooc_cudnn.call_planner.request import Direction, Request
from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.operations.core.call import AXES, SWEEP, Piece
from ooc_cudnn.operations.core.ranges import Range, Ranges
from perfmodel.cached import cached_property


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
        self.apart_seconds_per_byte = cache(self._apart_seconds_per_byte)

    def times(self, axis: str, size: int) -> int:
        """Return the number of ranges."""
        return len(self.ranges(axis, size))

    def _seen(self, name: str, axis: str, size: int) -> int:
        """Number of regions of an operand that the ranges of an axis make."""
        return self.call.distinct(name, axis, self.ranges(axis, size))

    def lengths(self, axis: str, size: int) -> Mapping[int, int]:
        """Count the ranges by length."""
        ranges = self.ranges(axis, size)
        if not ranges.alike:
            return Counter(stop - start for start, stop in ranges)
        (start, stop), (last_start, last_stop) = ranges[0], ranges[-1]
        lengths = Counter({stop - start: len(ranges) - 1})
        lengths[last_stop - last_start] += 1
        return lengths

    def _classes(self, axis: str, size: int, down: bool = False) -> list[RangeClass]:
        """One range of each class: of each length, of rows each padding of every operation.

        Of a sum the first and the last are classes of their own. `down` where pieces follow each
        other down the rows.
        """
        ranges, call, are_rows = self.ranges(axis, size), self.call, axis == "h_y"
        summed, end = axis in call.reduced, len(ranges) - 1

        def piece(index: int) -> Piece:
            after = ranges[index - 1] if down and index else None
            return self._whole._replace(h_y=ranges[index], after=after)

        def key(index: int) -> Hashable:
            start, stop = ranges[index]
            rows = call.row_key(piece(index)) if are_rows else None
            return stop - start, rows, summed and index == 0, summed and index == end

        def clipped(index: int) -> bool:
            return are_rows and call.meets_border(piece(index))

        # Between the first and the last one that no border clips, all are alike. The very last may
        # be smaller, so it is looked at by itself.
        front, back = (0 if ranges.alike else end), end - 1
        while front < back and (clipped(front) or key(front) != key(front + 1)):
            front += 1
        while front < back and (clipped(back) or key(back) != key(front)):
            back -= 1
        alike = max(0, back - front)
        classes: dict[Hashable, RangeClass] = {}
        for index in (*range(front + 1), *range(front + 1 + alike, end + 1)):
            first, last = not summed or index == 0, not summed or index == end
            new = RangeClass(ranges[index], 0, first, last, piece(index).after)
            known = classes.get(key(index), new)
            classes[key(index)] = known._replace(times=known.times + 1 + alike * (index == front))
        return list(classes.values())

    def along(self, each: Callable[[str, Callable[[int], int]], Any]) -> dict[str, Any]:
        """The part of a table that is known of each axis by itself: counts and regions seen.

        `each` is given an axis and what is known of a size of it.
        """
        counts = {axis: each(axis, partial(self.times, axis)) for axis in AXES}
        seen = {
            name: {axis: each(axis, partial(self.seen, name, axis)) for axis in operand.axes}
            for name, operand in self.call.operands.items()
        }
        return {"counts": {**counts, SWEEP: self.call.sweeps}, "seen": seen}

    def read_bytes(self, name: str, rows: list[RangeClass]) -> float:
        """Bytes of all regions of an operand once: halo rows count in each piece they go to."""
        spec, call = self.request.specs[name], self.call
        if "h_y" not in call.operands[name].axes or len(spec.shape) < 3:
            return spec.nbytes
        read = 0
        for row_class in rows:
            piece = self._whole._replace(h_y=row_class.range, after=row_class.after)
            region = call.region(name, piece)
            if region is not None:
                read += row_class.times * (region[call.row_axis][1] - region[call.row_axis][0])
        return spec.nbytes / spec.shape[call.row_axis] * read

    def middle(self, size: int) -> list[RangeClass]:
        """Row classes as if no border clipped any piece but the first: enough to compare splits."""
        ranges = self.ranges("h_y", size)
        index = len(ranges) // 2
        if not index:
            return [RangeClass(ranges[0], 1)]
        inner = RangeClass(ranges[index], len(ranges) - 1, after=ranges[index - 1])
        return [RangeClass(ranges[0], 1), inner]

    def cut_once(self, axis: str, size: int) -> Piece:
        """The first piece of one image where one axis alone is cut."""
        return Piece(**self._whole._asdict() | {"n": (0, 1), axis: self.ranges(axis, size)[0]})

    def _apart_seconds_per_byte(self, way: Direction, name: str, piece: Piece) -> float:
        """Seconds that a byte of an operand takes longer as such pieces lie in rows apart."""
        request, placement = self.request, self.request.crosses_as(name)
        region = self.call.region(name, piece)
        if placement == "device" or region is None:
            return 0.0
        spec, shape = request.specs[name], tuple(stop - start for start, stop in region)
        rows = rows_of(shape, spec.strides, spec.itemsize)
        return request.machine.transfer.apart_seconds_per_byte(f"copy_{way}", placement, rows)

    @cached_property
    def _whole(self) -> Piece:
        """The piece that is the whole call, in the last sweep."""
        return self.call.whole_piece(self.call.sweeps - 1)
