"""A line: seconds = alpha * work + beta, and what further features of the work add.

The paper (section 4.1, 4.2) models every stage so: work is bytes for a copy and arithmetic for a
convolution. `Line.seconds` is the only place where that formula is evaluated; `fitting` finds a
line, and judges it through `Line.seconds`. Where one amount of work is not enough (a convolution
also moves bytes, and pads its channels to the tiles it computes), the line has further terms, each
linear as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .record import Record, Table, number

Floats = NDArray[np.float64]

NO_FEATURES: Mapping[str, Any] = Table({})


@dataclass(frozen=True)
class Line(Record):
    """Seconds as a function of work.

    Parameters
    ----------
    alpha : float
        Seconds per unit of work (a byte, a floating-point operation), at least 0.
    beta : float
        Seconds that each copy or kernel costs whatever its size, at least 0.
    terms : mapping from name to float
        Seconds per unit of further features of the work, at least 0.

    Examples
    --------
    >>> Line(alpha=2e-9, beta=1e-3).seconds(5e6)
    0.011
    >>> Line(2e-9, 1e-3, {"elements": 1e-9}).seconds(5e6, {"elements": 1e6})
    0.012
    """

    alpha: float
    beta: float
    terms: Mapping[str, float] = field(default_factory=dict)

    optional = ("terms",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", number("alpha", self.alpha))
        object.__setattr__(self, "beta", number("beta", self.beta))
        terms = {name: number(f"terms[{name!r}]", rate) for name, rate in self.terms.items()}
        object.__setattr__(self, "terms", Table(terms))

    def scaled(self, factor: float) -> Line:
        """Return the line of what takes so many times as long."""
        terms = {name: rate * factor for name, rate in self.terms.items()}
        return Line(self.alpha * factor, self.beta * factor, terms)

    @overload
    def seconds(self, work: float, features: Mapping[str, float] = ...) -> float: ...
    @overload
    def seconds(self, work: Floats, features: Mapping[str, Floats] = ...) -> Floats: ...
    def seconds(self, work: Any, features: Mapping[str, Any] = NO_FEATURES) -> Any:
        """Return the seconds for `work` and its further features, numbers or arrays of them.

        A feature that is not given is 0.
        """
        # t = alpha * work + sum_k gamma_k * feature_k + beta
        seconds = self.alpha * work + self.beta
        for name, rate in self.terms.items():
            amount = features.get(name)
            if amount is not None:
                seconds = seconds + rate * amount
        return seconds
