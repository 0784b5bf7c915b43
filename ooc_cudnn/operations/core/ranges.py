"""Windows that slide over rows: output extents, and the input rows behind output rows (the halo).

Everything here is integer arithmetic on one axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, overload

Range = tuple[int, int]
Pair = tuple[int, int]


class Rows(NamedTuple):
    """Input rows ``[start, stop)`` to read, and the padding rows ``before`` and ``after``."""

    start: int
    stop: int
    before: int
    after: int


class Cycle(NamedTuple):
    """Period of a resampling pattern: outputs per cycle and input elements per cycle."""

    outputs: int
    elements: int


#: Rows of a cycle that a piece has at least; of longer cycles it may be a part.
SHORT_CYCLE = 4


def in_cycles(size: int, cycle: int, extent: int) -> int:
    """Rows of a piece as a multiple of a cycle, where that is near: such pieces are alike.

    >>> in_cycles(1, 2, 100), in_cycles(21, 8, 100), in_cycles(5, 8, 100), in_cycles(100, 8, 100)
    (2, 16, 5, 100)
    """
    if size >= extent or SHORT_CYCLE < cycle >= size:
        return size
    return max(size - size % cycle, cycle)


def output_extent(extent: int, window: int, stride: int, padding: Pair, dilation: int) -> int:
    """Output positions of a window along one axis (may be zero or less when none fits).

    >>> output_extent(7, window=3, stride=2, padding=(1, 1), dilation=1)
    4
    """
    return (extent + padding[0] + padding[1] - ((window - 1) * dilation + 1)) // stride + 1


def input_rows(
    rows: Range, extent: int, window: int, stride: int, padding: Pair, dilation: int
) -> Rows:
    """Input rows behind output rows ``[a, b)``: ``[a*s - p, (b-1)*s - p + (k-1)*d + 1)``, clipped.

    What is clipped off comes back as padding, so a piece in the middle has none. Rows after the
    last window go with the last output row; so all output rows need all input rows, and the
    padding as it was given: the call itself.

    >>> input_rows((0, 4), 10, window=3, stride=1, padding=(1, 1), dilation=1)
    Rows(start=0, stop=5, before=1, after=0)
    >>> input_rows((4, 8), 10, window=3, stride=1, padding=(1, 1), dilation=1)
    Rows(start=3, stop=9, before=0, after=0)
    >>> input_rows((8, 10), 10, window=3, stride=1, padding=(1, 1), dilation=1)
    Rows(start=7, stop=10, before=0, after=1)

    No window of 1 with stride 2 reaches the last of 8 rows:

    >>> input_rows((0, 3), 8, window=1, stride=2, padding=(0, 0), dilation=1)
    Rows(start=0, stop=5, before=0, after=0)
    >>> input_rows((3, 4), 8, window=1, stride=2, padding=(0, 0), dilation=1)
    Rows(start=6, stop=8, before=0, after=0)

    Output rows that see padding alone need no input at all:

    >>> input_rows((0, 1), 10, window=1, stride=1, padding=(2, 2), dilation=1)
    Rows(start=0, stop=0, before=1, after=0)

    No output rows (inside a chain, where the next operation sees padding alone) need none either:

    >>> input_rows((0, 0), 10, window=3, stride=1, padding=(1, 1), dilation=1)
    Rows(start=0, stop=0, before=2, after=0)
    """
    low = rows[0] * stride - padding[0]
    high = (rows[1] - 1) * stride - padding[0] + (window - 1) * dilation + 1
    start = min(max(low, 0), extent)
    if rows[0] == rows[1]:
        return Rows(start, start, max(high - low, 0), 0)
    stop = min(max(high, start), extent)
    if high <= 0:  # wholly in the leading padding
        return Rows(0, 0, high - low, 0)
    if low >= extent:  # wholly in the trailing padding
        return Rows(extent, extent, 0, high - low)
    if rows[1] == output_extent(extent, window, stride, padding, dilation):
        after = padding[1] if rows[0] == 0 else max(high - extent, 0)
        return Rows(start, extent, start - low, after)
    return Rows(start, stop, start - low, high - stop)


def contributing_rows(
    rows: Range, count: int, window: int, stride: int, padding: Pair, dilation: int
) -> Rows:
    """Output rows whose windows see input rows ``[a, b)``: what a gradient's rows are made of.

    `before` and `after` are the padding of the forward operation from those input rows to these
    output rows. One output row more than needed is taken where the padding would be negative.

    >>> contributing_rows((4, 8), 10, window=3, stride=1, padding=(1, 1), dilation=1)
    Rows(start=3, stop=9, before=2, after=2)
    >>> contributing_rows((0, 4), 5, window=3, stride=2, padding=(1, 1), dilation=1)
    Rows(start=0, stop=3, before=1, after=2)

    Rows that no window sees have none:

    >>> contributing_rows((9, 10), 3, window=1, stride=3, padding=(0, 0), dilation=1)
    Rows(start=3, stop=3, before=0, after=0)
    """
    reach = (window - 1) * dilation + 1
    start = max(0, -((reach - 1 - rows[0] - padding[0]) // stride))
    start = min(start, (rows[0] + padding[0]) // stride, count)
    stop = max(start, min(count, (rows[1] - 1 + padding[0]) // stride + 1))
    if start == stop:
        return Rows(start, stop, 0, 0)
    before = rows[0] + padding[0] - start * stride
    after = (stop - start - 1) * stride + reach - (rows[1] - rows[0]) - before
    return Rows(start, stop, before, max(0, after))


def valid_positions(offset: int, stride: int, extent: int, count: int) -> tuple[slice, slice]:
    """Positions `o` in ``[0, count)`` with ``0 <= o * stride + offset < extent``, and the latter.

    >>> valid_positions(-1, 2, 4, 9)
    (slice(1, 3, None), slice(1, 4, 2))
    """
    low = min(count, max(0, -(offset // stride)))
    high = max(low, min(count, (extent - 1 - offset) // stride + 1))
    if high == low:
        return slice(0, 0), slice(0, 0)
    begin = low * stride + offset
    return slice(low, high), slice(begin, begin + (high - low - 1) * stride + 1, stride)


def valid_indices(*axes: Iterable[int]) -> tuple[Any, Any]:
    """Indices of windows and of what a tap meets: `valid_positions` on every spatial axis."""
    places = [valid_positions(*axis) for axis in zip(*axes, strict=True)]
    return (..., *(place[0] for place in places)), (..., *(place[1] for place in places))


@dataclass(frozen=True, slots=True)
class Ranges(Sequence[Range]):
    """Ranges of `size` over ``[0, extent)``, each group of `group` cut by itself; none is stored.

    >>> tuple(Ranges(8, 3, 4))
    ((0, 3), (3, 4), (4, 7), (7, 8))
    """

    extent: int
    size: int
    group: int

    @property
    def alike(self) -> bool:
        """True if all but the last are equally long."""
        return self.group == self.extent or self.group % self.size == 0

    @property
    def places(self) -> int:
        """Number of places in which its ranges lie: cut groups, or ranges of whole groups.

        Of several groups: one that is cut is not told from none.

        >>> grouped_ranges(12, 4, 3).places, grouped_ranges(12, 4, 8).places
        (3, 2)
        """
        return self.extent // self.group if self.group < self.extent else len(self)

    def __len__(self) -> int:
        return self.extent // self.group * -(-self.group // self.size) if self.extent else 0

    @overload
    def __getitem__(self, at: int) -> Range: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Range, ...]: ...
    def __getitem__(self, at: int | slice) -> Range | tuple[Range, ...]:
        """One range, or a tuple of them."""
        if at == 0 and self.extent:
            return 0, min(self.size, self.group)  # asked for by every plan, thousands of times
        if at == -1 and self.extent:
            return self.extent - (self.group - 1) % self.size - 1, self.extent
        count = len(self)
        if isinstance(at, slice):
            return tuple(self[index] for index in range(*at.indices(count)))
        if not -count <= at < count:
            raise IndexError(f"range {at} of {count}")
        group, inside = divmod(at % count, -(-self.group // self.size))
        start, end = group * self.group + inside * self.size, (group + 1) * self.group
        return start, min(start + self.size, end)

    def __iter__(self) -> Iterator[Range]:
        for first in range(0, self.extent, max(self.group, 1)):
            end = first + self.group
            for start in range(first, end, self.size):
                yield start, min(start + self.size, end)


def ranges(extent: int, size: int) -> Ranges:
    """Cut ``[0, extent)`` into ranges of `size`; the last one may be smaller.

    >>> tuple(ranges(10, 4))
    ((0, 4), (4, 8), (8, 10))
    """
    return Ranges(extent, min(size, max(extent, 1)), extent)


def grouped_ranges(extent: int, group: int, size: int) -> Ranges:
    """Cut ``[0, extent)`` so that no range crosses the border of a group it does not fill.

    Ranges of `group` or more hold whole groups; smaller ones cut each group by itself.

    >>> tuple(grouped_ranges(12, 4, 9))
    ((0, 8), (8, 12))
    >>> tuple(grouped_ranges(8, 4, 3))
    ((0, 3), (3, 4), (4, 7), (7, 8))
    """
    return ranges(extent, size - size % group) if size >= group else Ranges(extent, size, group)


@lru_cache(maxsize=256)
def in_words(
    window: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...] = ()
) -> str:
    """Describe a window, whatever it slides over: asked of every piece that is priced.

    >>> in_words((3, 3), (1, 1), (2, 2)), in_words((2,), (2,))
    ('window 3x3, stride 1x1, dilation 2x2', 'window 2, stride 2')
    """
    named = (("window", window), ("stride", stride), ("dilation", dilation))
    return ", ".join(f"{name} {'x'.join(map(str, sizes))}" for name, sizes in named if sizes)
