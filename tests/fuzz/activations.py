"""Activations and slopes in float64, NaN and infinity as PyTorch has them, with the bounds."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from tests.support import bounded, gradients, reference
from tests.support.bounded import Bounded

#: Modes, and the coefficients that are drawn for them; None is the default.
MODES = {
    "relu": (None,),
    "clipped_relu": (None, 0.5, 3.0),
    "elu": (None, 0.7, -0.5),
    "sigmoid": (None,),
    "tanh": (None,),
    "swish": (None, 1.7, 0.4),
    "gelu": (None,),
    "leaky_relu": (None, 0.2, -0.3),
    "hardsigmoid": (None,),
    "hardswish": (None,),
    "identity": (None,),
}

VALUES = {
    "relu": lambda x, coef: torch.relu(x),
    "clipped_relu": lambda x, coef: torch.clamp(x, 0.0, coef),
    "elu": lambda x, coef: torch.where(x > 0, x, coef * torch.expm1(torch.clamp(x, max=0))),
    "sigmoid": lambda x, coef: torch.sigmoid(x),
    "tanh": lambda x, coef: torch.tanh(x),
    "swish": lambda x, coef: x * torch.sigmoid(coef * x),
    "gelu": lambda x, coef: functional.gelu(x),
    "leaky_relu": lambda x, coef: torch.where(x > 0, x, coef * x),
    "hardsigmoid": lambda x, coef: functional.hardsigmoid(x),
    "hardswish": lambda x, coef: functional.hardswish(x),
    "identity": lambda x, coef: x,
}

#: Modes of which a result does not tell the slope, so that their gradient takes x.
NEED_X = ("swish", "gelu", "hardswish")


def needs_x(mode, coef):
    return mode in NEED_X or (mode in ("elu", "leaky_relu") and coef is not None and coef < 0)


def draw_activation(stream, *, from_y=False):
    """(mode, coef); with `from_y` one whose slope its result tells."""
    while True:
        mode = stream.choice(sorted(MODES))
        coef = stream.choice(MODES[mode])
        if not (from_y and needs_x(mode, coef)):
            return mode, coef


def activation(x, dtype, mode, coef):
    """Of a Bounded x: the bound of the tests, the value of PyTorch."""
    bound = bounded.activation(x, dtype, mode, coef)
    coef = reference.DEFAULT_COEF.get(mode, 0.0) if coef is None else coef
    return Bounded(VALUES[mode](torch.from_numpy(x.value), coef).numpy(), bound.error)


def activation_backward(y, dy, x, dtype, mode, coef):
    """dx of exact operands; a slope of 0 by selection gives 0.

    A slope that is computed, and is 0, makes NaN of an infinite gradient.
    """
    made = gradients.activation_backward(y, dy, x, dtype, mode, coef)
    if mode not in gradients.SELECTING:
        lost = (made.value == 0) & ~np.isfinite(dy.astype("f8"))
        made = made._replace(value=np.where(lost, np.nan, made.value))
    return made
