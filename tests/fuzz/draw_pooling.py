"""Pooling and its gradient."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.draw_convolution import draw_dtype, draw_windows
from tests.fuzz.problems import Problem, Tensor
from tests.support import bounded, reference
from tests.support.bounded import Bounded
from tests.support.calls import POOLING_MODES
from tests.support.function_cases import DTYPES


def pooled_extents(shape, how):
    """Shape of a pooling's result."""
    taken = {name: how[name] for name in ("window", "padding", "stride") if name in how}
    made = bounded.windows(
        np.zeros((1, 1, *shape[2:])), taken["window"], taken.get("padding", 0),
        taken.get("stride"), 0.0,
    )  # fmt: skip
    return (*shape[:2], *made.shape[3:])


def draw_pooling(stream, axes, **limits):
    """(extents of x, how it is pooled)."""
    while True:
        spatial, window, geometry = draw_windows(stream, axes, pooled=True, **limits)
        how = {"window": window, "mode": stream.choice(POOLING_MODES), **geometry}
        if stream.chance(0.3):  # a stride of the window, by leaving it out
            del how["stride"]
        if has_elements(spatial, how):
            return spatial, how


def has_elements(spatial, how):
    """Whether a window fits, and every one holds an element: a mean over none is not defined."""
    pads = reference.pairs(how.get("padding", 0), len(spatial))
    if any(e + sum(p) < k for e, p, k in zip(spatial, pads, how["window"], strict=True)):
        return False
    inside = bounded.windows(
        np.ones((1, 1, *spatial)), how["window"], how.get("padding", 0), how.get("stride"), 0.0
    )
    return bool(inside.any(axis=0).all())


def draw_shape(stream):
    axes = stream.weighted({1: 2, 2: 5, 3: 2})
    spatial, how = draw_pooling(stream, axes)
    while True:
        x = (stream.choice((1, 2, 3, 7)), stream.choice((1, 2, 3, 5, 8, 16)), *spatial)
        if math.prod(x) * math.prod(how["window"]) <= 1_000_000:
            return x, how, draw_dtype(stream)


def pooling_forward(stream):
    x, how, dtype = draw_shape(stream)

    def expected(values, arithmetic):
        return {"y": bounded.pooling(Bounded.exact(values["x"]), arithmetic.last, **how)}

    y = pooled_extents(x, how)
    return Problem(
        "pooling_forward", dtype, {"x": Tensor(x, dtype)}, how, {"y": (y, dtype)}, expected
    )


def pooling_backward(stream):
    x, how, dtype = draw_shape(stream)
    y = pooled_extents(x, how)

    def derive(values):
        made = bounded.pooling(Bounded.exact(values["x"]), dtype, **how)
        return {"y": made.value.astype(DTYPES[dtype])}

    def expected(values, arithmetic):
        operands = (values[name] for name in ("x", "y", "dy"))
        return {"dx": bounded.pooling_backward(*operands, arithmetic.last, **how)}

    tensors = {
        "y": Tensor(y, dtype, "derived"), "dy": Tensor(y, dtype), "x": Tensor(x, dtype, "few")
    }  # fmt: skip
    return Problem("pooling_backward", dtype, tensors, how, {"dx": (x, dtype)}, expected, derive)


DRAWERS = (pooling_forward, pooling_backward)
