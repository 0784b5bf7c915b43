"""Exact prices of splits, and descents along whole lines: what judges the planner's search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ooc_cudnn.call_planner.search import Search
from perfmodel import Split

#: The paper's order: each later axis costs more extra traffic when it is cut.
ORDER = ("n", "h_y", "c_x", "c_y")


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
        self.search, self.limit_bytes = search, limit_bytes
        self.sizes = sizes or {axis: search.candidates(axis) for axis in ORDER}
        self._seconds: dict[Split, float] = {}

    def seconds(self, splits: Sequence[Split]) -> list[float]:
        """Predicted seconds of splits; infinite where one is illegal or does not fit."""
        new = [split for split in dict.fromkeys(splits) if split not in self._seconds]
        self._seconds |= dict.fromkeys(new, float("inf"))
        legal = [split for split in new if self.search.call.is_legal(split)]
        for priced in self.search.prices(legal, self.limit_bytes):
            self._seconds[priced.split] = priced.seconds
        return [self._seconds[split] for split in splits]


def descended(prices: Prices, starts: Iterable[Split]) -> float:
    """The fewest seconds that whole lines along the axes lead to, from several splits."""
    best = float("inf")
    for split in starts:
        seconds, before = prices.seconds([split])[0], None
        while seconds != before:
            before = seconds
            for axis in ORDER:
                line = [split, *(replace(split, **{axis: size}) for size in prices.sizes[axis])]
                of_line = prices.seconds(line)
                seconds = min(of_line)
                split = line[of_line.index(seconds)]
        best = min(best, seconds)
    return best
