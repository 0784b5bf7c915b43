"""Samples that a line was fitted to, kept with the model for pictures of its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .linear import Floats, Line
from .record import Record, Table, number


@dataclass(frozen=True)
class Samples(Record):
    """The measurements of one line, in columns.

    Parameters
    ----------
    work : tuple of float
        What the line is linear in: bytes, floating-point operations.
    seconds : tuple of float
        What was measured, above 0.
    features : mapping from name to tuple of float
        Further features of the work, one value a sample.

    Examples
    --------
    >>> samples = Samples((1e6, 2e6), (0.001, 0.004))
    >>> samples.residuals(Line(alpha=1e-9, beta=1e-3)).round(2).tolist()
    [1.0, -0.25]
    """

    work: tuple[float, ...]
    seconds: tuple[float, ...]
    features: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    optional = ("features",)

    def __post_init__(self) -> None:
        columns = {"work": self.work, "seconds": self.seconds, **self.features}
        checked = {name: _column(name, held) for name, held in columns.items()}
        count = len(checked["work"])
        for name, column in checked.items():
            if len(column) != count:
                raise ValueError(
                    f"{name} has {len(column)} samples, but work has {count}; they must be lists "
                    "of the same length"
                )
        if 0.0 in checked["seconds"]:
            raise ValueError("seconds has a 0; every measurement takes some time")
        object.__setattr__(self, "work", checked.pop("work"))
        object.__setattr__(self, "seconds", checked.pop("seconds"))
        object.__setattr__(self, "features", Table(checked))

    def predicted(self, line: Line) -> Floats:
        """Return the seconds that a line gives for each sample."""
        features = {name: np.array(column) for name, column in self.features.items()}
        predicted: Floats = line.seconds(np.array(self.work), features)
        return predicted

    def residuals(self, line: Line) -> Floats:
        """Return (predicted - measured) / measured of each sample."""
        residuals: Floats = self.predicted(line) / np.array(self.seconds) - 1.0
        return residuals

    def chosen(self, mask: NDArray[np.bool_]) -> Samples:
        """Return some of the samples."""
        columns = (self.work, self.seconds, *self.features.values())
        work, seconds, *features = (tuple(np.array(column)[mask].tolist()) for column in columns)
        return Samples(work, seconds, dict(zip(self.features, features, strict=True)))


def _column(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{name} is {values!r:.80}; it must be a list of numbers")
    return tuple(number(name, value) for value in values)
