"""The modes of activations, each declared once: what it computes, its slope, and what they cost.

Chains, networks and NumPy read this table. A card has each mode in capitals, in the enumeration
`Mode` of kernels/activation.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.tensor import ITEM_BYTES

#: Of gelu_tanh: 2 sqrt(2 / pi), and the factor of the cube.
_TWICE, _CUBE = 2 * math.sqrt(2 / math.pi), 0.044715


def erf(x: Array) -> Array:
    """The error function, in the type of x."""
    from scipy import special  # 40 % of what `import ooc_cudnn` would take otherwise

    y: Array = special.erf(x)
    return y


def expit(x: Array) -> Array:
    """The logistic sigmoid, in the type of x."""
    from scipy import special

    y: Array = special.expit(x)
    return y


class Mode(NamedTuple):
    """One activation.

    Attributes
    ----------
    value : callable
        Of (x, coef), in the type of x.
    slope : callable
        Of (y, x, coef), in the type of y; x is y itself where the mode does not need x. Of NaN it
        is what the comparisons of PyTorch's CUDA kernels make of it.
    coef : float, optional
        The default; None of a mode that takes none.
    needs_x, folds_back : bool
        Whether y never tells the slope; and whether it does not where coef is negative.
    is_flat : bool
        Whether it is flat somewhere: where the slope is 0, dx is 0 and no product.
    exponentials, of_slope : int
        That the value and the slope evaluate, each. An error function takes as long as three of
        them; tanh is as fast as memory, in NumPy as on a card.
    """

    value: Callable[[Array, float], Array]
    slope: Callable[[Array, Array, float], Array]
    coef: float | None = None
    needs_x: bool = False
    folds_back: bool = False
    is_flat: bool = False
    exponentials: int = 0
    of_slope: int = 0


def _elu(y: Array, x: Array, coef: float) -> Array:
    if coef < 0:  # it folds back
        return np.where(x <= 0, coef * np.exp(np.minimum(x, 0)), y.dtype.type(1))
    return np.where(y <= 0, y + coef, y.dtype.type(1))


def _swish(y: Array, x: Array, coef: float) -> Array:
    gate = expit(coef * x)
    return np.asarray(gate * (1 + coef * x * (1 - gate)))


def _gelu(y: Array, x: Array, coef: float) -> Array:
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return np.asarray(0.5 * (1 + erf(x / math.sqrt(2))) + x * density)


def _twice_inner(x: Array) -> Array:
    """2 u, where gelu_tanh is 0.5 x (1 + tanh(u)): x sigmoid(2 u), which cancels nowhere."""
    return np.asarray(_TWICE * x * (1 + _CUBE * x * x))


def _gelu_tanh(y: Array, x: Array, coef: float) -> Array:
    twice = _twice_inner(x)
    below = np.exp(-np.abs(twice))
    inner = x * (below / (1 + below) ** 2)  # 0 before x * x can overflow
    return np.asarray(expit(twice) + _TWICE * (inner + 3 * _CUBE * inner * x * x))


def _mish_terms(x: Array) -> tuple[Array, Array, Array]:
    """Return numerator, denominator and a slope's factor of mish's gate tanh(log(1 + exp(x))).

    By exp(-|x|): without cancellation, and without overflow.
    """
    below = np.exp(-np.abs(x))
    above = below * (below + 1)
    over = np.where(x > 0, 1 + 2 * below, below * (below + 2))
    under = np.where(x > 0, 1 + 2 * above, below * (below + 2) + 2)
    return over, under, np.where(x > 0, below * above, above)


def _mish(x: Array) -> Array:
    over, under, _ = _mish_terms(x)
    return np.asarray(x * (over / under))


def _mish_slope(y: Array, x: Array, coef: float) -> Array:
    over, under, steep = _mish_terms(x)
    return np.asarray(over / under + x * (4 * steep / (under * under)))


def _hardswish(y: Array, x: Array, coef: float) -> Array:
    inside = np.where(x < 3, x / 3 + 0.5, 1)
    return np.where(x <= -3, 0, inside).astype(y.dtype, copy=False)


#: By name; value, then slope.
MODES = {
    "relu": Mode(
        lambda x, c: np.maximum(x, 0),
        lambda y, x, c: (~(y <= 0)).astype(y.dtype), is_flat=True),
    "clipped_relu": Mode(
        lambda x, c: np.minimum(np.maximum(x, 0), c),
        lambda y, x, c: (~((y <= 0) | (y >= c))).astype(y.dtype), coef=6.0, is_flat=True),
    "elu": Mode(
        lambda x, c: np.where(x > 0, x, c * np.expm1(np.minimum(x, 0))),
        _elu, coef=1.0, folds_back=True, exponentials=1),
    "sigmoid": Mode(lambda x, c: np.asarray(expit(x)), lambda y, x, c: y * (1 - y), exponentials=1),
    "tanh": Mode(lambda x, c: np.tanh(x), lambda y, x, c: (1 - y) * (1 + y)),
    "swish": Mode(
        lambda x, c: np.asarray(x * expit(c * x)),
        _swish, coef=1.0, needs_x=True, exponentials=1, of_slope=1),
    "gelu": Mode(
        lambda x, c: np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2)))),
        _gelu, needs_x=True, exponentials=3, of_slope=3),
    "gelu_tanh": Mode(
        lambda x, c: np.asarray(x * expit(_twice_inner(x))),
        _gelu_tanh, needs_x=True, exponentials=1, of_slope=2),
    "mish": Mode(
        lambda x, c: _mish(x), _mish_slope, needs_x=True, exponentials=1, of_slope=1),
    "leaky_relu": Mode(
        lambda x, c: np.where(x > 0, x, c * x),
        lambda y, x, c: np.where(x > 0, y.dtype.type(1), y.dtype.type(c)),
        coef=0.01, folds_back=True),
    "hardsigmoid": Mode(
        lambda x, c: np.clip(x / 6 + 0.5, 0, 1),
        lambda y, x, c: ((y > 0) & (y < 1)) * y.dtype.type(1 / 6), is_flat=True),
    "hardswish": Mode(
        lambda x, c: x * np.clip(x / 6 + 0.5, 0, 1), _hardswish, needs_x=True, is_flat=True),
    "identity": Mode(lambda x, c: x, lambda y, x, c: np.ones_like(y)),
}  # fmt: skip


def needs_x(mode: str, coef: float) -> bool:
    """True if y does not tell the slope of a mode with this coef.

    >>> needs_x("relu", 0.0), needs_x("gelu", 0.0), needs_x("leaky_relu", -0.5)
    (False, True, True)
    """
    return MODES[mode].needs_x or (MODES[mode].folds_back and coef < 0)


def exponentials(mode: str, dtype: str, *, of_slope: bool = False) -> int:
    """Exponentials that a mode evaluates, or its slope.

    Of half types a card has gelu by a polynomial, which takes no longer than memory does.

    >>> [exponentials("gelu", dtype) for dtype in ("float32", "float16")]
    [3, 0]
    """
    if mode == "gelu" and ITEM_BYTES[dtype] == 2:
        return 0
    return MODES[mode].of_slope if of_slope else MODES[mode].exponentials
