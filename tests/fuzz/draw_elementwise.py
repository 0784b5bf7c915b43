"""add_tensor, activations, softmax, and their gradients."""

from __future__ import annotations

import numpy as np

import ooc_cudnn
from tests.fuzz import activations
from tests.fuzz.draw_convolution import draw_dtype, draw_feature_map
from tests.fuzz.problems import Problem, Tensor
from tests.support import activation_modes, bounded
from tests.support.bounded import Bounded
from tests.support.calls import softmax_backward as softmax_gradient
from tests.support.function_cases import DTYPES


def draw_broadcast(stream, shape):
    """A shape that broadcasts to `shape`: (c,), or any extent 1."""
    if stream.chance(0.3):
        return shape[1:2]
    share = stream.choice((0.0, 0.3, 0.6, 1.0))
    return tuple(1 if stream.chance(share) else extent for extent in shape)


def wide(values, axes):
    """(c,) as (1, c, 1...)."""
    return values.reshape(1, -1, *[1] * (axes - 2)) if values.ndim == 1 else values


def add_tensor(stream):
    dtype, y = draw_dtype(stream), draw_feature_map(stream)
    b = draw_broadcast(stream, y)
    apart = stream.chance(0.5)
    alpha, beta = stream.choice((1.0, 0.5, -2.0)), stream.choice((1.0, 1.0, 0.5, 0.0))

    def expected(values, arithmetic):
        held = np.zeros(y) if beta == 0 else values["y"]
        made = bounded.op_tensor(
            Bounded.exact(held), wide(values["b"], len(y)), arithmetic.last,
            alpha_a=beta, alpha_b=alpha,
        )  # fmt: skip
        return {"out" if apart else "y": made}

    def invoke(arrays, options):
        return ooc_cudnn.add_tensor(arrays["b"], arrays["y"], **options)

    return Problem(
        "add_tensor", dtype, {"b": Tensor(b, dtype), "y": Tensor(y, dtype)},
        {"alpha": alpha, "beta": beta}, {"out": (y, dtype)} if apart else {}, expected,
        has_scaling=False, needs_out=apart, updated=() if apart else ("y",), invoke=invoke,
    )  # fmt: skip


def activation_forward(stream):
    dtype, x = draw_dtype(stream), draw_feature_map(stream)
    mode, coef = activations.draw_activation(stream)

    def expected(values, arithmetic):
        exact = Bounded.exact(values["x"])
        return {"y": activations.activation(exact, arithmetic.last, mode, coef)}

    return Problem(
        "activation_forward", dtype, {"x": Tensor(x, dtype, scale=2)},
        {"mode": mode, "coef": coef}, {"y": (x, dtype)}, expected,
    )  # fmt: skip


def activation_backward(stream):
    dtype, shape = draw_dtype(stream), draw_feature_map(stream)
    mode, coef = activations.draw_activation(stream)
    with_x = activation_modes.needs_x(mode, coef) or stream.chance(0.3)

    def derive(values):
        x = Bounded.exact(values["x"] if with_x else values["source"])
        return {"y": activations.activation(x, dtype, mode, coef).value.astype(DTYPES[dtype])}

    def expected(values, arithmetic):
        made = activations.activation_backward(
            values["y"], values["dy"], values.get("x"), arithmetic.last, mode, coef
        )
        return {"dx": made}

    tensors = {"y": Tensor(shape, dtype, "derived"), "dy": Tensor(shape, dtype)}
    if with_x:
        tensors["x"] = Tensor(shape, dtype, scale=2)
    else:
        tensors["source"] = Tensor(shape, dtype, scale=2)
    return Problem(
        "activation_backward", dtype, tensors, {"mode": mode, "coef": coef},
        {"dx": (shape, dtype)}, expected, derive, hidden=() if with_x else ("source",),
    )  # fmt: skip


ALGORITHMS, SOFTMAX_MODES = ("accurate", "log"), ("channel", "instance")


def softmax_forward(stream):
    dtype, x = draw_dtype(stream), draw_feature_map(stream)
    how = {"algorithm": stream.choice(ALGORITHMS), "mode": stream.choice(SOFTMAX_MODES)}

    def expected(values, arithmetic):
        return {"y": bounded.softmax(values["x"], arithmetic.last, **how)}

    return Problem(
        "softmax_forward", dtype, {"x": Tensor(x, dtype, scale=3)}, how, {"y": (x, dtype)}, expected
    )


def softmax_backward(stream):
    dtype, shape = draw_dtype(stream), draw_feature_map(stream)
    how = {"algorithm": stream.choice(ALGORITHMS), "mode": stream.choice(SOFTMAX_MODES)}

    def derive(values):
        y = bounded.softmax(values["source"], dtype, **how).value
        return {"y": y.astype(DTYPES[dtype])}

    def expected(values, arithmetic):
        made = softmax_gradient(values["y"], values["dy"], arithmetic.last, *how.values())
        return {"dx": made}

    tensors = {
        "y": Tensor(shape, dtype, "derived"), "dy": Tensor(shape, dtype),
        "source": Tensor(shape, dtype),
    }  # fmt: skip
    return Problem(
        "softmax_backward", dtype, tensors, how, {"dx": (shape, dtype)}, expected, derive,
        hidden=("source",), exact_special=False,
    )  # fmt: skip


DRAWERS = (add_tensor, activation_forward, activation_backward, softmax_forward, softmax_backward)
