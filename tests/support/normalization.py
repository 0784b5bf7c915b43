"""Batch normalisation in float64 with rigorous bounds, and calls of its three functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support import bounded
from tests.support.bounded import UNIT, Bounded, arithmetic_unit
from tests.support.function_cases import DTYPES, Call, draw, finished


def vector_dtype(dtype):
    return np.dtype("f8" if dtype == "float64" else "f4")


def across(array):
    """All axes but the channels'."""
    return (0, *range(2, array.ndim))


def wide(vector, ndim):
    return np.asarray(vector).astype("f8").reshape(1, -1, *[1] * (ndim - 2))


@dataclass
class Statistics:
    """Mean, variance and inverse deviation of each channel in float64, and x normalised.

    `mean_error` and `relative` bound what a device may be off by that keeps them in the
    arithmetic type: the error of a mean is relative to the mean, that of a deviation relative.
    """

    x: np.ndarray
    dtype: str
    epsilon: float = 1e-5

    def __post_init__(self):
        exact = self.x.astype("f8")
        self.count = exact.size // exact.shape[1]
        self.mean = exact.mean(axis=across(exact))
        # The mean once more, of the rest: exact where the data is far from 0.
        self.mean = self.mean + (exact - wide(self.mean, exact.ndim)).mean(axis=across(exact))
        centred = exact - wide(self.mean, exact.ndim)
        self.variance = (centred**2).mean(axis=across(exact))
        self.inverse = 1 / np.sqrt(self.variance + self.epsilon)
        unit = arithmetic_unit(self.dtype)
        # Sums are in float64 whatever the dtype; rounded once to the arithmetic type.
        size = np.abs(exact).mean(axis=across(exact))
        self.mean_error = 2 * unit * np.abs(self.mean) + 2 * self.count * UNIT["float64"] * size
        self.relative = 4 * unit + self.count * UNIT["float64"] * (1 + size * self.inverse)
        self.centred = centred
        self.normal = centred * wide(self.inverse, exact.ndim)
        self.normal_error = wide(self.inverse * self.mean_error, exact.ndim) + (
            wide(self.relative, exact.ndim) + 4 * unit
        ) * np.abs(self.normal)

    def bounded(self, what):
        """Bounded channel vectors."""
        if what == "mean":
            return Bounded(self.mean, self.mean_error + 1e-300)
        if what == "inverse":
            return Bounded(self.inverse, self.relative * self.inverse)
        unbiased = self.variance * self.count / max(1, self.count - 1)
        return Bounded(unbiased, 4 * self.relative * unbiased + self.mean_error**2 + 1e-300)


def normalise(statistics, scale, shift, dtype):
    x = statistics.x
    scale, shift = wide(scale, x.ndim), wide(shift, x.ndim)
    made = Bounded(scale * statistics.normal + shift, np.abs(scale) * statistics.normal_error)
    return made.computed(6, np.abs(scale * statistics.normal) + np.abs(shift), dtype)


def data(random, shape, dtype, mean=0, deviation=1):
    """x, scale, shift; every channel has another mean."""
    x = mean + deviation * random.standard_normal(shape)
    x = x + deviation * np.arange(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
    vectors = random.standard_normal((2, shape[1])).astype(vector_dtype(dtype))
    return x.astype(DTYPES[dtype]), *vectors


def training_call(
    shape, dtype="float32", alpha=1.0, beta=0.0, *, values=(0, 1), factor=0.1, running=True,
    x=None, epsilon=1e-5,
):  # fmt: skip
    random = np.random.default_rng(21)
    drawn, scale, shift = data(random, shape, dtype, *values)
    x = drawn if x is None else x
    statistics = Statistics(x, dtype, epsilon)
    result, old = finished(
        normalise(statistics, scale, shift, dtype), dtype, alpha=alpha, beta=beta, random=random
    )
    options = {
        "exponential_average_factor": factor, "epsilon": epsilon, "alpha": alpha, "beta": beta
    }  # fmt: skip
    changed = {}
    if running:
        kind = vector_dtype(dtype)
        before = {
            "running_mean": random.standard_normal(shape[1]).astype(kind),
            "running_variance": (1 + random.random(shape[1])).astype(kind),
        }
        options |= before
        for name, what in (("running_mean", "mean"), ("running_variance", "variance")):
            new = statistics.bounded(what)
            value = (1 - factor) * before[name].astype("f8") + factor * new.value
            size = np.abs((1 - factor) * before[name].astype("f8")) + np.abs(factor * new.value)
            error = factor * new.error + 4 * arithmetic_unit(dtype) * size
            changed[name] = Bounded(value, error)
    return Call(
        "batch_normalization_forward_training",
        {"x": x, "scale": scale, "bias": shift},
        options,
        {
            "y": result,
            "saved_mean": statistics.bounded("mean"),
            "saved_inverse_variance": statistics.bounded("inverse"),
        },
        ("y",),
        {"y": old},
        changed,
    )


def inference_call(shape, dtype="float32", alpha=1.0, beta=0.0, *, values=(0, 1), epsilon=1e-5):
    random = np.random.default_rng(22)
    x, scale, shift = data(random, shape, dtype, *values)
    kind = vector_dtype(dtype)
    mean = (values[0] + random.standard_normal(shape[1])).astype(kind)
    variance = (values[1] ** 2 * (0.5 + random.random(shape[1]))).astype(kind)
    result = bounded.normalised(
        Bounded.exact(x), scale, shift, mean, variance, dtype, epsilon=epsilon
    )
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    operands = {"x": x, "scale": scale, "bias": shift, "mean": mean, "variance": variance}
    options = {"epsilon": epsilon, "alpha": alpha, "beta": beta}
    return Call(
        "batch_normalization_forward_inference", operands, options, {"y": result}, old={"y": old}
    )


def backward_call(
    shape, dtype="float32", alpha=1.0, beta=0.0, *, values=(0, 1), saved=True, epsilon=1e-5
):
    random = np.random.default_rng(23)
    x, scale, _ = data(random, shape, dtype, *values)
    dy = draw(random, shape, dtype)
    statistics = Statistics(x, dtype, epsilon)
    ndim, unit, count = x.ndim, arithmetic_unit(dtype), statistics.count
    exact, normal = dy.astype("f8"), statistics.normal
    over = {"axis": across(x)}
    size_b, size_s = np.abs(exact).sum(**over), np.abs(exact * normal).sum(**over)
    sum_b, sum_s = exact.sum(**over), (exact * normal).sum(**over)
    error_b = (count + 4) * unit * size_b
    error_s = (count + 8) * unit * size_s + (np.abs(exact) * statistics.normal_error).sum(**over)
    factor = np.abs(wide(scale * statistics.inverse, ndim))
    inner = exact - wide(sum_b, ndim) / count - normal * wide(sum_s, ndim) / count
    size = np.abs(exact) + wide(size_b, ndim) / count + np.abs(normal * wide(size_s, ndim)) / count
    error = (
        wide(error_b, ndim) / count
        + np.abs(normal) * wide(error_s, ndim) / count
        + statistics.normal_error * np.abs(wide(sum_s, ndim)) / count
        + wide(statistics.relative, ndim) * np.abs(inner)
    )
    dx = Bounded(wide(scale * statistics.inverse, ndim) * inner, factor * error)
    dx = dx.computed(8, factor * size, dtype)
    dx, old = finished(dx, dtype, alpha=alpha, beta=beta, random=random)
    options = {"epsilon": epsilon, "alpha": alpha, "beta": beta}
    if saved:
        kind = vector_dtype(dtype)
        options["saved_mean"] = statistics.mean.astype(kind)
        options["saved_inverse_variance"] = statistics.inverse.astype(kind)
    return Call(
        "batch_normalization_backward",
        {"x": x, "dy": dy, "scale": scale},
        options,
        {
            "dx": dx,
            "dscale": Bounded(sum_s, error_s + 2 * unit * np.abs(sum_s)),
            "dbias": Bounded(sum_b, error_b + 2 * unit * np.abs(sum_b)),
        },
        ("dx",),
        {"dx": old},
    )
