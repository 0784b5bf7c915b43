"""Activations: elementwise functions, by cuDNN's modes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.tensor import rounded_to


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
    default = MODES[mode].coef
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
        return MODES[self.mode].value(x.astype(np.float64), self.coef)
