"""Guided search: price exactly what is estimated to be best, until nothing better can be expected.

The estimates of all splits are cheap to make at once, and close; a price is exact, and takes long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from .pipeline import Split
from .prices import Prices
from .problem import AXES, Found, Problem

MOST_PRICES = 40
"""Splits that are priced at most; those that turn out not to fit among them."""
MOST_FITTING = 8
TOO_HIGH = 0.995
"""Of an estimate, what the price may turn out to be, as long as no price has said more."""
NOT_WORTH_PRICING = 0.001
"""Share of the seconds that the next split must promise to save."""
WORTH_A_CUT = {"h_y": 0.003, "c_x": 0.003, "c_y": 0.003}
"""Share of the seconds that it must save to cut an axis: rows and channels of a tensor are strided,
halos and sums are more work, and a prediction sees that only in part."""
_WORTHS = tuple((axis, WORTH_A_CUT.get(axis, 0.0)) for axis in AXES)
WORTH_TWICE_THE_PIECES = 0.0001
"""Share of the seconds that twice as many pieces must save."""


class EstimatedProblem(Problem, Protocol):
    """A problem that can say which splits are worth pricing."""

    def promising(self, limit_bytes: int) -> Sequence[tuple[float, Split]]:
        """Return the estimated seconds of the splits that seem best within a limit.

        In the order of seconds times `caution`.
        """


def guided_search(problem: EstimatedProblem, limit_bytes: int) -> Found:
    """Return the best of the splits that are estimated to be best.

    Of splits that are about equally fast, it takes the one with fewer cuts (`caution`). Splits are
    priced in the order of their estimates. The search ends where the next one, even if
    its estimate were as much too high as any before, is no better than the best so far. Where
    estimates lead nowhere, though something fits, an ordered search decides.

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
    least, ratio = float("inf"), TOO_HIGH
    for estimate, split in problem.promising(limit_bytes)[:MOST_PRICES]:
        expected = estimate * ratio * caution(problem.extents, split)
        if expected >= least * (1 - NOT_WORTH_PRICING):
            break
        if len(fitting) >= MOST_FITTING:
            break
        price = prices.price(split)
        if prices.fits(split):
            fitting.append(split)
            least = min(least, price.seconds * caution(problem.extents, split))
            ratio = min(ratio, price.seconds / estimate)
    if not fitting:
        smallest = replace(problem.extents, **{axis: min(prices.sizes(axis)) for axis in AXES})
        return prices.ordered(AXES) if prices.fits(smallest) else prices.grown(AXES)
    return prices.found(
        min(fitting, key=lambda s: prices.price(s).seconds * caution(problem.extents, s))
    )


def caution(whole: Split, split: Split) -> float:
    """By what factor the seconds of a split count more than those of the whole.

    Examples
    --------
    >>> whole = Split(n=4, c_y=2, c_x=1, h_y=8)
    >>> round(caution(whole, Split(1, 2, 1, 8)), 6), round(caution(whole, Split(4, 2, 1, 2)), 6)
    (1.0002, 1.0032)
    """
    pieces, cut = 1, 0.0
    for axis, worth in _WORTHS:
        count = -(-getattr(whole, axis) // getattr(split, axis))
        if count > 1:
            pieces, cut = pieces * count, cut + worth
    return 1.0 + cut + WORTH_TWICE_THE_PIECES * math.log2(pieces)
