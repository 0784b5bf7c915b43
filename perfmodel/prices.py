"""Prices asked so far, each once, and how to compare them: what all searches have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .pipeline import Split
from .problem import Found, InfeasibleError, Price, Problem
from .record import whole

KEPT_ALTERNATIVES = 5
WORTH_A_CUT = 0.02
"""Share of the seconds that a cut must save where memory does not ask for it: a prediction is not
exact, and every cut adds launches, accumulation and traffic that it sees only in part."""


def resized(split: Split, sizes: dict[str, int]) -> Split:
    """Return `split` with other piece sizes on some axes."""
    return replace(split, **sizes)


class Prices:
    """Prices asked so far, each once, and how to compare them."""

    def __init__(self, problem: Problem, limit_bytes: int) -> None:
        self.problem = problem
        self.limit_bytes = whole("limit_bytes", limit_bytes)
        self.prices: dict[Split, Price] = {}

    def price(self, split: Split) -> Price:
        """Return what a split costs, asking once."""
        found = self.prices.get(split)
        if found is None:
            found = self.prices[split] = self.problem.price(split)
        return found

    def sizes(self, axis: str) -> tuple[int, ...]:
        """Return the candidates on `axis`, largest first."""
        extent = getattr(self.problem.extents, axis)
        sizes = tuple(sorted(set(self.problem.candidates(axis)), reverse=True))
        if not sizes or sizes[0] > extent or sizes[-1] < 1:
            raise ValueError(f"candidates of {axis} are {sizes}; they must lie in 1 to {extent}")
        return sizes

    def rank(self, split: Split) -> tuple[bool, int, float]:
        """Return what is to be least: illegality, then bytes over the limit, then seconds."""
        price = self.price(split)
        if not price.legal:
            # what is too large to be legal becomes so by cutting: the smaller the better
            return True, split.n * split.h_y * split.c_x * split.c_y, 0.0
        # a difference in the last digits is no reason to prefer smaller pieces
        seconds = float(f"{price.seconds:.9e}")
        return False, max(price.memory_bytes - self.limit_bytes, 0), seconds

    def fits(self, split: Split) -> bool:
        """Whether a split is legal and within the limit."""
        price = self.price(split)
        return price.legal and price.memory_bytes <= self.limit_bytes

    def ordered(self, axes: Sequence[str]) -> Found:
        """Cut axis by axis, from the whole; if that ends beyond the limit, grow the smallest."""
        split = self.refine(self.problem.extents, axes)
        return self.found(split) if self.fits(split) else self.grown(axes)

    def grown(self, axes: Sequence[str]) -> Found:
        """Look for what fits among the smallest pieces, and grow it axis by axis."""
        smallest = {axis: min(self.sizes(axis)) for axis in axes}
        split = self.shrink(resized(self.problem.extents, smallest), axes)
        return self.found(self.refine(split, axes) if self.fits(split) else split)

    def refine(self, split: Split, axes: Iterable[str]) -> Split:
        """Choose the best size axis by axis, and once more where that improves."""
        for _ in range(2):
            before = self.rank(split)
            for axis in axes:
                best = min(
                    (resized(split, {axis: size}) for size in self.sizes(axis)), key=self.rank
                )
                if self.is_worth(best, split):
                    split = best
            if not self.rank(split) < before:
                break
        return split

    def is_worth(self, better: Split, than: Split) -> bool:
        """Whether a split is legal or fits where another does not, or saves enough seconds."""
        new, old = self.rank(better), self.rank(than)
        return new[:2] < old[:2] or (new[:2] == old[:2] and new[2] < old[2] * (1 - WORTH_A_CUT))

    def shrink(self, split: Split, axes: Iterable[str]) -> Split:
        """Look for less memory than `split` needs, where smaller pieces do not mean less.

        An axis that is whole needs no halos and no sums; between that and its smallest pieces,
        memory grows with their size.
        """
        if self.fits(split):
            return split

        def memory(candidate: Split) -> tuple[bool, int]:
            price = self.price(candidate)
            return not price.legal, price.memory_bytes

        for axis in axes:
            sizes = self.sizes(axis)
            ends = (resized(split, {axis: size}) for size in (sizes[0], sizes[-1]))
            split = min((split, *ends), key=memory)
        return split

    def found(self, split: Split) -> Found:
        """Return `split` with its runners-up, or raise if it does not fit."""
        if not self.fits(split):
            legal = [price.memory_bytes for price in self.prices.values() if price.legal]
            reason = self.price(split).reason
            raise InfeasibleError(self.limit_bytes, min(legal, default=None), reason)
        fitting = [item for item in self.prices.items() if self.fits(item[0]) and item[0] != split]
        fitting.sort(key=lambda item: (item[1].seconds, item[1].memory_bytes))
        alternatives = tuple(fitting[:KEPT_ALTERNATIVES])
        return Found(split, self.prices[split], len(self.prices), alternatives)
