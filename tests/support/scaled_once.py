"""Calls in half types whose results would be wrong if they were rounded before they are scaled.

What alpha and beta make is small beside both of its terms: a product that was rounded to the dtype
first is off by a hundred times the bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support import calls, chains, normalization
from tests.support.bounded import TINY, UNIT, Bounded
from tests.support.calls import ConvolutionCase, FusedCase, PoolingCase
from tests.support.chains import act, bias, conv, norm, pool, tensor
from tests.support.function_cases import DTYPES, Call

HALF = ("float16", "bfloat16")
SCALE = {"alpha": 0.01, "beta": 0.5}
#: Roundings of the arithmetic, of the largest number there is, that no result may be off by.
ARITHMETIC_ROUNDINGS = 100

X, W = (2, 4, 7, 5), (6, 4, 3, 3)
WINDOWS = {"window": 3, "stride": 2, "padding": 1}
RECIPES = {
    "convolution": (conv(6, 3, padding=1),),
    "convolution and bias": (conv(6, 3, padding=1), bias()),
    "convolution, bias and activation": (conv(6, 3, padding=1), bias(), act("elu")),
    "a residual": (conv(6, 3, padding=1), norm(), tensor("add"), act("leaky_relu")),
    "poolings that overlap": (
        conv(6, 3, padding=1),
        act("tanh"),
        pool(3, stride=1, padding=1),
        bias(),
        pool(2, stride=1, mode="average_exclude_padding"),
    ),
    "average pooling": (pool(3, stride=2, padding=1, mode="average_include_padding"), act("tanh")),
    "elementwise": (bias(), tensor("multiply"), norm(), act("swish")),
}


def makers():
    """Name -> maker of a call in a dtype, neither scaled nor added to."""
    found = {}
    for which in ("data", "filter", "bias"):
        found[f"convolution_backward_{which}"] = lambda dtype, which=which: calls.gradient_call(
            ConvolutionCase(which, X, W, {"padding": 1}, dtype), which
        )
    for mode in calls.POOLING_MODES:
        found[f"pooling_forward {mode}"] = lambda dtype, mode=mode: calls.pooling_forward_call(
            PoolingCase(mode, X, WINDOWS, dtype), mode
        )
        found[f"pooling_backward {mode}"] = lambda dtype, mode=mode: calls.pooling_backward_call(
            PoolingCase(mode, X, WINDOWS, dtype), mode
        )
    for algorithm, mode in (("accurate", "channel"), ("log", "instance"), ("log", "channel")):
        way = (algorithm, mode)
        found[f"softmax_forward {way}"] = lambda dtype, way=way: calls.softmax_forward_call(
            X, *way, dtype
        )
        found[f"softmax_backward {way}"] = lambda dtype, way=way: calls.softmax_backward_call(
            X, *way, dtype
        )
    for mode in ("gelu", "sigmoid"):
        found[f"activation_forward {mode}"] = lambda dtype, mode=mode: (
            calls.activation_forward_call(X, mode, None, dtype)
        )
        found[f"activation_backward {mode}"] = lambda dtype, mode=mode: (
            calls.activation_backward_call(X, mode, None, dtype)
        )
    found["batch_normalization_forward_training"] = lambda dtype: normalization.training_call(
        X, dtype
    )
    found["batch_normalization_forward_inference"] = lambda dtype: normalization.inference_call(
        X, dtype
    )
    found["batch_normalization_backward"] = lambda dtype: normalization.backward_call(X, dtype)
    pooling = {"window": 2, "mode": "average_exclude_padding"}
    found["convolution_add_activation_pooling_forward"] = lambda dtype: calls.fused_pooling_call(
        FusedCase("fused", X, W, {"padding": 1}, pooling, "identity", dtype=dtype)
    )
    found["convolution_add_activation_backward"] = lambda dtype: calls.fused_backward_call(
        FusedCase("fused", X, W, {"padding": 1}, activation="relu", dtype=dtype)
    )
    for name, recipe in RECIPES.items():
        found[f"chain_forward {name}"] = lambda dtype, recipe=recipe: chains.make_call(
            X, recipe, dtype
        )
    return found


MAKERS = makers()


def cancelling(name, dtype):
    """The call of that name with `SCALE`, on old values that almost cancel what it computes."""
    call = MAKERS[name](dtype)
    alpha, beta = SCALE["alpha"], SCALE["beta"]
    results, old = dict(call.results), dict(call.old)
    scaled = [name for name in call.outs if name in ("y", "dx", "dw", "db")]
    assert scaled
    for name in scaled:
        exact = call.results[name].value
        old[name] = (-0.99 * alpha / beta * exact).astype(DTYPES[dtype])
        made = alpha * exact + beta * old[name].astype("f8")
        largest = alpha * np.abs(exact).max()
        error = ARITHMETIC_ROUNDINGS * UNIT["float32"] * largest
        error = error + 1.01 * UNIT[dtype] * np.abs(made) + TINY[dtype]
        results[name] = Bounded(made, error)
    return replace(call, options=call.options | SCALE, results=results, old=old, name=name)


def _full(value, *shape):
    return np.full(shape, value, np.float16)


def _tens(*shape):
    """Ten channels of 100."""
    return _full(100, *shape)


#: Function -> (operands, options, shapes of the results). What is computed is 100,000 everywhere,
#: which is no number of float16; a hundredth of it is.
OVERFLOWING = {
    "convolution_forward": (
        {"x": _tens(2, 10, 3, 2), "w": _tens(3, 10, 1, 1)}, {}, {"y": (2, 3, 3, 2)}
    ),
    "convolution_backward_data": (
        {"w": _tens(10, 3, 1, 1), "dy": _tens(2, 10, 3, 2)}, {"input_shape": (2, 3, 3, 2)},
        {"dx": (2, 3, 3, 2)},
    ),
    "convolution_backward_filter": (
        {"x": _tens(2, 3, 5, 1), "dy": _tens(2, 2, 5, 1)}, {"filter_shape": (2, 3, 1, 1)},
        {"dw": (2, 3, 1, 1)},
    ),
    "convolution_backward_bias": ({"dy": _full(2000, 2, 3, 5, 5)}, {}, {"db": (3,)}),
    "convolution_add_activation_forward": (
        {"x": _tens(2, 10, 3, 2), "w": _tens(3, 10, 1, 1), "b": _full(0, 3)}, {},
        {"y": (2, 3, 3, 2)},
    ),
    "convolution_add_activation_pooling_forward": (
        {"x": _tens(1, 10, 6, 4), "w": _tens(3, 10, 1, 1), "b": _full(0, 3)},
        {"window": 3, "pooling_stride": 1, "pooling_padding": 1}, {"y": (1, 3, 6, 4)},
    ),
    "convolution_add_activation_backward": (
        {"x": _tens(2, 10, 5, 1), "w": _tens(10, 10, 1, 1), "y": _tens(2, 10, 5, 1),
         "dy": _tens(2, 10, 5, 1)}, {"activation": "identity"},
        {"dx": (2, 10, 5, 1), "dw": (10, 10, 1, 1), "db": (10,)},
    ),
    "pooling_backward": (
        {"y": _full(0, 1, 2, 4, 1), "dy": _full(50_000, 1, 2, 4, 1), "x": _full(0, 1, 2, 5, 1)},
        {"window": (2, 1), "stride": 1, "mode": "average_include_padding"}, {"dx": (1, 2, 5, 1)},
    ),
    "batch_normalization_forward_inference": (
        {"x": _full(1, 2, 3, 4, 1), "scale": np.full(3, 1e5, "f4"), "bias": np.zeros(3, "f4"),
         "mean": np.zeros(3, "f4"), "variance": np.full(3, 1 - 1e-5, "f4")},
        {}, {"y": (2, 3, 4, 1)},
    ),
}  # fmt: skip
#: Results that are not 100,000 throughout.
_OTHERWISE = {
    ("convolution_add_activation_backward", "db"): 1000,
    ("pooling_backward", "dx"): np.array([0.25, 0.5, 0.5, 0.5, 0.25]).reshape(1, 1, 5, 1) * 1e5,
}


def overflowing(name):
    """The call of that name in float16, with an alpha of 0.01."""
    operands, options, shapes = OVERFLOWING[name]
    results = {}
    for result, shape in shapes.items():
        exact = np.broadcast_to(0.01 * _OTHERWISE.get((name, result), 1e5), shape)
        results[result] = Bounded(exact, 2 * UNIT["float16"] * exact)
    return Call(name, operands, options | {"alpha": 0.01}, results, tuple(results), name=name)
