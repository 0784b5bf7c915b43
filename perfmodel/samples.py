"""What a line was fitted to: kept with the model, so that its errors can be drawn and looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .linear import FEWEST_WORKS, Fit, FitError, Floats, Line, fit
from .record import Table, mapping, members, number


@dataclass(frozen=True)
class Samples:
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

    def __post_init__(self) -> None:
        columns = {"work": self.work, "seconds": self.seconds, **self.features}
        checked = {name: _column(name, held) for name, held in columns.items()}
        for name, column in checked.items():
            if len(column) != len(checked["work"]):
                raise ValueError(
                    f"{name} has {len(column)} samples, but work has {len(checked['work'])}"
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

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values; without features they are left out."""
        columns: dict[str, Any] = {"work": list(self.work), "seconds": list(self.seconds)}
        if self.features:
            columns["features"] = {name: list(column) for name, column in self.features.items()}
        return columns

    @classmethod
    def from_json(cls, data: object) -> Samples:
        """Return what `to_json` described."""
        held = members("Samples", {"features": {}, **mapping("Samples", data)}, _COLUMNS)
        return cls(held["work"], held["seconds"], mapping("features", held["features"]))


def fit_samples(samples: Samples, like: Line | None = None) -> Fit:
    """Fit a line to samples, or scale a known one where that predicts better.

    A line with many terms needs many samples. Fewer still tell how much faster or slower the
    machine is than one whose line is known, if that is of the same kind.

    Parameters
    ----------
    samples : Samples
    like : Line, optional
        A line of the same kind, of any machine.

    Returns
    -------
    Fit
        Of the two the one with the smaller error on samples held out. With no more samples than
        unknowns, or too few amounts of work, the scaled one.

    Raises
    ------
    FitError
        As `fit`.

    Examples
    --------
    >>> samples = Samples((1e6, 2e6, 3e6), (1e-3, 1e-3, 5e-3), {"x": (1.0, 0.0, 3.0)})
    >>> fit_samples(samples, like=Line(1e-9, 0.0, {"x": 1e-3})).line
    Line(alpha=5e-10, beta=0.0, terms={'x': 0.0005})
    """
    if like is None:
        return fit(samples.work, samples.seconds, samples.features)
    scaled = fit_scaled(samples, like)
    amounts = len(set(samples.work))
    if amounts < FEWEST_WORKS or (
        samples.features and len(samples.work) <= 2 + len(samples.features)
    ):
        return scaled
    fitted = fit(samples.work, samples.seconds, samples.features)
    return min((fitted, scaled), key=lambda found: found.held_out_error)


def fit_proportional(samples: Samples) -> Fit:
    """Fit a line through the origin: the median of the samples' rates.

    Raises
    ------
    FitError
        If a sample has no work.

    Examples
    --------
    >>> fit_proportional(Samples((1e6, 2e6, 4e6), (1e-3, 2e-3, 9e-3))).line
    Line(alpha=1e-09, beta=0.0, terms={})
    """
    return fit_scaled(samples, Line(1.0, 0.0))


def fit_scaled(samples: Samples, like: Line) -> Fit:
    """Scale a known line by the median of what samples take over what it says.

    Raises
    ------
    FitError
        If the line says that a sample takes no time.

    Examples
    --------
    >>> fit_scaled(Samples((1e6, 2e6), (1e-3, 2e-3)), Line(5e-10, 0.0)).line
    Line(alpha=1e-09, beta=0.0, terms={})
    """
    seconds, predicted = np.array(samples.seconds), samples.predicted(like)
    if not predicted.all():
        raise FitError("the line to scale takes no time")
    ratios = seconds / predicted
    factor = float(np.median(ratios))
    line = like.scaled(factor)
    # each sample predicted by the others; a single one by nothing
    held_out = [
        abs(float(np.median(np.delete(ratios, at))) / ratio - 1.0) if len(ratios) > 1 else 1.0
        for at, ratio in enumerate(ratios)
    ]
    residuals = tuple(samples.residuals(line).tolist())
    return Fit(line, residuals, float(np.median(held_out)))


_COLUMNS = ("work", "seconds", "features")


def _column(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{name} is {values!r:.80}; it must be a list of numbers")
    return tuple(number(name, value) for value in values)
