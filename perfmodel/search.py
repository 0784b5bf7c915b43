"""The split: the paper's ordered search, and the exhaustive one that judges it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .prices import Prices, resized
from .problem import AXES, Found, Problem


def ordered_search(problem: Problem, limit_bytes: int, order: Sequence[str] = AXES) -> Found:
    """Return the split found by the paper's ordered search.

    From the whole extents, axis by axis in `order`, the piece size is chosen with the fewest bytes
    over the limit and then the fewest predicted seconds: an axis is cut as far as needed before
    the next is touched. A second round follows where it improves. If that does not end within the
    limit, the search starts from the smallest pieces and grows them as far as they fit.

    Parameters
    ----------
    problem : Problem
    limit_bytes : int
        Device memory that may be used.
    order : sequence of str
        Axes to cut; an axis left out stays whole.

    Raises
    ------
    InfeasibleError
        If nothing legal fits.
    """
    return Prices(problem, limit_bytes).ordered(_checked_order(order))


def exhaustive_search(problem: Problem, limit_bytes: int) -> Found:
    """Return the best of all splits made of the candidates: slow, and the measure of the others.

    Raises
    ------
    InfeasibleError
        If nothing legal fits.
    """
    search = Prices(problem, limit_bytes)
    splits = (
        resized(problem.extents, dict(zip(AXES, sizes, strict=True)))
        for sizes in itertools.product(*(search.sizes(axis) for axis in AXES))
    )
    return search.found(min(splits, key=search.rank))


def _checked_order(order: Sequence[str]) -> tuple[str, ...]:
    axes = tuple(order)
    if len(set(axes)) != len(axes) or not set(axes) <= set(AXES):
        raise ValueError(f"order is {axes!r}; it must name each axis once, of {', '.join(AXES)}")
    return axes
