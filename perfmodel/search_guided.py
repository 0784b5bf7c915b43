"""Guided search: price exactly what is estimated to be best, until nothing better can be expected.

The estimates of all splits are cheap to make at once, and close; a price is exact, and takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .pipeline import Split
from .prices import Prices
from .problem import AXES, Found, Problem

MOST_PRICES = 40
"""Splits that are priced at most; those that turn out not to fit among them."""
FEWEST_PRICES = 3
"""Splits that are priced at least, so that there are alternatives."""
MOST_FITTING = 8
EQUAL = 0.001
"""Splits whose seconds differ by less are equally good: the one of the largest pieces is taken."""


class EstimatedProblem(Problem, Protocol):
    """A problem that can say which splits are worth pricing."""

    def promising(self, limit_bytes: int) -> Sequence[tuple[float, Split]]:
        """Return the estimated seconds of the splits that seem best within a limit, best first."""


def guided_search(problem: EstimatedProblem, limit_bytes: int) -> Found:
    """Return the best of the splits that are estimated to be best.

    Splits are priced in the order of their estimates. The search ends where the next one, even if
    its estimate were as much too high as any before, is no better than the best so far. Where
    estimates lead nowhere, an ordered search decides.

    Parameters
    ----------
    problem : EstimatedProblem
    limit_bytes : int
        Device memory that may be used.

    Raises
    ------
    InfeasibleError
        If nothing legal fits.
    """
    prices = Prices(problem, limit_bytes)
    fitting: list[Split] = []
    best, ratio = float("inf"), 1.0
    for estimate, split in problem.promising(limit_bytes)[:MOST_PRICES]:
        expected = estimate * ratio
        if len(fitting) >= FEWEST_PRICES and expected >= best * (1 - EQUAL):
            break
        if len(fitting) >= MOST_FITTING:
            break
        price = prices.price(split)
        if prices.fits(split):
            fitting.append(split)
            best = min(best, price.seconds)
            ratio = min(ratio, price.seconds / estimate)
    if not fitting:
        return prices.ordered(AXES)
    equal = [split for split in fitting if prices.price(split).seconds <= best * (1 + EQUAL)]
    return prices.found(min(equal, key=lambda split: (-_volume(split), prices.rank(split))))


def _volume(split: Split) -> int:
    return split.n * split.h_y * split.c_x * split.c_y
