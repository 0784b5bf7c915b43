"""Extents: bytes of device memory from a first step to a last one, and where in a block they lie.

One pure function over a list: extents that live at the same time get bytes of their own. What is
promised is the peak with addresses, not the sum of what lives at once.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    found = min((_first_fit(extents, order) for order in orders), key=lambda p: p.peak_bytes)
    if enough_bytes is None or not enough_bytes < found.peak_bytes <= NEAR * enough_bytes:
        return found
    for order in orders[:2]:
        found = min(found, _moved_up(extents, order, enough_bytes), key=lambda p: p.peak_bytes)
        if found.peak_bytes <= enough_bytes:
            break
    return found


def _moved_up(extents: Sequence[Extent], order: Sequence[int], enough_bytes: int) -> Placed:
    """Place extents in an order in which those that reached too far came earlier and earlier."""
    is_small = [extent.nbytes < SMALL * enough_bytes for extent in extents]
    large = [index for index in order if not is_small[index]]
    small = sorted((i for i in order if is_small[i]), key=lambda i: -extents[i].nbytes)
    for _ in range(MOST_ROUNDS):
        placed = _first_fit(extents, large)
        if placed.peak_bytes <= enough_bytes:
            break  # none of them would move, whatever the small ones take
        reach = [placed.offsets[index] + aligned(extents[index].nbytes) for index in large]
        places = [at - (PLACES + 0.5) * (reach[at] > enough_bytes) for at in range(len(large))]
        large = [large[at] for at in sorted(range(len(large)), key=places.__getitem__)]
    return _first_fit(extents, [*large, *small])


def _first_fit(extents: Sequence[Extent], order: Sequence[int]) -> Placed:
    """Place extents in an order, each at the lowest offset where nothing lives meanwhile."""
    first, last, start, stop = (np.zeros(len(extents), np.int64) for _ in range(4))
    offsets, peak = [0] * len(extents), 0
    for count, index in enumerate(order):
        extent = extents[index]
        met = (first[:count] <= extent.last) & (last[:count] >= extent.first)
        starts, stops = start[:count][met], stop[:count][met]
        nearest = np.argsort(starts, kind="stable")
        starts = starts[nearest]
        # where a gap begins: after all that starts before it
        begins = np.maximum.accumulate(np.concatenate(([0], stops[nearest])))
        nbytes = aligned(extent.nbytes)
        gaps = np.append(starts, np.iinfo(np.int64).max) - begins
        offset = int(begins[np.argmax(gaps >= nbytes)])
        offsets[index] = offset
        first[count], last[count] = extent.first, extent.last
        start[count], stop[count] = offset, offset + nbytes
        peak = max(peak, offset + nbytes)
    return Placed(tuple(offsets), peak)
