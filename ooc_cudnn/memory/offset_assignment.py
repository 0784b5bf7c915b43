"""Offset assignment: place buffers by live range, first fit over several orders.

One pure function over a list: buffers that live at the same time get bytes of their own. What is
promised is the peak with addresses, not the sum of what lives at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.memory.alignment import align


class LiveBuffer(NamedTuple):
    """A buffer of a block and its live range: from a first step to a last one, both included."""

    first: int
    last: int
    nbytes: int


class OffsetAssignment(NamedTuple):
    """Offset of each buffer in the block, and the bytes of the block."""

    offsets: tuple[int, ...]
    peak_bytes: int


def held_bytes(buffers: Sequence[LiveBuffer], steps: int) -> Any:
    """Bytes that live in each step: what no placement can stay below."""
    change = np.zeros(steps + 1, np.int64)
    for buffer in buffers:
        change[buffer.first] += align(buffer.nbytes)
        change[buffer.last + 1] -= align(buffer.nbytes)
    return np.cumsum(change)[:-1]


#: Where too much is taken, buffers that reach too far move up so many places in the order. Of many,
#: smaller ones, as a share of what may be taken, are placed in the end.
PLACES, MANY, SMALL = 40, 1000, 2**-8
#: How often they do, in each of the orders where that ends soonest: all in turn, and then once
#: more. Of 40 lists from plans of twelve networks 19 came to fit by these orders within 40 times;
#: one more by other orders, or within 96.
TURNS = (12, 28)
#: It is tried where no more than so many times that is taken.
NEAR = 1.1


def assign_offsets(
    buffers: Sequence[LiveBuffer], enough_bytes: int | None = None
) -> OffsetAssignment:
    """Assign each buffer an offset: the best of some orders of placing them, each first fit.

    Large ones first is best for most lists; those that live long first where many small ones come
    and go beside a few that stay; those that are large and live long, or in the order of time,
    where sizes are alike. Other orders begin with what lives at the fullest step, then at the next
    fullest, in one of the first three orders each ("greedy by breadth", Pisarchyk and Lee 2020).
    Where they take more than `enough_bytes`, those that reach too far are placed earlier, again and
    again ("squeaky wheel" optimization), beginning with the orders in which that ends soonest.

    Examples
    --------
    >>> assign_offsets([LiveBuffer(0, 1, 512), LiveBuffer(1, 2, 256), LiveBuffer(2, 3, 512)])
    OffsetAssignment(offsets=(0, 512, 0), peak_bytes=768)
    """
    size = [(-buffer.nbytes, buffer.first) for buffer in buffers]
    life = [(buffer.first - buffer.last, -buffer.nbytes) for buffer in buffers]
    area = [((buffer.first - buffer.last - 1) * buffer.nbytes, buffer.first) for buffer in buffers]
    time = [(buffer.first, -buffer.nbytes) for buffer in buffers]
    fullness = _fullness(buffers)
    broad_size, broad_life, broad_area = (
        [(full, *each) for full, each in zip(fullness, key, strict=True)]
        for key in (size, life, area)
    )
    keys = (size, life, area, time, broad_size, broad_life, broad_area)
    by_size, *_, by_broad_size, by_broad_life, by_broad_area = orders = [
        _sorted_by(key) for key in keys
    ]
    fit = _FirstFit(buffers)
    placement = fit.placed(by_size)
    for order in orders[1:]:
        placement = fit.placed_below(placement.peak_bytes, order) or placement
    if enough_bytes is not None and enough_bytes < placement.peak_bytes <= NEAR * enough_bytes:
        soonest = (by_broad_life, by_broad_area, by_broad_size)
        attempts = [_move_up(fit, order, enough_bytes) for order in soonest]
        for attempt in (islice(each, rounds) for rounds in TURNS for each in attempts):
            for order in filter(None, attempt):
                placement = fit.placed_below(placement.peak_bytes, order) or placement
            if placement.peak_bytes <= enough_bytes:
                break
    return OffsetAssignment(tuple(placement.offsets.tolist()), placement.peak_bytes)


def _sorted_by(key: Sequence[Any]) -> list[int]:
    """Sort the indices of buffers by a key of each."""
    return sorted(range(len(key)), key=key.__getitem__)


def _fullness(buffers: Sequence[LiveBuffer]) -> list[int]:
    """Rank of the fullest step that each buffer lives in: 0 is the fullest of all."""
    held = held_bytes(buffers, max((buffer.last for buffer in buffers), default=0) + 1)
    rank = np.empty(len(held), np.int64)
    rank[np.argsort(-held, kind="stable")] = np.arange(len(held))
    return [int(rank[buffer.first : buffer.last + 1].min()) for buffer in buffers]


def _move_up(fit: _FirstFit, order: Sequence[int], enough_bytes: int) -> Iterator[list[int] | None]:
    """Place those buffers earlier that reached too far, the small ones last, round by round.

    Yields None while large ones reach too far, and in the end an order in which they do not.
    """
    whole = np.array(order, np.int64)
    is_small = (fit.nbytes[whole] < SMALL * enough_bytes) & (len(whole) > MANY)
    large, small = whole[~is_small], whole[is_small]
    small = small[np.argsort(-fit.nbytes[small], kind="stable")]
    placed, moved = None, frozenset[int]()
    while True:
        placed = fit.placed(large.tolist(), placed, moved)
        if placed.peak_bytes <= enough_bytes:
            yield [*large.tolist(), *small.tolist()]
            return
        yield None
        reaches = placed.offsets[large] + fit.nbytes[large] > enough_bytes
        moved = frozenset(large[reaches].tolist())
        places = np.arange(len(large)) - (PLACES + 0.5) * reaches
        large = large[np.argsort(places, kind="stable")]


class _Placement(NamedTuple):
    """Offsets of buffers, in an array, and the bytes of the block."""

    offsets: Any
    peak_bytes: int


class _FirstFit:
    """Buffers placed in an order, each at the lowest offset where nothing lives meanwhile."""

    def __init__(self, buffers: Sequence[LiveBuffer]) -> None:
        self._first = np.array([buffer.first for buffer in buffers], np.int32)
        self._last = np.array([buffer.last for buffer in buffers], np.int32)
        #: Of each buffer, aligned.
        self.nbytes = np.array([align(buffer.nbytes) for buffer in buffers], np.int64)
        #: Of each buffer the steps of its life, a bit each.
        self._lives = [(1 << each.last + 1) - (1 << each.first) for each in buffers]

    def placed(
        self,
        order: Sequence[int],
        before: _Placement | None = None,
        moved: Collection[int] = (),
    ) -> _Placement:
        """Place the buffers of an order; the offset of any other is 0.

        Where these were placed before in the same order, but that some moved up in it, only those
        are placed again that live when one does which has moved, or lies elsewhere.
        """
        found = self._placed(order, np.inf, before, moved)
        assert found is not None
        return found

    def placed_below(self, most_bytes: int, order: Sequence[int]) -> _Placement | None:
        """Place the buffers of an order; None where they reach so many bytes."""
        return self._placed(order, most_bytes, None, ())

    def _placed(
        self,
        order: Sequence[int],
        most: float,
        before: _Placement | None,
        moved: Collection[int],
    ) -> _Placement | None:
        offsets = before.offsets.copy() if before else np.zeros(len(self._lives), np.int64)
        first, last, nbytes = (of[order] for of in (self._first, self._last, self.nbytes))
        start = offsets[order]
        stop, changed = start + nbytes, 0 if before else -1
        sizes, lives, begins, ends = (
            nbytes.tolist(), [self._lives[index] for index in order], first.tolist(), last.tolist()
        )  # fmt: skip
        for count, index in enumerate(order):
            if not changed & lives[count] and index not in moved:
                continue
            met = (first[:count] <= ends[count]) & (last[:count] >= begins[count])
            lowest = _lowest(start[:count][met], stop[:count][met], sizes[count])
            if lowest + sizes[count] >= most:
                return None
            if lowest != start[count] or index in moved:
                changed |= lives[count]
            start[count], stop[count] = lowest, lowest + sizes[count]
        offsets[order] = start
        return _Placement(offsets, int(stop.max(initial=0)))


def _lowest(starts: Any, stops: Any, nbytes: int) -> int:
    """The lowest offset of so many bytes beside ranges that are taken."""
    if not len(starts):
        return 0
    order = starts.argsort()
    starts, ends = starts[order], np.maximum.accumulate(stops[order])  # of all that start before
    if starts[0] >= nbytes:
        return 0
    fits = starts[1:] - ends[:-1] >= nbytes
    gap = int(fits.argmax()) if len(fits) else 0
    return int(ends[gap] if len(fits) and fits[gap] else ends[-1])
