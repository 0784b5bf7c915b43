"""Seconds are linear in work: fit and predict are one function seen from two sides.

The paper (section 4.1, 4.2) models every stage by seconds = alpha * work + beta: work is bytes for
a copy and arithmetic for a convolution. `Line.seconds` is the only place where that formula is
evaluated; `fit` finds the line, and judges it through `Line.seconds`.

Where one amount of work is not enough (a convolution also moves bytes, and pads its channels to the
tiles it computes), the line has further terms, each linear as well.

The fit minimises *relative* error, so that a copy of a kilobyte counts as much as one of a
gigabyte, and it is robust: a sample disturbed by another process loses its weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .record import Record, Table, mapping, members, number

Floats = NDArray[np.float64]

FEWEST_WORKS = 3
"""Two points always lie on a line; it takes a third to tell whether the line is true."""

FOLDS = 5

NO_FEATURES: Mapping[str, Any] = Table({})

MOST_UNEVEN = 10.0
"""A prediction further off than by this factor counts as one that is."""

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

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        terms = {"terms": dict(self.terms)} if self.terms else {}
        return {"alpha": self.alpha, "beta": self.beta, **terms}

    @classmethod
    def from_json(cls, data: object) -> Line:
        """Return what `to_json` described; further terms may be left out."""
        held = {"terms": {}, **mapping("Line", data)}
        held = members("Line", held, ("alpha", "beta", "terms"))
        return cls(held["alpha"], held["beta"], mapping("terms", held["terms"]))


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
    """

    line: Line
    residuals: tuple[float, ...]
    held_out_error: float

    @property
    def residual(self) -> float:
        """Median of the absolute relative residuals: the error of a typical sample."""
        return float(np.median(np.abs(self.residuals)))

    def quality(self) -> dict[str, float]:
        """Return what a machine model keeps of a fit: residual, held_out_error, samples."""
        return {
            "residual": self.residual,
            "held_out_error": self.held_out_error,
            "samples": float(len(self.residuals)),
        }


def fit(
    work: ArrayLike, seconds: ArrayLike, features: Mapping[str, ArrayLike] = NO_FEATURES
) -> Fit:
    """Fit a line to measured samples.

    Parameters
    ----------
    work : array_like
        Work of each sample, at least 0; at least three different amounts.
    seconds : array_like
        Measured seconds of each sample, above 0.
    features : mapping from name to array_like
        Further features of each sample, at least 0, that may become terms of the line.

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
    samples = _Samples.checked(work, seconds, features)
    if not features:
        _refuse_negative_rate(samples)
    line = _robust_line(samples)
    return Fit(
        line=line,
        residuals=tuple(float(value) for value in samples.relative_errors(line)),
        held_out_error=_held_out_error(samples),
    )


@dataclass(frozen=True)
class _Samples:
    """What was measured, checked: work, seconds and further features of each sample."""

    works: Floats
    times: Floats
    features: Mapping[str, Floats]

    @classmethod
    def checked(
        cls, work: ArrayLike, seconds: ArrayLike, features: Mapping[str, ArrayLike]
    ) -> _Samples:
        try:
            works, times = np.asarray(work, dtype=float), np.asarray(seconds, dtype=float)
            further = {name: np.asarray(of, dtype=float) for name, of in features.items()}
        except (TypeError, ValueError) as error:
            raise FitError(f"work, seconds and features must be numbers: {error}") from error
        shapes = {name: values.shape for name, values in further.items()}
        if works.ndim != 1 or any(s != works.shape for s in (times.shape, *shapes.values())):
            raise FitError(
                f"work has shape {works.shape}, seconds {times.shape}, features {shapes}; "
                "they must be lists of the same length"
            )
        if not all(np.isfinite(values).all() for values in (works, times, *further.values())):
            raise FitError("a sample is not finite; measure again")
        if any((values < 0).any() for values in (works, *further.values())) or (times <= 0).any():
            raise FitError("a sample has negative work, or took no time; measure longer runs")
        different = len(np.unique(works))
        if different < FEWEST_WORKS:
            raise FitError(
                f"{len(works)} samples of {different} different amounts of work; "
                f"a fit needs at least {FEWEST_WORKS} amounts"
            )
        return cls(works, times, further)

    def of(self, chosen: NDArray[np.bool_]) -> _Samples:
        """Some of the samples."""
        features = {name: values[chosen] for name, values in self.features.items()}
        return _Samples(self.works[chosen], self.times[chosen], features)

    @property
    def rows(self) -> Floats:
        """The linear system: relative error = rows @ (alpha, beta, gamma...) - 1."""
        columns = [self.works, np.ones_like(self.works), *self.features.values()]
        return np.stack(columns, axis=1) / self.times[:, None]

    def relative_errors(self, line: Line) -> Floats:
        return line.seconds(self.works, self.features) / self.times - 1.0


def _folds(works: Floats) -> Iterator[NDArray[np.bool_]]:
    """Yield masks of the samples to hold out, each amount of work in exactly one of them."""
    _, amount = np.unique(works, return_inverse=True)
    count = min(FOLDS, int(amount.max()) + 1)
    for fold in range(count):
        yield amount % count == fold


def _held_out_error(samples: _Samples) -> float:
    errors = [
        samples.of(held).relative_errors(_robust_line(samples.of(~held)))
        for held in _folds(samples.works)
    ]
    return float(np.median(np.abs(np.concatenate(errors))))


def _robust_line(samples: _Samples) -> Line:
    alpha, beta, *rates = _reweighted(samples.rows, non_negative=True)[0].tolist()
    terms = dict(zip(samples.features, rates, strict=True))
    return Line(alpha, beta, {name: rate for name, rate in terms.items() if rate > 0.0})


def _refuse_negative_rate(samples: _Samples) -> None:
    """Raise if the line, left free, falls by more than the scatter of the samples explains."""
    rows = samples.rows
    solution, weights = _reweighted(rows, non_negative=False)
    alpha = float(solution[0])
    if alpha >= 0:
        return
    errors = rows @ solution - 1.0
    # variance of (alpha, beta) = s^2 (A^T W A)^-1, s^2 the weighted mean square of the errors
    scatter = float(np.sum(weights * errors**2) / np.sum(weights))
    uncertainty = np.sqrt(scatter * np.linalg.pinv((rows.T * weights) @ rows)[0, 0])
    fall = -alpha * np.ptp(samples.works) / np.median(samples.times)
    if -alpha > 3.0 * uncertainty and fall > FALL_FORGIVEN:
        raise FitError(
            f"seconds fall as work grows (alpha = {alpha:.3g} seconds per unit of work): the "
            "samples imply a negative rate; measure again on a quiet machine, after warming up"
        )


def _reweighted(rows: Floats, *, non_negative: bool) -> tuple[Floats, Floats]:
    """Least squares of relative error by iteratively reweighted least squares.

    Returns (alpha, beta, gamma...) and the final weight of each sample. The first rounds minimise
    the sum of absolute errors, which no tenth of bad samples can lead far astray; the later ones
    follow a Cauchy loss, whose scale is the spread of the good samples. A Cauchy weight never
    reaches zero: a bent curve is averaged and shows in the residuals, where a loss that rejects
    would follow one half of it and call the other half outliers.
    """
    weights = np.ones(len(rows))
    for round_ in range(60):
        solution = _least_squares(rows, weights, non_negative=non_negative)
        # Half as long counts as much as twice as long: e = log(p / t).
        ratios = np.clip(rows @ solution, 1.0 / MOST_UNEVEN, MOST_UNEVEN)
        errors = np.maximum(np.abs(np.log(ratios)), 1e-9)
        if round_ < 30:
            weights = 1.0 / np.maximum(errors, 1e-6)
        else:
            spread = max(1.4826 * float(np.median(errors)), 1e-6)
            weights = 1.0 / (1.0 + (errors / (2.385 * spread)) ** 2)
        # as squares of p / t - 1: the derivative of the loss of e is that of the weighted square
        weights = weights * errors / (ratios * np.maximum(np.abs(ratios - 1.0), 1e-9))
    return solution, weights


def _least_squares(rows: Floats, weights: Floats, *, non_negative: bool) -> Floats:
    """Solve rows @ (alpha, beta, gamma...) = 1."""
    root = np.sqrt(weights)
    weighted = rows * root[:, None]
    # work may be 1e12 and seconds 1e-5: columns of length one keep the system well conditioned
    lengths = np.linalg.norm(weighted, axis=0)
    lengths[lengths == 0.0] = 1.0
    columns = weighted / lengths
    if non_negative:
        from scipy.optimize import nnls  # half of what `import ooc_cudnn` would take otherwise

        solution = nnls(columns, root)[0]
    else:
        solution = np.linalg.lstsq(columns, root, rcond=None)[0]
    return np.asarray(solution / lengths)
