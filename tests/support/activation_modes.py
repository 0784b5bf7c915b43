"""The modes of activations as tests know them, each declared once, without the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # only `pytorch` and `own` want it
    torch = None


class Known(NamedTuple):
    """One mode.

    Attributes
    ----------
    pytorch : callable
        PyTorch's, of (x, coef), with a gradient that is right in float64.
    value, slope : callable
        Plain formulas in float64, of (x, coef) and of (y, x, coef). Of NaN the slope is that of
        PyTorch's CUDA kernels.
    coef : float
        The default; 0 of a mode that takes none.
    drawn : tuple
        Coefs that fuzzing draws; None is the default.
    needs_x, folds_back, is_flat : bool
        Whether y never tells the slope, or not where coef is negative; whether dx is 0 where the
        slope is, and no product.
    steepest : float
        The largest slope with the default coef: how much it can enlarge an error.
    cancels : float
        The slope is the difference of numbers of that size.
    own : callable, optional
        PyTorch's own function, where that has another slope at NaN, or a rounded one.
    most : float
        Of larger numbers PyTorch's slope is NaN, for it overflows.
    """

    pytorch: Callable[[Any, float], Any]
    value: Callable[[Any, float], Any]
    slope: Callable[[Any, Any, float], Any]
    coef: float = 0.0
    drawn: tuple[float | None, ...] = (None,)
    needs_x: bool = False
    folds_back: bool = False
    is_flat: bool = False
    steepest: float = 1.0
    cancels: float = 0.0
    own: Callable[[Any, float], Any] | None = None
    most: float = math.inf


def gate(x):
    return 1 / (1 + np.exp(-x))


def below(x):
    """The normal distribution: 0.5 (1 + erf(x / sqrt 2))."""
    return np.vectorize(lambda t: 0.5 * math.erfc(-t / math.sqrt(2)), otypes=[float])(x)


def gelu_tanh_slope(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    of_inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + np.tanh(inner)) + 0.5 * x * (1 - np.tanh(inner) ** 2) * of_inner


def mish_slope(x):
    softplus = np.logaddexp(0, x)
    steep = np.where(softplus > 350, 0.0, 1 / np.cosh(np.minimum(softplus, 350)) ** 2)
    return np.tanh(softplus) + x * (gate(x) * steep)  # NaN at infinity, as PyTorch has it


def elu_slope(y, x, coef):
    if coef >= 0:
        return np.where(y <= 0, y + coef, 1.0)
    return np.where(x <= 0, coef * np.exp(np.minimum(x, 0)), 1.0)


MODES = {
    "relu": Known(
        lambda x, coef: F.relu(x),
        lambda x, coef: np.where(x < 0, 0.0, x),
        lambda y, x, coef: ~(y <= 0) * 1.0,
        is_flat=True,
    ),
    "clipped_relu": Known(
        lambda x, coef: F.hardtanh(x, 0.0, coef),
        lambda x, coef: np.where(x < 0, 0.0, np.where(x > coef, coef, x)),
        lambda y, x, coef: ~((y <= 0) | (y >= coef)) * 1.0,
        coef=6.0,
        drawn=(None, 0.5, 3.0),
        is_flat=True,
    ),
    "elu": Known(
        lambda x, coef: torch.where(x > 0, x, coef * torch.expm1(torch.clamp(x, max=0))),
        lambda x, coef: np.where(x > 0, x, coef * np.expm1(x)),
        elu_slope,
        coef=1.0,
        drawn=(None, 0.7, -0.5),
        folds_back=True,
        own=lambda x, coef: F.elu(x, coef),
    ),
    "sigmoid": Known(
        lambda x, coef: torch.sigmoid(x),
        lambda x, coef: gate(x),
        lambda y, x, coef: y * (1 - y),
        cancels=1.0,
    ),
    "tanh": Known(
        lambda x, coef: torch.tanh(x),
        lambda x, coef: np.tanh(x),
        lambda y, x, coef: 1 - y * y,
        cancels=2.0,
    ),
    "swish": Known(
        lambda x, coef: x * torch.sigmoid(coef * x),
        lambda x, coef: x / (1 + np.exp(-coef * x)),
        lambda y, x, coef: gate(coef * x) * (1 + coef * x * (1 - gate(coef * x))),
        coef=1.0,
        drawn=(None, 1.7, 0.4),
        needs_x=True,
        steepest=1.1,
        cancels=4.0,
    ),
    "gelu": Known(
        lambda x, coef: F.gelu(x),
        lambda x, coef: x * below(x),
        lambda y, x, coef: below(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
        needs_x=True,
        steepest=1.13,
        cancels=4.0,
    ),
    "gelu_tanh": Known(
        lambda x, coef: F.gelu(x, approximate="tanh"),
        lambda x, coef: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda y, x, coef: gelu_tanh_slope(x),
        needs_x=True,
        steepest=1.13,
        cancels=4.0,
        most=1e100,
    ),
    "mish": Known(
        lambda x, coef: F.mish(x),
        lambda x, coef: x * np.tanh(np.logaddexp(0, x)),
        lambda y, x, coef: mish_slope(x),
        needs_x=True,
        steepest=1.09,
        cancels=4.0,
    ),
    "leaky_relu": Known(
        lambda x, coef: torch.where(x > 0, x, coef * x),
        lambda x, coef: np.where(x > 0, x, coef * x),
        lambda y, x, coef: np.where((x if coef < 0 else y) > 0, 1.0, coef),
        coef=0.01,
        drawn=(None, 0.2, -0.3),
        folds_back=True,
        own=lambda x, coef: F.leaky_relu(x, coef),
    ),
    "hardsigmoid": Known(
        lambda x, coef: F.relu6(x + 3) / 6,  # PyTorch's own slope is a sixth in float32
        lambda x, coef: np.minimum(np.maximum(x + 3, 0), 6) / 6,
        lambda y, x, coef: ((y > 0) & (y < 1)) / 6,
        is_flat=True,
        own=lambda x, coef: F.hardsigmoid(x),
    ),
    "hardswish": Known(
        lambda x, coef: F.hardswish(x),
        lambda x, coef: x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
        lambda y, x, coef: np.where(x <= -3, 0, np.where(x < 3, (2 * x + 3) / 6, 1)),
        needs_x=True,
        is_flat=True,
        steepest=1.5,
    ),
    "identity": Known(lambda x, coef: x * 1, lambda x, coef: x, lambda y, x, coef: np.ones_like(y)),
}


def needs_x(mode, coef=None):
    """Whether the gradient needs x."""
    return MODES[mode].needs_x or (MODES[mode].folds_back and (coef or 0) < 0)


def pytorch(mode):
    """PyTorch's function of x, with the default coef, and a gradient that is right in float64."""
    return lambda x: MODES[mode].pytorch(x, MODES[mode].coef)


def own(mode):
    """PyTorch's own function of x, with the default coef."""
    known = MODES[mode]
    return lambda x: (known.own or known.pytorch)(x, known.coef)
