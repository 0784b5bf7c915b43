"""The line through samples: fitted, or one that is known, scaled.

A fit minimises *relative* error, so that a copy of a kilobyte counts as much as one of a gigabyte,
and it is robust: a sample disturbed by another process loses its weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .linear import NO_FEATURES, Floats, Line
from .samples import Samples

FEWEST_WORKS = 3
"""Two points always lie on a line; it takes a third to tell whether the line is true."""

FOLDS = 5

MOST_UNEVEN = 10.0
"""A prediction further off than by this factor counts as one that is."""

FALL_FORGIVEN = 0.1
"""A drift of the clock may make flat timings fall by this share; more is no drift."""


class FitError(ValueError):
    """The samples do not determine a line, or determine one that cannot be."""


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
    further = {name: np.asarray(column).tolist() for name, column in features.items()}
    try:
        samples = Samples(np.asarray(work).tolist(), np.asarray(seconds).tolist(), further)
    except (TypeError, ValueError) as error:
        raise FitError(f"{error}; measure again") from error
    return fit_samples(samples)


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
    count, amounts = len(samples.work), len(set(samples.work))
    scaled = None if like is None else fit_scaled(samples, like)
    few = samples.features and count <= 2 + len(samples.features)
    if scaled is not None and (few or amounts < FEWEST_WORKS):
        return scaled
    if amounts < FEWEST_WORKS:
        raise FitError(
            f"{count} samples of {amounts} different amounts of work; "
            f"a fit needs at least {FEWEST_WORKS} amounts"
        )
    if not samples.features:
        _refuse_negative_rate(samples)
    line = _robust_line(samples)
    fitted = Fit(line, tuple(samples.residuals(line).tolist()), _held_out_error(samples))
    return min((fitted, scaled or fitted), key=lambda found: found.held_out_error)


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

    With the line through the origin, it is the median of the samples' rates:

    >>> fit_scaled(Samples((1e6, 2e6, 4e6), (1e-3, 2e-3, 9e-3)), Line(1.0, 0.0)).line
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


def _folds(work: ArrayLike) -> Iterator[NDArray[np.bool_]]:
    """Yield masks of the samples to hold out, each amount of work in exactly one of them."""
    _, amount = np.unique(work, return_inverse=True)
    count = min(FOLDS, int(amount.max()) + 1)
    for fold in range(count):
        yield amount % count == fold


def _held_out_error(samples: Samples) -> float:
    errors = [
        samples.chosen(held).residuals(_robust_line(samples.chosen(~held)))
        for held in _folds(samples.work)
    ]
    return float(np.median(np.abs(np.concatenate(errors))))


def _system(samples: Samples) -> Floats:
    """The linear system: relative error = rows @ (alpha, beta, gamma...) - 1."""
    work = np.array(samples.work)
    columns = [work, np.ones_like(work), *map(np.array, samples.features.values())]
    system: Floats = np.stack(columns, axis=1) / np.array(samples.seconds)[:, None]
    return system


def _robust_line(samples: Samples) -> Line:
    alpha, beta, *rates = _reweighted(_system(samples), non_negative=True)[0].tolist()
    terms = dict(zip(samples.features, rates, strict=True))
    return Line(alpha, beta, {name: rate for name, rate in terms.items() if rate > 0.0})


def _refuse_negative_rate(samples: Samples) -> None:
    """Raise if the line, left free, falls by more than the scatter of the samples explains."""
    rows = _system(samples)
    solution, weights = _reweighted(rows, non_negative=False)
    alpha = float(solution[0])
    if alpha >= 0:
        return
    errors = rows @ solution - 1.0
    # variance of (alpha, beta) = s^2 (A^T W A)^-1, s^2 the weighted mean square of the errors
    scatter = float(np.sum(weights * errors**2) / np.sum(weights))
    uncertainty = np.sqrt(scatter * np.linalg.pinv((rows.T * weights) @ rows)[0, 0])
    fall = -alpha * np.ptp(samples.work) / np.median(samples.seconds)
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
