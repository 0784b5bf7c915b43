"""What a result must be in float64, and how far rounding may carry it from there.

`Bounded` holds both; each function takes one through an operation as a device of that dtype may
compute it: sums in any order in the arithmetic type (Higham, section 3.1), the result rounded to
the dtype. Errors of the input are carried along, so a chain's bound needs no tuning. Nothing here
uses the library.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from tests.support import activation_modes, reference

UNIT = reference.UNIT_ROUNDOFF
#: What may be lost where numbers end: the step of float16's smallest, else the smallest normal.
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 1e-300}


def arithmetic_unit(dtype):
    """Unit roundoff of the type that sums are kept in; in float64 the reference errs as well."""
    return 2 * UNIT["float64"] if dtype == "float64" else UNIT["float32"]


class Bounded(NamedTuple):
    """A result in float64, and a bound of its error for every element."""

    value: np.ndarray
    error: np.ndarray

    @classmethod
    def exact(cls, array):
        value = np.asarray(array).astype("f8")
        return cls(value, np.zeros(value.shape))

    def rounded(self, dtype):
        """The same, rounded to `dtype` once more."""
        size = np.abs(self.value) + self.error
        return Bounded(self.value, self.error + UNIT[dtype] * size + TINY[dtype])

    def computed(self, terms, size, dtype):
        """Computed from `terms` terms whose absolute values sum to `size`, and rounded."""
        error = self.error + terms * arithmetic_unit(dtype) * size
        return Bounded(self.value, error).rounded(dtype)

    def check(self, actual, where=""):
        """Every element within its bound; NaN and infinity only where they are expected."""
        actual = np.asarray(actual).astype("f8")
        assert actual.shape == self.value.shape, f"{where}: {actual.shape} not {self.value.shape}"
        with np.errstate(invalid="ignore"):
            right = np.abs(actual - self.value) <= self.error
            right |= actual == self.value
        right |= np.isnan(actual) & np.isnan(self.value)
        if not right.all():
            at = tuple(int(i) for i in np.argwhere(~right)[0])
            raise AssertionError(
                f"{where}: {int((~right).sum())} of {right.size} elements wrong, first at {at}: "
                f"{actual[at]} instead of {self.value[at]}, tolerance {self.error[at]:.3g}"
            )


def scaled(result, alpha, beta, old, dtype):
    """alpha * result + beta * old, rounded."""
    if alpha == 1 and beta == 0:
        return result
    value, error = alpha * result.value, abs(alpha) * result.error
    size = np.abs(value) + error
    if beta:
        value = value + beta * old.astype("f8")
        size = size + np.abs(beta * old.astype("f8"))
    return Bounded(value, error).computed(4, size, dtype)


def convolution(x, w, dtype, **geometry):
    """Cross-correlation of a Bounded x with exact filters."""
    w = w.astype("f8")
    size = reference.convolution(np.abs(x.value) + x.error, np.abs(w), **geometry)
    carried = reference.convolution(x.error, np.abs(w), **geometry)
    result = Bounded(reference.convolution(x.value, w, **geometry), np.abs(carried))
    return result.computed(math.prod(w.shape[1:]) + 8, np.abs(size), dtype)


def linear(x, dtype, function, terms, absolute=None):
    """A linear function of a float64 PyTorch tensor; `absolute` has its coefficients' sizes."""
    import torch

    def of(made, array):
        return made(torch.from_numpy(np.ascontiguousarray(array))).numpy()

    absolute = absolute or function
    size, carried = of(absolute, np.abs(x.value) + x.error), of(absolute, x.error)
    return Bounded(of(function, x.value), np.abs(carried)).computed(terms, np.abs(size), dtype)


def op_tensor(x, b, dtype, *, op="add", alpha_a=1.0, alpha_b=1.0):
    """op(alpha_a * x, alpha_b * b) with b broadcast."""
    b = np.broadcast_to(alpha_b * b.astype("f8"), x.value.shape)
    a, error = alpha_a * x.value, abs(alpha_a) * x.error
    if op == "multiply":
        made, size = a * b, (np.abs(a) + error) * np.abs(b)
        error = error * np.abs(b)
    else:
        made = {"add": np.add, "minimum": np.minimum, "maximum": np.maximum}[op](a, b)
        size = np.abs(a) + error + np.abs(b)
    return Bounded(made, error).computed(3, size, dtype)


def bias(x, b, dtype):
    """Add one value per channel."""
    return op_tensor(x, b.reshape(1, -1, *[1] * (x.value.ndim - 2)), dtype)


def activation(x, dtype, mode, coef=None):
    """An activation; its largest slope enlarges the error of x."""
    coef = reference.DEFAULT_COEF.get(mode, 0.0) if coef is None else coef
    with np.errstate(over="ignore"):
        value = reference.ACTIVATIONS[mode](x.value, coef)
    folded = abs(coef) if activation_modes.MODES[mode].folds_back else 1.0
    error = x.error * max(activation_modes.MODES[mode].steepest, folded, 1.0, -coef)
    if mode in ("relu", "clipped_relu", "identity"):
        return Bounded(value, error).rounded(dtype)
    size = np.abs(value) * (1 + np.abs(x.value)) + np.abs(x.value) + max(1.0, abs(coef))
    return Bounded(value, error).computed(8, size, dtype)


def windows(array, window, padding, stride, fill):
    """The elements of every window on a new first axis, row-major; padding holds `fill`."""
    axes = array.ndim - 2
    window, pads = reference.per_axis(window, axes), reference.pairs(padding, axes)
    stride = window if stride is None else reference.per_axis(stride, axes)
    padded = np.pad(array, ((0, 0), (0, 0), *pads), constant_values=fill)
    counts = [(e - k) // s + 1 for e, k, s in zip(padded.shape[2:], window, stride, strict=True)]
    taps = itertools.product(*map(range, window))
    return np.stack(
        [
            padded[
                (
                    ...,
                    *(
                        slice(t, t + (o - 1) * s + 1, s)
                        for t, o, s in zip(tap, counts, stride, strict=True)
                    ),
                )
            ]
            for tap in taps
        ]
    )


def divisors(shape, window, mode, padding, stride):
    """What the sum of each window is divided by."""
    inside = windows(np.ones(shape), window, padding, stride, 0.0)
    return len(inside) if mode == "average_include_padding" else inside.sum(axis=0)


def pooling(x, dtype, *, window, mode="max", padding=0, stride=None):
    """The largest or mean value of each window."""
    geometry = (window, padding, stride)
    if mode.startswith("max"):
        value = windows(x.value, *geometry, -np.inf).max(axis=0)
        return Bounded(value, windows(x.error, *geometry, 0.0).max(axis=0)).rounded(dtype)
    count = divisors(x.value.shape, window, mode, padding, stride)
    seen = windows(x.value, *geometry, 0.0)
    error = windows(x.error, *geometry, 0.0).sum(axis=0) / count
    size = np.abs(seen).sum(axis=0) / count + error
    return Bounded(seen.sum(axis=0) / count, error).computed(len(seen) + 4, size, dtype)


def pooling_backward(x, y, dy, dtype, *, window, mode="max", padding=0, stride=None):
    """Give each window's gradient to its first maximum, or to all its elements in equal parts."""
    axes = x.ndim - 2
    x, y, dy = (a.astype("f8") for a in (x, y, dy))
    inside = windows(np.ones(x.shape), window, padding, stride, 0.0) > 0
    if mode.startswith("max"):
        seen = windows(x, window, padding, stride, 0.0)
        same = inside & ((seen == y) | (np.isnan(seen) & np.isnan(y)))
        first = np.where(same.any(axis=0), same.argmax(axis=0), -1)
        shares = np.where(first == np.arange(len(inside)).reshape(-1, *[1] * y.ndim), dy, 0.0)
    else:
        shares = np.where(inside, dy / divisors(x.shape, window, mode, padding, stride), 0.0)
    value, size = (
        scatter(part, x.shape, window, padding, stride) for part in (shares, abs(shares))
    )
    terms = math.prod(reference.per_axis(window, axes)) + 4
    return Bounded(value, np.zeros(x.shape)).computed(terms, size, dtype)


def scatter(shares, shape, window, padding, stride):
    """Add what `windows` has gathered back where it came from."""
    axes = len(shape) - 2
    window, pads = reference.per_axis(window, axes), reference.pairs(padding, axes)
    stride = window if stride is None else reference.per_axis(stride, axes)
    padded = np.zeros((*shape[:2], *(e + a + b for e, (a, b) in zip(shape[2:], pads, strict=True))))
    for tap, share in zip(itertools.product(*map(range, window)), shares, strict=True):
        at = tuple(
            slice(t, t + (o - 1) * s + 1, s)
            for t, o, s in zip(tap, share.shape[2:], stride, strict=True)
        )
        padded[(..., *at)] += share
    kept = tuple(slice(a, a + e) for e, (a, _) in zip(shape[2:], pads, strict=True))
    return padded[(..., *kept)]


def normalised(x, scale, shift, mean, variance, dtype, *, epsilon=1e-5):
    """Batch normalisation with given statistics; channel vectors are exact."""
    scale, shift, mean, variance = (
        v.astype("f8").reshape(1, -1, *[1] * (x.value.ndim - 2))
        for v in (scale, shift, mean, variance)
    )
    factor = scale / np.sqrt(variance + epsilon)
    # x - mean first: where x is near its mean, no digit of the difference is lost.
    size = np.abs(factor) * (np.abs(x.value - mean) + x.error) + np.abs(shift)
    made = Bounded(factor * (x.value - mean) + shift, np.abs(factor) * x.error)
    return made.computed(10, size, dtype)


def layer_normalised(x, scale, shift, dtype, *, epsilon):
    """Layer normalisation of each site; vectors are exact."""
    scale, shift = (
        v.astype("f8").reshape(1, -1, *[1] * (x.value.ndim - 2)) for v in (scale, shift)
    )
    over = {"axis": 1, "keepdims": True}
    inverse = 1 / np.sqrt(x.value.var(**over) + epsilon)
    hat = (x.value - x.value.mean(**over)) * inverse
    # A mean and a deviation are off by no more than the element that is off most; twice that, since
    # what is divided by the deviation is no line.
    most, largest = x.error.max(**over), np.abs(x.value).max(**over)
    error = 2 * np.abs(scale) * inverse * (x.error + most + np.abs(hat) * most)
    size = np.abs(scale) * ((np.abs(x.value) + x.error + largest) * inverse + np.abs(hat))
    return Bounded(scale * hat + shift, error).computed(10, size + np.abs(shift), dtype)


def softmax(x, dtype, *, algorithm="accurate", mode="channel"):
    """Softmax over channels, or over all of each image; "log" its logarithm."""
    x = x.astype("f8")
    axes = (1,) if mode == "channel" else tuple(range(1, x.ndim))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        shifted = x - x.max(axis=axes, keepdims=True)
        powers = np.exp(shifted)
        total = powers.sum(axis=axes, keepdims=True)
        distance = np.where(powers > 0, np.abs(shifted), 0)
        # exp(d) with d off by u * |d|; the sum's terms in proportion to their shares.
        spread = (powers / total * distance).sum(axis=axes, keepdims=True)
        terms = 3 * (math.prod(x.shape[a] for a in axes) + 12 + spread)
        unit = arithmetic_unit(dtype)
        if algorithm == "accurate":
            value = powers / total
            error = (terms + 2 * distance) * unit * value + 4 * TINY[dtype]
        else:
            value = shifted - np.log(total)
            error = (terms + 3 * np.abs(value) + 3 * np.log(total)) * unit
        error = np.nan_to_num(error, nan=0.0, posinf=0.0)
        return Bounded(value, error + np.nan_to_num(UNIT[dtype] * np.abs(value), posinf=0.0))
