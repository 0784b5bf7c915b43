"""Other searches for a split, which the planner's is compared with: the paper's, and all splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ooc_cudnn.pricing.search import PricedSplit, Search
from perfmodel import Split

#: The paper's order: each later axis costs more extra traffic when it is cut.
ORDER = ("n", "h_y", "c_x", "c_y")
#: Share of the seconds that a cut must save where memory does not ask for it.
WORTH_A_CUT = 0.02


class Prices:
    """Exact prices of splits under a limit, each asked once.

    Parameters
    ----------
    search : Search
    limit_bytes : int
    sizes : mapping from axis to sequence of int, optional
        Piece sizes to choose from; the planner's candidates when left out.
    """

    def __init__(
        self, search: Search, limit_bytes: int, sizes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.search, self.limit_bytes, self.whole = search, limit_bytes, search.call.extents
        self.sizes = sizes or {axis: search.candidates(axis) for axis in ORDER}
        self.known: dict[Split, PricedSplit | None] = {}
        self._seconds: dict[Split, float] = {}

    def price(self, split: Split) -> PricedSplit | None:
        """What a split costs; None where it is illegal."""
        if split not in self.known:
            legal = self.search.call.is_legal(split)
            found = self._price(split) if legal else None
            self.known[split] = found if found is not None and found.legal else None
        return self.known[split]

    def _price(self, split: Split) -> PricedSplit:
        """In the order and with the rings that are best; that take least memory, if none fit."""
        search = self.search
        fitting = search.prices([split], self.limit_bytes)
        smallest = (search.with_rings(split, o, 1, False) for o in search.request.loop_orders)
        return fitting[0] if fitting else min(smallest, key=lambda each: each.memory_bytes)

    def rank(self, split: Split) -> tuple[bool, int, float]:
        """What is to be least: illegality, then bytes over the limit, then seconds."""
        found = self.price(split)
        if found is None:
            # what is too large to be legal becomes so by cutting: the smaller the better
            return True, split.n * split.h_y * split.c_x * split.c_y, 0.0
        over = max(found.memory_bytes - self.limit_bytes, 0)
        return False, over, 0.0 if over else found.seconds

    def seconds(self, split: Split) -> float:
        """Predicted seconds; infinite where a split is illegal or does not fit."""
        illegal, over, seconds = self.rank(split)
        return float("inf") if illegal or over else seconds

    def all_seconds(self, splits: Sequence[Split]) -> list[float]:
        """The same of several splits at once."""
        new = [split for split in dict.fromkeys(splits) if split not in self._seconds]
        self._seconds |= dict.fromkeys(new, float("inf"))
        legal = [split for split in new if self.search.call.is_legal(split)]
        for found in self.search.prices(legal, self.limit_bytes):
            self._seconds[found.split] = found.seconds
        return [self._seconds[split] for split in splits]


def exhaustive(prices: Prices) -> Split:
    every = itertools.product(*(prices.sizes[axis] for axis in ORDER))
    return min((Split(**dict(zip(ORDER, sizes, strict=True))) for sizes in every), key=prices.rank)


def ordered(prices: Prices) -> Split:
    """The paper's ordered search: axis by axis from the whole, and once more where that improves.

    If that ends beyond the limit, it starts from the smallest pieces and grows them.
    """
    found = _refined(prices, prices.whole)
    if prices.seconds(found) == float("inf"):
        smallest = {axis: min(prices.sizes[axis]) for axis in ORDER}
        found = _refined(prices, _with(prices.whole, smallest))
    return found


def _refined(prices: Prices, split: Split) -> Split:
    for _ in range(2):
        before = prices.rank(split)
        for axis in ORDER:
            line = (_with(split, {axis: size}) for size in prices.sizes[axis])
            best = min(line, key=prices.rank)
            new, old = prices.rank(best), prices.rank(split)
            if new[:2] < old[:2] or (new[:2] == old[:2] and new[2] < old[2] * (1 - WORTH_A_CUT)):
                split = best
        if not prices.rank(split) < before:
            break
    return split


def local(prices: Prices, start: Split) -> Split:
    """The paper's local search: to the best neighbour, until none is better.

    A neighbour has the next larger or the next smaller piece size on one axis.
    """
    while True:
        best = min(_neighbours(prices, start), key=prices.rank, default=start)
        if not prices.rank(best) < prices.rank(start):
            return start
        start = best


def descended(prices: Prices, starts: Iterable[Split]) -> float:
    """The fewest seconds that whole lines along the axes lead to, from several splits."""
    best = float("inf")
    for split in starts:
        seconds, before = prices.all_seconds([split])[0], None
        while seconds != before:
            before = seconds
            for axis in ORDER:
                line = [split, *(_with(split, {axis: size}) for size in prices.sizes[axis])]
                found = prices.all_seconds(line)
                seconds = min(found)
                split = line[found.index(seconds)]
        best = min(best, seconds)
    return best


def _neighbours(prices: Prices, split: Split) -> Iterator[Split]:
    for axis, sizes in prices.sizes.items():
        at = sorted(sizes).index(getattr(split, axis))
        for neighbour in (at - 1, at + 1):
            if 0 <= neighbour < len(sizes):
                yield _with(split, {axis: sorted(sizes)[neighbour]})


def _with(split: Split, sizes: Mapping[str, int]) -> Split:
    return replace(split, **sizes)
