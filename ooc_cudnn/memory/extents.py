"""Extents: bytes of device memory from a first step to a last one, and where in a block they lie.

One pure function over a list: extents that live at the same time get bytes of their own. What is
promised is the peak with addresses, not the sum of what lives at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.memory.alignment import aligned


class Extent(NamedTuple):
    """Bytes of a block that are held from a first step to a last one, both included."""

    first: int
    last: int
    nbytes: int


class Placed(NamedTuple):
    """Where each extent starts in the block, and the bytes of the block."""

    offsets: tuple[int, ...]
    peak_bytes: int


def held_bytes(extents: Sequence[Extent], steps: int) -> Any:
    """Bytes that live in each step: what no placement can stay below."""
    change = np.zeros(steps + 1, np.int64)
    for extent in extents:
        change[extent.first] += aligned(extent.nbytes)
        change[extent.last + 1] -= aligned(extent.nbytes)
    return np.cumsum(change)[:-1]


#: Where too much is taken, extents that reach too far move up so many places in the order, this
#: often; smaller ones, as a share of what may be taken, are placed in the end.
PLACES, MOST_ROUNDS, SMALL = 20, 64, 2**-10
#: It is tried where no more than so many times that is taken.
NEAR = 1.1


def place(extents: Sequence[Extent], enough_bytes: int | None = None) -> Placed:
    """Give each extent an offset: the best of three orders of placing them, each first fit.

    Large ones first is best for most lists; those that live long first where many small ones come
    and go beside a few that stay; and in the order of time where sizes are alike. Where they take
    more than `enough_bytes`, those that reach too far are placed earlier, again and again ("squeaky
    wheel" optimization).

    Examples
    --------
    >>> place([Extent(0, 1, 512), Extent(1, 2, 256), Extent(2, 3, 512)])
    Placed(offsets=(0, 512, 0), peak_bytes=768)
    """
    keys = [
        [(-extent.nbytes, extent.first) for extent in extents],
        [(extent.first - extent.last, -extent.nbytes) for extent in extents],
        [(extent.first, -extent.nbytes) for extent in extents],
    ]
    orders = [sorted(range(len(extents)), key=each.__getitem__) for each in keys]
    fit = _FirstFit(extents)
    found = min(map(fit.placed, orders), key=lambda p: p.peak_bytes)
    if enough_bytes is None or not enough_bytes < found.peak_bytes <= NEAR * enough_bytes:
        return found
    for order in orders[:2]:
        found = min(found, _moved_up(fit, extents, order, enough_bytes), key=lambda p: p.peak_bytes)
        if found.peak_bytes <= enough_bytes:
            break
    return found


def _moved_up(
    fit: _FirstFit, extents: Sequence[Extent], order: Sequence[int], enough_bytes: int
) -> Placed:
    """Place extents in an order in which those that reached too far came earlier and earlier."""
    is_small = [extent.nbytes < SMALL * enough_bytes for extent in extents]
    large = [index for index in order if not is_small[index]]
    small = sorted((i for i in order if is_small[i]), key=lambda i: -extents[i].nbytes)
    for _ in range(MOST_ROUNDS):
        placed = fit.placed(large)
        if placed.peak_bytes <= enough_bytes:
            break  # none of them would move, whatever the small ones take
        reach = [placed.offsets[index] + aligned(extents[index].nbytes) for index in large]
        places = [at - (PLACES + 0.5) * (reach[at] > enough_bytes) for at in range(len(large))]
        large = [large[at] for at in sorted(range(len(large)), key=places.__getitem__)]
    return fit.placed([*large, *small])


class _FirstFit:
    """Extents placed in an order, each at the lowest offset where nothing lives meanwhile.

    Where another order begins as the one before, what is placed alike stays.
    """

    def __init__(self, extents: Sequence[Extent]) -> None:
        self._extents = extents
        self._order: Sequence[int] = ()
        self._first, self._last, self._start, self._stop = np.zeros((4, len(extents)), np.int64)

    def placed(self, order: Sequence[int]) -> Placed:
        """Place the extents of an order; the offset of any other is 0."""
        pairs = zip(order, self._order, strict=False)
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for count, index in enumerate(order[alike:], alike):
            extent = self._extents[index]
            offset = self._lowest(extent, count)
            self._first[count], self._last[count] = extent.first, extent.last
            self._start[count], self._stop[count] = offset, offset + aligned(extent.nbytes)
        self._order = order
        offsets = [0] * len(self._extents)
        for index, offset in zip(order, self._start.tolist(), strict=False):
            offsets[index] = offset
        return Placed(tuple(offsets), int(self._stop[: len(order)].max(initial=0)))

    def _lowest(self, extent: Extent, count: int) -> int:
        """The lowest offset of an extent beside the first `count` that are placed."""
        met = (self._first[:count] <= extent.last) & (self._last[:count] >= extent.first)
        starts, stops = self._start[:count][met], self._stop[:count][met]
        nearest = starts.argsort()
        # where a gap begins: after all that starts before it
        begins = np.zeros(len(starts) + 1, np.int64)
        np.maximum.accumulate(stops[nearest], out=begins[1:])
        free = np.flatnonzero(starts[nearest] - begins[:-1] >= aligned(extent.nbytes))
        return int(begins[free[0] if len(free) else -1])
