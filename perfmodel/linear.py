"""Seconds are linear in work: fit and predict are one function seen from two sides.

The paper (section 4.1, 4.2) models every stage by seconds = alpha * work + beta: work is bytes for
a copy and arithmetic for a convolution. `Line.seconds` is the only place where that formula is
evaluated; `fit` finds the line, and judges it through `Line.seconds`.

The fit minimises *relative* error, so that a copy of a kilobyte counts as much as one of a
gigabyte, and it is robust: a sample disturbed by another process loses its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .record import Record, members, number, whole

Floats = NDArray[np.float64]

FEWEST_WORKS = 3
"""Two points always lie on a line; it takes a third to tell whether the line is true."""

FOLDS = 5

FALL_FORGIVEN = 0.1
"""A drift of the clock may make flat timings fall by this share; more is no drift."""


class FitError(ValueError):
    """The samples do not determine a line, or determine one that cannot be."""


@dataclass(frozen=True)
class Line(Record):
    """Seconds as a function of work.

    Parameters
    ----------
    alpha : float
        Seconds per unit of work (a byte, a floating-point operation), at least 0.
    beta : float
        Seconds that each copy or kernel costs whatever its size, at least 0.

    Examples
    --------
    >>> Line(alpha=2e-9, beta=1e-3).seconds(5e6)
    0.011
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", number("alpha", self.alpha))
        object.__setattr__(self, "beta", number("beta", self.beta))

    @overload
    def seconds(self, work: float) -> float: ...
    @overload
    def seconds(self, work: Floats) -> Floats: ...
    def seconds(self, work: float | Floats) -> float | Floats:
        """Return the seconds for `work`, a number or an array of them."""
        # t = alpha * work + beta
        return self.alpha * work + self.beta


@dataclass(frozen=True)
class Fit:
    """A fitted line and how far it can be trusted.

    Parameters
    ----------
    line : Line
    residuals : tuple of float
        (predicted - measured) / measured, in the order of the samples.
    held_out_error : float
        Median of the absolute relative error on samples that the fit had not seen: amounts of
        work are put aside in turn, all samples of one amount together.
    samples : int
    """

    line: Line
    residuals: tuple[float, ...]
    held_out_error: float
    samples: int

    def __post_init__(self) -> None:
        residuals = tuple(number("residuals", value, at_least=-np.inf) for value in self.residuals)
        object.__setattr__(self, "residuals", residuals)
        object.__setattr__(self, "held_out_error", number("held_out_error", self.held_out_error))
        object.__setattr__(self, "samples", whole("samples", self.samples, at_least=1))
        if len(residuals) != self.samples:
            raise ValueError(f"samples is {self.samples} but there are {len(residuals)} residuals")

    @property
    def residual(self) -> float:
        """Median of the absolute relative residuals: the error of a typical sample."""
        return float(np.median(np.abs(self.residuals)))

    def quality(self) -> dict[str, float]:
        """Return what a machine model keeps of a fit: residual, held_out_error, samples."""
        return {
            "residual": self.residual,
            "held_out_error": self.held_out_error,
            "samples": float(self.samples),
        }

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            "line": self.line.to_json(),
            "residuals": list(self.residuals),
            "held_out_error": self.held_out_error,
            "samples": self.samples,
        }

    @classmethod
    def from_json(cls, data: object) -> Fit:
        """Return what `to_json` described."""
        held = members("Fit", data, ("line", "residuals", "held_out_error", "samples"))
        held["line"] = Line.from_json(held["line"])
        if not isinstance(held["residuals"], Iterable):
            raise ValueError(f"residuals is {held['residuals']!r}; it must be a list of numbers")
        return cls(**held)


def fit(work: ArrayLike, seconds: ArrayLike) -> Fit:
    """Fit a line to measured samples.

    Parameters
    ----------
    work : array_like
        Work of each sample, at least 0; at least three different amounts.
    seconds : array_like
        Measured seconds of each sample, above 0.

    Raises
    ------
    FitError
        For too few samples, values that are not finite, or seconds that fall as work grows.

    Examples
    --------
    >>> work = np.array([1e6, 4e6, 16e6, 64e6])
    >>> fitted = fit(work, 2e-9 * work + 1e-3)
    >>> round(fitted.line.alpha * 1e9, 6), round(fitted.line.beta * 1e3, 6)
    (2.0, 1.0)
    """
    works, times = _checked(work, seconds)
    _refuse_negative_rate(works, times)
    line = _robust_line(works, times)
    return Fit(
        line=line,
        residuals=tuple(float(value) for value in _relative_errors(line, works, times)),
        held_out_error=_held_out_error(works, times),
        samples=len(works),
    )


def _checked(work: ArrayLike, seconds: ArrayLike) -> tuple[Floats, Floats]:
    try:
        works, times = np.asarray(work, dtype=float), np.asarray(seconds, dtype=float)
    except (TypeError, ValueError) as error:
        raise FitError(f"work and seconds must be numbers: {error}") from error
    if works.ndim != 1 or works.shape != times.shape:
        raise FitError(
            f"work has shape {works.shape} and seconds {times.shape}; "
            "they must be two lists of the same length"
        )
    if not (np.isfinite(works).all() and np.isfinite(times).all()):
        raise FitError("a sample is not finite; measure again")
    if (works < 0).any() or (times <= 0).any():
        raise FitError("a sample has negative work, or took no time; measure longer runs")
    different = len(np.unique(works))
    if different < FEWEST_WORKS:
        raise FitError(
            f"{len(works)} samples of {different} different amounts of work; "
            f"a fit needs at least {FEWEST_WORKS} amounts"
        )
    return works, times


def _relative_errors(line: Line, works: Floats, times: Floats) -> Floats:
    return line.seconds(works) / times - 1.0


def _folds(works: Floats) -> Iterator[NDArray[np.bool_]]:
    """Yield masks of the samples to hold out, each amount of work in exactly one of them."""
    _, amount = np.unique(works, return_inverse=True)
    count = min(FOLDS, int(amount.max()) + 1)
    for fold in range(count):
        yield amount % count == fold


def _held_out_error(works: Floats, times: Floats) -> float:
    errors = [
        _relative_errors(_robust_line(works[~held], times[~held]), works[held], times[held])
        for held in _folds(works)
    ]
    return float(np.median(np.abs(np.concatenate(errors))))


def _robust_line(works: Floats, times: Floats) -> Line:
    alpha, beta = _reweighted(works, times, non_negative=True)[0]
    return Line(float(alpha), float(beta))


def _refuse_negative_rate(works: Floats, times: Floats) -> None:
    """Raise if the line, left free, falls by more than the scatter of the samples explains."""
    solution, weights, rows = _reweighted(works, times, non_negative=False)
    alpha = float(solution[0])
    if alpha >= 0:
        return
    errors = rows @ solution - 1.0
    # variance of (alpha, beta) = s^2 (A^T W A)^-1, s^2 the weighted mean square of the errors
    scatter = float(np.sum(weights * errors**2) / np.sum(weights))
    uncertainty = np.sqrt(scatter * np.linalg.pinv((rows.T * weights) @ rows)[0, 0])
    fall = -alpha * np.ptp(works) / np.median(times)
    if -alpha > 3.0 * uncertainty and fall > FALL_FORGIVEN:
        raise FitError(
            f"seconds fall as work grows (alpha = {alpha:.3g} seconds per unit of work): the "
            "samples imply a negative rate; measure again on a quiet machine, after warming up"
        )


def _reweighted(
    works: Floats, times: Floats, *, non_negative: bool
) -> tuple[Floats, Floats, Floats]:
    """Least squares of relative error by iteratively reweighted least squares.

    Returns (alpha, beta), the final weight of each sample, and the rows of the linear system.
    The first rounds minimise the sum of absolute errors, which no tenth of bad samples can lead
    far astray; the later ones follow a Cauchy loss, whose scale is the spread of the good samples.
    A Cauchy weight never reaches zero: a bent curve is averaged and shows in the residuals,
    where a loss that rejects would follow one half of it and call the other half outliers.
    """
    # relative error = (alpha * work + beta) / t - 1, linear in alpha and beta
    rows = np.stack([works / times, 1.0 / times], axis=1)
    weights = np.ones_like(works)
    for round_ in range(60):
        solution = _least_squares(rows, weights, non_negative=non_negative)
        errors = np.abs(rows @ solution - 1.0)
        if round_ < 30:
            weights = 1.0 / np.maximum(errors, 1e-6)
        else:
            spread = max(1.4826 * float(np.median(errors)), 1e-6)
            weights = 1.0 / (1.0 + (errors / (2.385 * spread)) ** 2)
    return solution, weights, rows


def _least_squares(rows: Floats, weights: Floats, *, non_negative: bool) -> Floats:
    """Solve rows @ (alpha, beta) = 1; with two unknowns the bounded optimum is on an axis."""
    root = np.sqrt(weights)
    weighted = rows * root[:, None]
    # work may be 1e12 and seconds 1e-5: columns of length one keep the system well conditioned
    lengths = np.linalg.norm(weighted, axis=0)
    lengths[lengths == 0.0] = 1.0
    columns = weighted / lengths
    solution: Floats = np.asarray(np.linalg.lstsq(columns, root, rcond=None)[0])
    if non_negative and (solution < 0.0).any():
        shares = np.maximum(columns.T @ root, 0.0)
        # dropping all but one column leaves |root|^2 - share^2: the larger share wins
        solution = np.where(np.arange(2) == np.argmax(shares), shares, 0.0)
    return np.asarray(solution / lengths)
