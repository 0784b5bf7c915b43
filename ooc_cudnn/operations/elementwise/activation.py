"""Activations: elementwise functions, by cuDNN's modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, expit

from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.tensor import rounded_to

#: mode -> (function of (x, coef), default coef or None where the mode takes none)
MODES: dict[str, tuple[Callable[[Array, float], Array], float | None]] = {
    "relu": (lambda x, coef: np.maximum(x, 0), None),
    "clipped_relu": (lambda x, coef: np.minimum(np.maximum(x, 0), coef), 6.0),
    "elu": (lambda x, coef: np.where(x > 0, x, coef * np.expm1(np.minimum(x, 0))), 1.0),
    "sigmoid": (lambda x, coef: np.asarray(expit(x)), None),
    "tanh": (lambda x, coef: np.tanh(x), None),
    "swish": (lambda x, coef: np.asarray(x * expit(coef * x)), 1.0),
    "gelu": (lambda x, coef: np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2)))), None),
    "leaky_relu": (lambda x, coef: np.where(x > 0, x, coef * x), 0.01),
    "hardsigmoid": (lambda x, coef: np.clip(x / 6 + 0.5, 0, 1), None),
    "hardswish": (lambda x, coef: x * np.clip(x / 6 + 0.5, 0, 1), None),
    "identity": (lambda x, coef: x, None),
}


def check_mode(mode: object, coef: object, *, name: str = "mode") -> tuple[str, float]:
    """Return a valid (mode, coef) or raise an error that lists the modes.

    `coef` is the ceiling of clipped_relu (default 6), alpha of elu (1), beta of swish (1) and the
    negative slope of leaky_relu (0.01); the other modes take none.

    Raises
    ------
    ValueError
        For an unknown mode, a coef that is no finite number, or one given to a mode without.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"{name} must be one of {', '.join(MODES)}, not {mode!r}")
    default = MODES[mode][1]
    if coef is None:
        return mode, default or 0.0
    if default is None:
        raise ValueError(f"coef has no meaning for {name}={mode!r}; leave it out")
    if isinstance(coef, bool) or not isinstance(coef, int | float | np.integer | np.floating):
        raise TypeError(f"coef must be a number, not {coef!r}")
    if not math.isfinite(coef) or (mode == "clipped_relu" and coef < 0):
        raise ValueError(
            f"coef of {mode} must be finite{' and not negative' * (mode == 'clipped_relu')}, "
            f"not {coef!r}"
        )
    return mode, float(coef)


def coef_in(dtype: str, mode: str, coef: float) -> float:
    """Return coef as a result of that dtype shows it: the ceiling of clipped_relu is rounded.

    The gradient compares with it what it was rounded to.

    >>> coef_in("float16", "clipped_relu", 0.1) < 0.1, coef_in("float16", "elu", 0.1)
    (True, 0.1)
    """
    return rounded_to(dtype, coef) if mode == "clipped_relu" else coef


@dataclass(frozen=True)
class Activation(PerElement):
    """y = f(x), f by `mode`. NaN propagates in every mode (CUDNN_PROPAGATE_NAN).

    Source: cudnnActivationForward. `coef` as in `check_mode`.
    """

    shape: Shape
    mode: str = "relu"
    coef: float = 0.0
    dtype: str = "float32"

    name = "activation_forward"

    def reference(self, x: Array, *parameters: Array) -> Array:
        return MODES[self.mode][0](x.astype(np.float64), self.coef)
