"""The split: the paper's ordered search, and the exhaustive one that judges it.

A search knows nothing of convolutions. It sees a `Problem`: the full extents, the piece sizes
worth trying on each axis, and the price of a split, in bytes of device memory and in seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .pipeline import Split
from .record import Record, members, number, whole

AXES = ("n", "h_y", "c_x", "c_y")
"""The paper's order: each later axis costs more extra traffic when it is cut."""

KEPT_ALTERNATIVES = 5
WORTH_A_CUT = 0.02
"""Share of the seconds that a cut must save where memory does not ask for it: a prediction is not
exact, and every cut adds launches, accumulation and traffic that it sees only in part."""


@dataclass(frozen=True, slots=True)
class Price(Record):
    """What a split costs.

    Parameters
    ----------
    memory_bytes : int
        Device memory it needs, everything counted.
    seconds : float
        Predicted seconds of the whole call.
    legal : bool
        False where the split cannot run whatever the memory; `reason` says why.
    """

    memory_bytes: int
    seconds: float
    legal: bool = True
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_bytes", whole("memory_bytes", self.memory_bytes))
        object.__setattr__(self, "seconds", number("seconds", self.seconds))
        if not isinstance(self.legal, bool) or not isinstance(self.reason, str):
            raise TypeError(f"legal is {self.legal!r}, reason {self.reason!r}; a bool and a str")
        if self.legal == bool(self.reason):
            raise ValueError("an illegal split has a reason, and a legal one has none")


class Problem(Protocol):
    """What a search asks about."""

    @property
    def extents(self) -> Split:
        """The full sizes: the split with a single piece."""

    def candidates(self, axis: str) -> tuple[int, ...]:
        """Return the piece sizes to try on `axis`, one of "n", "h_y", "c_x", "c_y"."""

    def price(self, split: Split) -> Price:
        """Return what `split` costs; the same every time."""


class InfeasibleError(ValueError):
    """No split fits the limit.

    Attributes
    ----------
    limit_bytes : int
    smallest_bytes : int or None
        Memory of the smallest legal split that was examined; None where none was legal at all.
    reason : str
        Why the last split examined is illegal; empty where it only lacks memory.
    """

    def __init__(self, limit_bytes: int, smallest_bytes: int | None, reason: str = "") -> None:
        self.limit_bytes = limit_bytes
        self.smallest_bytes = smallest_bytes
        self.reason = reason
        super().__init__(
            f"no split is legal, whatever the limit: {reason}"
            if smallest_bytes is None
            else f"no split fits {limit_bytes} bytes; the smallest needs {smallest_bytes} bytes"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.limit_bytes, self.smallest_bytes, self.reason)


@dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Parameters
    ----------
    split : Split
    price : Price
    examined : int
        Different splits priced on the way.
    alternatives : tuple of (Split, Price)
        The best others that fit, fastest first.
    """

    split: Split
    price: Price
    examined: int
    alternatives: tuple[tuple[Split, Price], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "split": self.split.to_json(),
            "price": self.price.to_json(),
            "examined": self.examined,
            "alternatives": [[s.to_json(), p.to_json()] for s, p in self.alternatives],
        }

    @classmethod
    def from_json(cls, data: object) -> Found:
        """Return what `to_json` described."""
        held = members("Found", data, ("split", "price", "examined", "alternatives"))
        return cls(
            Split.from_json(held["split"]),
            Price.from_json(held["price"]),
            whole("examined", held["examined"]),
            tuple((Split.from_json(s), Price.from_json(p)) for s, p in held["alternatives"]),
        )


def default_candidates(extent: int, at_most: int = 24) -> tuple[int, ...]:
    """Return piece sizes that cut `extent` into 1, 2, 3, 4, 6, 8, 12, ... even pieces.

    Largest first, always with `extent` itself and 1. Where the series is longer than `at_most`,
    it is thinned evenly.

    Examples
    --------
    >>> default_candidates(64)
    (64, 32, 22, 16, 11, 8, 6, 4, 3, 2, 1)
    >>> default_candidates(64, at_most=4)
    (64, 16, 4, 1)
    """
    whole("extent", extent, at_least=1)
    whole("at_most", at_most, at_least=2)
    sizes = {extent, 1}
    power = 1
    while power <= extent:
        # counts 2^k and 3 * 2^(k-1): a piece holds ceil(extent / count)
        sizes |= {-(-extent // count) for count in (power, 3 * power // 2) if count <= extent}
        power *= 2
    series = sorted(sizes, reverse=True)
    if len(series) > at_most:
        step = (len(series) - 1) / (at_most - 1)
        series = [series[round(pick * step)] for pick in range(at_most)]
    return tuple(series)


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
    search = _Search(problem, limit_bytes)
    axes = _checked_order(order)
    split = search.refine(problem.extents, axes)
    if not search.fits(split):
        corner = _with(problem.extents, {axis: min(search.sizes(axis)) for axis in axes})
        split = search.refine(search.shrink(corner, axes), axes)
    return search.found(split)


def exhaustive_search(problem: Problem, limit_bytes: int) -> Found:
    """Return the best of all splits made of the candidates: slow, and the measure of the others.

    Raises
    ------
    InfeasibleError
        If nothing legal fits.
    """
    search = _Search(problem, limit_bytes)
    splits = (
        _with(problem.extents, dict(zip(AXES, sizes, strict=True)))
        for sizes in itertools.product(*(search.sizes(axis) for axis in AXES))
    )
    return search.found(min(splits, key=search.rank))


def _checked_order(order: Sequence[str]) -> tuple[str, ...]:
    axes = tuple(order)
    if len(set(axes)) != len(axes) or not set(axes) <= set(AXES):
        raise ValueError(f"order is {axes!r}; it must name each axis once, of {', '.join(AXES)}")
    return axes


def _with(split: Split, sizes: dict[str, int]) -> Split:
    return replace(split, **sizes)


class _Search:
    """Prices asked so far, each once, and how to compare them."""

    def __init__(self, problem: Problem, limit_bytes: int) -> None:
        self.problem = problem
        self.limit_bytes = whole("limit_bytes", limit_bytes)
        self.prices: dict[Split, Price] = {}

    def price(self, split: Split) -> Price:
        if split not in self.prices:
            self.prices[split] = self.problem.price(split)
        return self.prices[split]

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
        price = self.price(split)
        return price.legal and price.memory_bytes <= self.limit_bytes

    def refine(self, split: Split, axes: Iterable[str]) -> Split:
        """Choose the best size axis by axis, and once more where that improves."""
        for _ in range(2):
            before = self.rank(split)
            for axis in axes:
                best = min((_with(split, {axis: size}) for size in self.sizes(axis)), key=self.rank)
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
        """Look for less memory than `split` needs, where smaller pieces do not mean less."""
        if self.fits(split):
            return split

        def memory(candidate: Split) -> tuple[bool, int]:
            price = self.price(candidate)
            return not price.legal, price.memory_bytes

        for axis in axes:
            others = (_with(split, {axis: size}) for size in self.sizes(axis))
            split = min((split, *others), key=memory)
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
