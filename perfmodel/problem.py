"""What a search is asked and what it answers: a problem, prices of splits, the split found.

A search knows nothing of convolutions. It sees a `Problem`: the full extents, the piece sizes
worth trying on each axis, and the price of a split, in bytes of device memory and in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .pipeline import Split
from .record import Record, members, number, whole

AXES = ("n", "h_y", "c_x", "c_y")
"""The paper's order: each later axis costs more extra traffic when it is cut."""


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


def default_candidates(
    extent: int, at_most: int = 24, largest: int | None = None
) -> tuple[int, ...]:
    """Return piece sizes that cut `extent` into 1, 2, 3, 4, 6, 8, 12, ... even pieces.

    Largest first, always with `extent` itself and 1; none above `largest`. Where the series is
    longer than `at_most`, it is thinned evenly but for its first third: of few pieces, one more or
    less makes a difference.

    Examples
    --------
    >>> default_candidates(64)
    (64, 32, 22, 16, 11, 8, 6, 4, 3, 2, 1)
    >>> default_candidates(64, at_most=6)
    (64, 32, 22, 8, 4, 1)
    >>> default_candidates(64, largest=30)
    (22, 16, 11, 8, 6, 4, 3, 2, 1)
    """
    whole("extent", extent, at_least=1)
    whole("at_most", at_most, at_least=2)
    sizes = {extent, 1}
    power = 1
    while power <= extent:
        # counts 2^k and 3 * 2^(k-1): a piece holds ceil(extent / count)
        sizes |= {-(-extent // count) for count in (power, 3 * power // 2) if count <= extent}
        power *= 2
    series = sorted((size for size in sizes if size <= (largest or extent)), reverse=True)
    if len(series) > at_most:
        kept = at_most // 3
        step = (len(series) - 1 - kept) / (at_most - 1 - kept)
        thinned = [series[kept + round(pick * step)] for pick in range(at_most - kept)]
        series = series[:kept] + thinned
    return tuple(series)
