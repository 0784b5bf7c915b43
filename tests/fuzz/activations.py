"""Activations and slopes in float64, NaN and infinity as PyTorch has them, with the bounds."""

from __future__ import annotations

import numpy as np
import torch

from tests.support import activation_modes, bounded, gradients, reference
from tests.support.bounded import Bounded


def draw_activation(stream, *, from_y=False):
    """(mode, coef); with `from_y` one whose slope its result tells."""
    while True:
        mode = stream.choice(sorted(activation_modes.MODES))
        coef = stream.choice(activation_modes.MODES[mode].drawn)
        if not (from_y and activation_modes.needs_x(mode, coef)):
            return mode, coef


def activation(x, dtype, mode, coef):
    """Of a Bounded x: the bound of the tests, the value of PyTorch."""
    bound = bounded.activation(x, dtype, mode, coef)
    coef = reference.DEFAULT_COEF.get(mode, 0.0) if coef is None else coef
    function = activation_modes.MODES[mode].pytorch
    return Bounded(function(torch.from_numpy(x.value), coef).numpy(), bound.error)


def activation_backward(y, dy, x, dtype, mode, coef):
    """dx of exact operands; a slope of 0 by selection gives 0.

    A slope that is computed, and is 0, makes NaN of an infinite gradient.
    """
    made = gradients.activation_backward(y, dy, x, dtype, mode, coef)
    if not activation_modes.MODES[mode].is_flat:
        lost = (made.value == 0) & ~np.isfinite(dy.astype("f8"))
        made = made._replace(value=np.where(lost, np.nan, made.value))
    return made
