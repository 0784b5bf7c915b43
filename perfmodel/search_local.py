"""Local search: the paper's comparison, which ends where no single step is better."""

from __future__ import annotations

from collections.abc import Iterator

from .pipeline import Split
from .prices import Prices, resized
from .problem import AXES, Found, Problem


def local_search(problem: Problem, limit_bytes: int, start: Split | None = None) -> Found:
    """Return the split found by stepping to the best neighbour until none is better.

    A neighbour has the next larger or the next smaller piece size on one axis. What is found is a
    local optimum: the paper saw ones 5 to 27 % below the best.

    Parameters
    ----------
    problem : Problem
    limit_bytes : int
        Device memory that may be used.
    start : Split, optional
        Where to begin, made of candidates; the smallest pieces when left out. The paper begins at
        a split that fits; one that does not is left towards less memory.

    Raises
    ------
    InfeasibleError
        If no split on the way fits.
    ValueError
        If a size of `start` is no candidate.
    """
    prices = Prices(problem, limit_bytes)
    sizes = {axis: prices.sizes(axis) for axis in AXES}
    if start is None:
        smallest = resized(problem.extents, {axis: min(sizes[axis]) for axis in AXES})
        start = prices.shrink(smallest, AXES)
    for axis in AXES:
        if getattr(start, axis) not in sizes[axis]:
            raise ValueError(f"start is {start}; its {axis} must be one of {sizes[axis]}")
    split = start
    while True:
        best = min(_neighbours(split, sizes), key=prices.rank, default=split)
        if not prices.rank(best) < prices.rank(split):
            return prices.found(split)
        split = best


def _neighbours(split: Split, sizes: dict[str, tuple[int, ...]]) -> Iterator[Split]:
    """Splits one step away on one axis."""
    for axis, candidates in sizes.items():
        at = candidates.index(getattr(split, axis))
        for neighbour in (at - 1, at + 1):
            if 0 <= neighbour < len(candidates):
                yield resized(split, {axis: candidates[neighbour]})
