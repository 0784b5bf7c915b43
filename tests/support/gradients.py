"""Gradients of convolutions in float64, by PyTorch's autograd, with rigorous bounds."""

from __future__ import annotations

import math

import numpy as np

from tests.support import activation_modes, reference
from tests.support.bounded import UNIT, Bounded

torch = reference.torch


def output_shape(x, w, *, padding=0, stride=1, dilation=1, groups=1):
    """Shape of a convolution's result, from the shapes of x and w."""
    axes = len(x) - 2
    sites = (
        (e + sum(p) - (k - 1) * d - 1) // s + 1
        for e, k, p, s, d in zip(
            x[2:],
            w[2:],
            reference.pairs(padding, axes),
            reference.per_axis(stride, axes),
            reference.per_axis(dilation, axes),
            strict=True,
        )
    )
    return (x[0], w[0], *sites)


def autograd(x, w, dy, *, padding=0, stride=1, dilation=1, groups=1):
    """(dx, dw) of a convolution in float64."""
    axes = x.ndim - 2
    x, w = (torch.tensor(np.ascontiguousarray(a, "f8"), requires_grad=True) for a in (x, w))
    sides = [side for pair in reversed(reference.pairs(padding, axes)) for side in pair]
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[axes - 1]
    y = function(
        torch.nn.functional.pad(x, sides),
        w,
        stride=reference.per_axis(stride, axes),
        dilation=reference.per_axis(dilation, axes),
        groups=groups,
    )
    assert tuple(y.shape) == dy.shape
    y.backward(torch.tensor(np.ascontiguousarray(dy, "f8")))
    return x.grad.numpy(), w.grad.numpy()


def zero(dy):
    """No error."""
    return Bounded.exact(dy) if not isinstance(dy, Bounded) else dy


def backward_data(x_shape, w, dy, dtype, **geometry):
    """dx of (w, dy); dy may be Bounded."""
    dy = zero(dy)
    nothing, w = np.zeros(x_shape), w.astype("f8")
    value, _ = autograd(nothing, w, dy.value, **geometry)
    size, _ = autograd(nothing, np.abs(w), np.abs(dy.value) + dy.error, **geometry)
    carried, _ = autograd(nothing, np.abs(w), dy.error, **geometry)
    terms = w.shape[0] // geometry.get("groups", 1) * math.prod(w.shape[2:]) + 8
    return Bounded(value, np.abs(carried)).computed(terms, np.abs(size), dtype)


def backward_filter(x, w_shape, dy, dtype, **geometry):
    """dw of (x, dy); dy may be Bounded."""
    dy = zero(dy)
    nothing, x = np.zeros(w_shape), x.astype("f8")
    _, value = autograd(x, nothing, dy.value, **geometry)
    _, size = autograd(np.abs(x), nothing, np.abs(dy.value) + dy.error, **geometry)
    _, carried = autograd(np.abs(x), nothing, dy.error, **geometry)
    terms = dy.value.shape[0] * math.prod(dy.value.shape[2:]) + 8
    return Bounded(value, np.abs(carried)).computed(terms, np.abs(size), dtype)


def channel_sum(dy, dtype):
    """db of (dy,); dy may be Bounded."""
    dy = zero(dy)
    axes = (0, *range(2, dy.value.ndim))
    size = (np.abs(dy.value) + dy.error).sum(axis=axes)
    terms = dy.value.shape[0] * math.prod(dy.value.shape[2:]) + 4
    return Bounded(dy.value.sum(axis=axes), dy.error.sum(axis=axes)).computed(terms, size, dtype)


def activation_backward(y, dy, x, dtype, mode, coef=None):
    """dx of (y, dy, x); y, dy and x are exact."""
    coef = reference.DEFAULT_COEF.get(mode, 0.0) if coef is None else coef
    # As the arithmetic has it: the slope of an elu at its limit, y = -coef, is 0 there.
    coef = float(np.dtype("f8" if dtype == "float64" else "f4").type(coef))
    y, dy = y.astype("f8"), dy.astype("f8")
    x = y if x is None else x.astype("f8")
    known = activation_modes.MODES[mode]
    slope = known.slope(y, x, coef)
    reach = np.where(np.isnan(x), 0, np.abs(x))
    size = np.abs(dy) * (1 + np.abs(slope) + reach) * max(1.0, abs(coef))
    with np.errstate(invalid="ignore"):
        value = dy * slope  # an infinite dy by a slope of 0 is NaN, as in PyTorch
    if known.is_flat:
        value = np.where(slope == 0, 0.0, value)
    if mode in ("relu", "clipped_relu", "identity"):
        return Bounded(value, UNIT[dtype] * np.abs(value))
    return Bounded(value, np.zeros(value.shape)).computed(12, size, dtype)
