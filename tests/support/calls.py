"""Calls of the public functions on drawn data, with what each must give.

One maker a function; the cases themselves stand in the tests of the function.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.support import activation_modes, bounded, gradients
from tests.support.bounded import Bounded
from tests.support.function_cases import DTYPES, Call, draw, finished

POOLING_MODES = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")


# Gradients of convolutions -----------------------------------------------------------------------


@dataclass(frozen=True)
class ConvolutionCase:
    """One convolution whose gradients are wanted; `name` is what pytest prints."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    geometry: dict = field(default_factory=dict)
    dtype: str = "float32"
    alpha: float = 1.0
    beta: float = 0.0

    def __str__(self):
        return self.name


def gradient_call(case, which):
    """The call of one of the three gradients of a case."""
    random = np.random.default_rng(3)
    x, w = draw(random, case.x, case.dtype), draw(random, case.w, case.dtype)
    dy = draw(random, gradients.output_shape(case.x, case.w, **case.geometry), case.dtype)
    options = {"alpha": case.alpha, "beta": case.beta}
    if which == "data":
        operands, name = {"w": w, "dy": dy}, "dx"
        options |= {"input_shape": case.x, **case.geometry}
        result = gradients.backward_data(case.x, w, dy, case.dtype, **case.geometry)
    elif which == "filter":
        operands, name = {"x": x, "dy": dy}, "dw"
        options |= {"filter_shape": case.w, **case.geometry}
        result = gradients.backward_filter(x, case.w, dy, case.dtype, **case.geometry)
    else:
        operands, name = {"dy": dy}, "db"
        result = gradients.channel_sum(dy, case.dtype)
    scale = {"alpha": case.alpha, "beta": case.beta}
    result, old = finished(result, case.dtype, random=random, **scale)
    function = f"convolution_backward_{which}"
    return Call(function, operands, options, {name: result}, (name,), {name: old}, name=str(case))


# Pooling ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolingCase:
    """One small shape; `name` is what pytest prints."""

    name: str
    x: tuple[int, ...]
    geometry: dict = field(default_factory=dict)  # window, padding, stride
    dtype: str = "float32"
    alpha: float = 1.0
    beta: float = 0.0
    modes: tuple[str, ...] = POOLING_MODES

    def __str__(self):
        return self.name


def few_values(random, shape, dtype):
    """Small numbers of which many are equal, so that windows hold ties."""
    return random.integers(-2, 3, shape).astype(DTYPES[dtype])


def pooling_forward_call(case, mode, x=None):
    random = np.random.default_rng(5)
    x = draw(random, case.x, case.dtype) if x is None else x
    options = {**case.geometry, "mode": mode}
    result = bounded.pooling(Bounded.exact(x), case.dtype, **options)
    scale = {"alpha": case.alpha, "beta": case.beta}
    result, old = finished(result, case.dtype, random=random, **scale)
    return Call(
        "pooling_forward", {"x": x}, options | scale, {"y": result}, old={"y": old}, name=case.name
    )


def pooling_backward_call(case, mode, x=None):
    random = np.random.default_rng(6)
    x = few_values(random, case.x, case.dtype) if x is None else x
    options = {**case.geometry, "mode": mode}
    y = bounded.pooling(Bounded.exact(x), case.dtype, **options).value.astype(x.dtype)
    dy = draw(random, y.shape, case.dtype)
    result = bounded.pooling_backward(x, y, dy, case.dtype, **options)
    scale = {"alpha": case.alpha, "beta": case.beta}
    result, old = finished(result, case.dtype, random=random, **scale)
    operands = {"y": y, "dy": dy, "x": x}
    return Call(
        "pooling_backward", operands, options | scale, {"dx": result}, ("dx",), {"dx": old},
        name=case.name,
    )  # fmt: skip


# Activations --------------------------------------------------------------------------------------


def named(mode, coef):
    return mode if coef is None else f"{mode} {coef}"


def activation_forward_call(shape, mode, coef, dtype="float32", alpha=1.0, beta=0.0, x=None):
    random = np.random.default_rng(11)
    x = 2 * draw(random, shape, dtype) if x is None else x
    x = x.astype(draw(random, (1,), dtype).dtype)
    result = bounded.activation(Bounded.exact(x), dtype, mode, coef)
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    options = {"mode": mode, "coef": coef, "alpha": alpha, "beta": beta}
    return Call(
        "activation_forward", {"x": x}, options, {"y": result}, old={"y": old},
        name=named(mode, coef),
    )  # fmt: skip


def activation_backward_call(shape, mode, coef, dtype="float32", alpha=1.0, beta=0.0, give_x=None):
    random = np.random.default_rng(12)
    x = draw(random, shape, dtype)
    y = bounded.activation(Bounded.exact(x), dtype, mode, coef).value.astype(x.dtype)
    dy = draw(random, shape, dtype)
    result = gradients.activation_backward(y, dy, x, dtype, mode, coef)
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    options = {"mode": mode, "coef": coef, "alpha": alpha, "beta": beta}
    operands = {"y": y, "dy": dy}
    if activation_modes.needs_x(mode, coef) if give_x is None else give_x:
        operands["x"] = x
    return Call(
        "activation_backward", operands, options, {"dx": result}, ("dx",), {"dx": old},
        name=named(mode, coef),
    )  # fmt: skip


# add_tensor ---------------------------------------------------------------------------------------


def add_tensor_call(b, y, dtype="float32", alpha=1.0, beta=1.0):
    """The call with `out`; y stays as it is."""
    random = np.random.default_rng(13)
    b, y = draw(random, b, dtype), draw(random, y, dtype)
    wide = b.reshape(1, -1, *[1] * (y.ndim - 2)) if b.ndim == 1 else b
    if beta == 0:
        y[...] = np.nan
    held = Bounded.exact(np.zeros(y.shape) if beta == 0 else y)
    result = bounded.op_tensor(held, wide, dtype, alpha_a=beta, alpha_b=alpha)
    options = {"alpha": alpha, "beta": beta}
    return Call(
        "add_tensor",
        {"b": b, "y": y},
        options,
        {"y": result},
        ("y",),
        name=f"{b.shape} on {y.shape}",
    )


# Softmax ------------------------------------------------------------------------------------------


def softmax_axes(mode, ndim):
    return (1,) if mode == "channel" else tuple(range(1, ndim))


def softmax_forward_call(shape, algorithm, mode, dtype="float32", alpha=1.0, beta=0.0, x=None):
    random = np.random.default_rng(14)
    x = 3 * draw(random, shape, dtype) if x is None else x
    x = x.astype(DTYPES[dtype])
    result = bounded.softmax(x, dtype, algorithm=algorithm, mode=mode)
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    options = {"algorithm": algorithm, "mode": mode, "alpha": alpha, "beta": beta}
    return Call("softmax_forward", {"x": x}, options, {"y": result}, old={"y": old})


def softmax_backward(y, dy, dtype, algorithm, mode):
    """dx of (y, dy) in float64."""
    axes = softmax_axes(mode, y.ndim)
    y, dy = y.astype("f8"), dy.astype("f8")
    terms = 8 + np.prod([y.shape[a] for a in axes])
    if algorithm == "accurate":
        share, weight = y * dy, y
        value = y * (dy - share.sum(axis=axes, keepdims=True))
    else:
        share, weight = dy, np.exp(y)
        value = dy - weight * dy.sum(axis=axes, keepdims=True)
        terms = terms + np.abs(y)  # exp(y) with y off by u * |y|
    size = np.abs(share).sum(axis=axes, keepdims=True) * weight
    size = size + np.abs(dy) * (weight if algorithm == "accurate" else 1)
    return Bounded(value, np.zeros(value.shape)).computed(terms, size, dtype)


def softmax_backward_call(shape, algorithm, mode, dtype="float32", alpha=1.0, beta=0.0):
    random = np.random.default_rng(15)
    x = draw(random, shape, dtype)
    y = bounded.softmax(x, dtype, algorithm=algorithm, mode=mode).value.astype(DTYPES[dtype])
    dy = draw(random, shape, dtype)
    result = softmax_backward(y, dy, dtype, algorithm, mode)
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    options = {"algorithm": algorithm, "mode": mode, "alpha": alpha, "beta": beta}
    return Call(
        "softmax_backward", {"y": y, "dy": dy}, options, {"dx": result}, ("dx",), {"dx": old}
    )


# Fused functions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedCase:
    """A convolution, an activation and a pooling."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    geometry: dict = field(default_factory=dict)
    pooling: dict = field(default_factory=lambda: {"window": 2})
    activation: str = "relu"
    coef: float | None = None
    dtype: str = "float32"
    alpha: float = 1.0
    beta: float = 0.0

    def __str__(self):
        return self.name


def activated(case, x, w, b):
    """Convolution, bias and activation."""
    y = bounded.convolution(Bounded.exact(x), w, case.dtype, **case.geometry)
    y = bounded.bias(y, b, case.dtype)
    return bounded.activation(y, case.dtype, case.activation, case.coef)


def fused_pooling_call(case):
    random = np.random.default_rng(31)
    x, w, b = (draw(random, shape, case.dtype) for shape in (case.x, case.w, case.w[:1]))
    names = {"pooling_padding": "padding", "pooling_stride": "stride"}
    geometry = {names.get(name, name): value for name, value in case.pooling.items()}
    result = bounded.pooling(activated(case, x, w, b), case.dtype, **geometry)
    scale = {"alpha": case.alpha, "beta": case.beta}
    result, old = finished(result, case.dtype, random=random, **scale)
    options = {
        "activation": case.activation, "coef": case.coef, **case.geometry, **case.pooling, **scale
    }  # fmt: skip
    return Call(
        "convolution_add_activation_pooling_forward", {"x": x, "w": w, "b": b}, options,
        {"y": result}, old={"y": old}, name=case.name,
    )  # fmt: skip


def fused_backward_call(case):
    random = np.random.default_rng(32)
    x, w, b = (draw(random, shape, case.dtype) for shape in (case.x, case.w, case.w[:1]))
    y = activated(case, x, w, b).value.astype(x.dtype)
    dy = draw(random, y.shape, case.dtype)
    dz = gradients.activation_backward(y, dy, None, case.dtype, case.activation, case.coef)
    found = {
        "dx": gradients.backward_data(case.x, w, dz, case.dtype, **case.geometry),
        "dw": gradients.backward_filter(x, case.w, dz, case.dtype, **case.geometry),
        "db": gradients.channel_sum(dz, case.dtype),
    }
    scale = {"alpha": case.alpha, "beta": case.beta}
    results, old = {}, {}
    for name, result in found.items():
        results[name], old[name] = finished(result, case.dtype, random=random, **scale)
    options = {"activation": case.activation, "coef": case.coef, **case.geometry, **scale}
    return Call(
        "convolution_add_activation_backward", {"x": x, "w": w, "y": y, "dy": dy}, options,
        results, ("dx", "dw", "db"), old, name=case.name,
    )  # fmt: skip
