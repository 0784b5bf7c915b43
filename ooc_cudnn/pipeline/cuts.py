"""What is known of one axis of a call cut into pieces of some size, whatever the other axes are.

Every grid of splits asks the same of the same sizes, so each answer is found once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.operations.splittable import AXES, Piece
from ooc_cudnn.operations.window import Range, Ranges
from perfmodel.cached import cached_property
from perfmodel.rows import Rows

if TYPE_CHECKING:
    from ooc_cudnn.pipeline.request import Direction, Request

Sizes = tuple[int, ...]
Values = NDArray[np.float64]


class Cut(NamedTuple):
    """One axis cut into ranges of some size: how many they are, the first and the last one."""

    ranges: Ranges
    times: int
    first: Range
    last: Range


class Lengths(NamedTuple):
    """One axis cut into ranges of several sizes: of each, how many, and the ends' lengths."""

    times: Values
    first: Values
    last: Values


class Cuts:
    """The axes of a request's call, cut."""

    def __init__(self, request: Request) -> None:
        self.request, self.call = request, request.chain
        self._cuts: dict[tuple[str, int], Cut] = {}
        self._lengths: dict[tuple[str, Sizes], Lengths] = {}
        self._shared: dict[tuple[str, str], bool] = {}
        self._rows_read: dict[tuple[str, int], float] = {}
        self._known_rows: dict[tuple[str, str], dict[int, Rows]] = {}
        self._apart: dict[tuple[Direction, str, str], dict[int, float]] = {}
        self._keeps_rows: dict[int, bool] = {}

    def cut(self, axis: str, size: int) -> Cut:
        """An axis of the call, cut."""
        found = self._cuts.get((axis, size))
        if found is None:
            ranges = self.call.axis_ranges(axis, size)
            found = self._cuts[axis, size] = Cut(ranges, len(ranges), ranges[0], ranges[-1])
        return found

    def lengths(self, axis: str, sizes: Sizes) -> Lengths:
        """An axis of the call, cut into ranges of each of some sizes."""
        found = self._lengths.get((axis, sizes))
        if found is None:
            cuts = [self.cut(axis, size) for size in sizes]
            ends = [(each.times, *each.first, *each.last) for each in cuts]
            times, *starts_and_stops = np.array(ends, np.float64).T
            first_start, first_stop, last_start, last_stop = starts_and_stops
            found = Lengths(times, first_stop - first_start, last_stop - last_start)
            self._lengths[axis, sizes] = found
        return found

    def are_shared(self, name: str, axis: str) -> bool:
        """Whether several ranges of an axis may see one region of an operand: in groups."""
        found = self._shared.get((name, axis))
        if found is None:
            cut = self.cut(axis, 1)
            found = self.call.distinct(name, axis, cut.ranges) != cut.times
            self._shared[name, axis] = found
        return found

    def keeps_rows(self, size: int) -> bool:
        """Whether pieces that follow each other down the rows differ from others."""
        found = self._keeps_rows.get(size)
        if found is None:
            rows = self.cut("h_y", size).ranges
            at = len(rows) // 2
            piece = self._whole._replace(h_y=rows[at], sweep=0)
            following = piece._replace(after=rows[at - 1])
            found = self.call.row_key(following) != self.call.row_key(piece)
            self._keeps_rows[size] = found
        return found

    def seen(self, name: str, axis: str, size: int) -> int:
        """How many regions of an operand the ranges of an axis make."""
        return self.call.distinct(name, axis, self.cut(axis, size).ranges)

    def rows_read(self, name: str, size: int) -> float:
        """Rows of an operand that all pieces of so many rows read, one image and channel of it."""
        found = self._rows_read.get((name, size))
        if found is None:
            found = self._rows_read[name, size] = self._all_rows_read(name, self.cut("h_y", size))
        return found

    def _all_rows_read(self, name: str, cut: Cut) -> float:
        height = float(self.request.specs[name].shape[self.call.row_axis])
        if cut.times == 1:
            return height
        at = cut.times // 2
        rows = cut.ranges[at]
        region = self.call.region(name, self._whole._replace(h_y=rows, after=cut.ranges[at - 1]))
        start, stop = region[self.call.row_axis] if region else (0, 0)
        read = stop - start
        own = height * (rows[1] - rows[0]) / cut.last[1]
        # All pieces but one have the rows beside their own.
        return height + (cut.times - 1) * max(read - own, 0.0)

    def apart_seconds_per_byte(
        self, way: Direction, name: str, axis: str, sizes: Sizes
    ) -> list[float]:
        """What a byte of an operand takes longer in the rows that pieces of one cut axis make.

        For pieces of each of some sizes. The width of rows is as the piece's extent.
        """
        known = self._apart.setdefault((way, name, axis), {})
        for size in sizes:
            if size not in known:
                cut = self.cut(axis, size)
                known[size] = 0.0
                if cut.times > 1:
                    rows = self._rows_of(name, axis, cut)
                    known[size] = self.request.apart_seconds_per_byte(way, name, rows)
        return [known[size] for size in sizes]

    def _rows_of(self, name: str, axis: str, cut: Cut) -> Rows:
        """How a piece lies that is cut along one axis alone.

        The width of its rows is linear in its extent (there may be a halo), so two tell of all.
        """
        known, extent = self._known_rows.setdefault((name, axis), {}), cut.first[1] - cut.first[0]
        if extent not in known and len(known) < 2:
            piece = Piece(**self._whole._asdict() | {axis: cut.first})
            known[extent] = self.request.rows(name, piece)
        if extent in known:
            return known[extent]
        (one, rows), (other, others) = known.items()
        if math.inf in (rows.width_bytes, others.width_bytes):  # that piece is all of it
            return rows if others.width_bytes == math.inf else others
        slope = (others.width_bytes - rows.width_bytes) / (other - one)
        width_bytes = rows.width_bytes + slope * (extent - one)
        # Rows of what is broadcast are no line; the least is one element.
        return rows._replace(width_bytes=max(width_bytes, self.request.specs[name].itemsize))

    @cached_property
    def _whole(self) -> Piece:
        """The piece that is the whole call, in the last sweep."""
        n, c_y, h_y, c_x = ((0, getattr(self.call.extents, axis)) for axis in AXES)
        return Piece(n, c_y, h_y, c_x, self.call.sweeps - 1)
