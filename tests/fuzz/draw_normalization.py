"""Batch normalisation: in training, by given statistics, and its gradient."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draw_convolution import draw_dtype, draw_feature_map
from tests.fuzz.problems import WIDE, Problem, Tensor
from tests.support import bounded
from tests.support.bounded import UNIT, Bounded, arithmetic_unit
from tests.support.normalization import Statistics, across, normalise, wide


def draw_vector(stream, shape):
    """(c,), or as cuDNN has it, (1, c, 1...)."""
    return shape[1:2] if stream.chance(0.7) else (1, shape[1], *[1] * (len(shape) - 2))


def draw_spread(stream):
    """A feature map with more than one value a channel, so that a variance says something."""
    while True:
        shape = draw_feature_map(stream)
        if np.prod(shape) > 3 * shape[1]:
            return shape


def batch_normalization_forward_training(stream):
    dtype, x = draw_dtype(stream), draw_spread(stream)
    vector = WIDE[dtype]
    epsilon, factor = stream.choice((1e-5, 1e-3, 0.1)), stream.choice((0.1, 0.5, 1.0))
    running = stream.chance(0.5)
    tensors = {
        "x": Tensor(x, dtype, scale=stream.choice((1, 1, 10))),
        "scale": Tensor(draw_vector(stream, x), vector),
        "bias": Tensor(draw_vector(stream, x), vector),
    }
    updated = ("running_mean", "running_variance") if running else ()
    tensors |= {name: Tensor(x[1:2], vector, "positive") for name in updated}

    def expected(values, arithmetic):
        statistics = Statistics(values["x"], dtype, epsilon)
        if not np.isfinite(statistics.mean).all():
            statistics.mean = values["x"].astype("f8").mean(axis=across(values["x"]))
        made = {
            "y": normalise(
                statistics, values["scale"].ravel(), values["bias"].ravel(), arithmetic.last
            ),
            "saved_mean": statistics.bounded("mean"),
            "saved_inverse_variance": statistics.bounded("inverse"),
        }
        names = ("mean", "variance")
        for name, what in zip(updated, names[: len(updated)], strict=True):
            new, old = statistics.bounded(what), values[name].astype("f8")
            value = (1 - factor) * old + factor * new.value if factor < 1 else new.value
            size = np.abs((1 - factor) * old) + np.abs(factor * new.value)
            error = factor * new.error + 4 * arithmetic_unit(dtype) * size
            made[name] = Bounded(value, error)
        return made

    c = x[1:2]
    return Problem(
        "batch_normalization_forward_training", dtype, tensors,
        {"epsilon": epsilon, "exponential_average_factor": factor},
        {"y": (x, dtype), "saved_mean": (c, vector), "saved_inverse_variance": (c, vector)},
        expected, keyword=updated, updated=updated, scaled=("y",),
    )  # fmt: skip


def batch_normalization_forward_inference(stream):
    dtype, x = draw_dtype(stream), draw_feature_map(stream)
    epsilon = stream.choice((1e-5, 1e-3, 0.0))
    tensors = {"x": Tensor(x, dtype)} | {
        name: Tensor(
            draw_vector(stream, x), WIDE[dtype], "positive" if name == "variance" else "normal"
        )
        for name in ("scale", "bias", "mean", "variance")
    }

    def expected(values, arithmetic):
        vectors = (values[name].ravel() for name in ("scale", "bias", "mean", "variance"))
        made = bounded.normalised(
            Bounded.exact(values["x"]), *vectors, arithmetic.last, epsilon=epsilon
        )
        return {"y": made}

    return Problem(
        "batch_normalization_forward_inference", dtype, tensors, {"epsilon": epsilon},
        {"y": (x, dtype)}, expected, exact_special=False,
    )  # fmt: skip


def batch_normalization_backward(stream):
    dtype, x = draw_dtype(stream), draw_spread(stream)
    vector, epsilon, saved = WIDE[dtype], stream.choice((1e-5, 1e-3, 0.1)), stream.chance(0.6)
    tensors = {
        "x": Tensor(x, dtype), "dy": Tensor(x, dtype),
        "scale": Tensor(draw_vector(stream, x), vector),
    }  # fmt: skip
    names = ("saved_mean", "saved_inverse_variance") if saved else ()
    tensors |= {name: Tensor(draw_vector(stream, x), vector, "derived") for name in names}

    def derive(values):
        statistics = Statistics(values["x"], dtype, epsilon)
        found = {"saved_mean": statistics.mean, "saved_inverse_variance": statistics.inverse}
        return {n: found[n].astype(vector).reshape(tensors[n].shape) for n in names}

    def expected(values, arithmetic):
        return gradient(values["x"], values["dy"], values["scale"].ravel(), epsilon, arithmetic)

    c = x[1:2]
    return Problem(
        "batch_normalization_backward", dtype, tensors, {"epsilon": epsilon},
        {"dx": (x, dtype), "dscale": (c, vector), "dbias": (c, vector)}, expected, derive,
        keyword=names, scaled=("dx",), exact_special=False,
    )  # fmt: skip


def gradient(x, dy, scale, epsilon, arithmetic):
    """dx, dscale and dbias; the bounds are those of tests/support/normalization.py."""
    statistics = Statistics(x, arithmetic.dtype, epsilon)
    axes, unit, count = x.ndim, arithmetic_unit(arithmetic.dtype), statistics.count
    exact, normal, over = dy.astype("f8"), statistics.normal, {"axis": across(x)}
    size_b, size_s = np.abs(exact).sum(**over), np.abs(exact * normal).sum(**over)
    sum_b, sum_s = exact.sum(**over), (exact * normal).sum(**over)
    error_b = (count + 4) * unit * size_b
    error_s = (count + 8) * unit * size_s + (np.abs(exact) * statistics.normal_error).sum(**over)
    slope = wide(scale.astype("f8") * statistics.inverse, axes)
    inner = exact - wide(sum_b, axes) / count - normal * wide(sum_s, axes) / count
    size = np.abs(exact) + wide(size_b, axes) / count + np.abs(normal * wide(size_s, axes)) / count
    error = (
        wide(error_b, axes) / count
        + np.abs(normal) * wide(error_s, axes) / count
        + statistics.normal_error * np.abs(wide(sum_s, axes)) / count
        + wide(statistics.relative, axes) * np.abs(inner)
    )
    dx = Bounded(slope * inner, np.abs(slope) * error)
    rounding = 2 * UNIT["float64" if arithmetic.dtype == "float64" else "float32"]
    return {
        "dx": dx.computed(8, np.abs(slope) * size, arithmetic.last),
        "dscale": Bounded(sum_s, error_s + rounding * np.abs(sum_s)),
        "dbias": Bounded(sum_b, error_b + rounding * np.abs(sum_b)),
    }


DRAWERS = (
    batch_normalization_forward_training, batch_normalization_forward_inference,
    batch_normalization_backward,
)  # fmt: skip
