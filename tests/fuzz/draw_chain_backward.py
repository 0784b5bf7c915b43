"""Chains backward: the gradients of 2 to 8 operations, each call on what the one before returned.

Data and results of the forward operations are given; the gradient alone is handed on, placed where
the library puts it. Its error is carried through every operation, which is linear in it.
"""

from __future__ import annotations

import numpy as np

import ooc_cudnn
from tests.fuzz import activations
from tests.fuzz.draw_chain import draw_fitting_pooling, step_convolution
from tests.fuzz.draw_convolution import draw_dtype
from tests.fuzz.draw_pooling import pooled_extents
from tests.fuzz.problems import Problem, Tensor
from tests.support import bounded, gradients
from tests.support.bounded import Bounded
from tests.support.function_cases import DTYPES

LARGEST = {1: 80, 2: 18, 3: 7}


class Layer:
    """One operation: `forward` gives its result, `backward` the library's gradients of it.

    `expected` takes the gradient of the result as Bounded and gives the same gradients.
    """

    def __init__(self, at, shape, dtype):
        self.at, self.before, self.shape, self.dtype = at, shape, shape, dtype
        self.tensors, self.results = {}, {}

    @property
    def x(self):
        return f"x{self.at}"

    @property
    def y(self):
        return f"x{self.at + 1}"


class Convolved(Layer):
    """A convolution, alone or with bias and activation, whose gradients are fused then."""

    def __init__(self, stream, at, shape, dtype):
        super().__init__(at, shape, dtype)
        step = step_convolution(stream, shape, dtype, at)
        self.geometry, self.words, self.shape = step.geometry, step.words, step.shape
        self.tensors, self.w = step.tensors, f"w{at}"
        self.fused = stream.chance(0.5)
        if self.fused:
            self.mode, self.coef = activations.draw_activation(stream, from_y=True)
            self.words += f" + {self.mode}"
        w = self.tensors[self.w].shape
        self.results = {f"dw{at}": (w, dtype), f"db{at}": (w[:1], dtype)}

    def forward(self, values):
        x = Bounded.exact(values[self.x])
        made = bounded.convolution(x, values[self.w], self.dtype, **self.geometry)
        if self.fused:
            made = activations.activation(made, self.dtype, self.mode, self.coef)
        return made.value

    def backward(self, arrays, dy):
        x, w = arrays[self.x], arrays[self.w]
        if self.fused:
            return ooc_cudnn.convolution_add_activation_backward(
                x, w, arrays[self.y], dy, activation=self.mode, coef=self.coef, **self.geometry
            )
        shapes = tuple(x.shape), tuple(w.shape)
        return (
            ooc_cudnn.convolution_backward_data(w, dy, input_shape=shapes[0], **self.geometry),
            ooc_cudnn.convolution_backward_filter(x, dy, filter_shape=shapes[1], **self.geometry),
            ooc_cudnn.convolution_backward_bias(dy),
        )

    def expected(self, values, dy, arithmetic):
        if self.fused:
            dy = slope(values[self.y], dy, self.dtype, self.mode, self.coef)
        x, w, cut, geometry = values[self.x], values[self.w], arithmetic.factor(dy), self.geometry
        return (
            gradients.backward_data(x.shape, w, cut, self.dtype, **geometry),
            gradients.backward_filter(x, w.shape, cut, self.dtype, **geometry),
            gradients.channel_sum(dy, self.dtype),
        )


class Activated(Layer):
    """An activation."""

    def __init__(self, stream, at, shape, dtype):
        super().__init__(at, shape, dtype)
        self.mode, self.coef = activations.draw_activation(stream, from_y=True)
        self.words = self.mode

    def forward(self, values):
        x = Bounded.exact(values[self.x])
        return activations.activation(x, self.dtype, self.mode, self.coef).value

    def backward(self, arrays, dy):
        return (ooc_cudnn.activation_backward(arrays[self.y], dy, mode=self.mode, coef=self.coef),)

    def expected(self, values, dy, arithmetic):
        return (slope(values[self.y], dy, self.dtype, self.mode, self.coef),)


class Pooled(Layer):
    """A pooling."""

    def __init__(self, stream, at, shape, dtype):
        super().__init__(at, shape, dtype)
        self.how = draw_fitting_pooling(stream, shape) or {"window": (1,) * (len(shape) - 2)}
        self.words, self.shape = f"pool {self.how}", pooled_extents(shape, self.how)

    def forward(self, values):
        return bounded.pooling(Bounded.exact(values[self.x]), self.dtype, **self.how).value

    def backward(self, arrays, dy):
        x, y = arrays[self.x], arrays[self.y]
        return (ooc_cudnn.pooling_backward(y, dy, x, **self.how),)

    def expected(self, values, dy, arithmetic):
        x, y = values[self.x], values[self.y]
        made = bounded.pooling_backward(x, y, dy.value, self.dtype, **self.how)
        size = bounded.pooling_backward(
            x, y, np.abs(dy.value) + dy.error, self.dtype, **self.how
        )  # the shares of a gradient are not negative
        carried = bounded.pooling_backward(x, y, dy.error, self.dtype, **self.how).value
        return (Bounded(made.value, carried + size.error),)


def slope(y, dy, dtype, mode, coef):
    """dx of a Bounded dy."""
    made = activations.activation_backward(y, dy.value, None, dtype, mode, coef)
    size = np.abs(dy.value) + dy.error
    bound = activations.activation_backward(y, size, None, dtype, mode, coef).error
    carried = activations.activation_backward(y, dy.error, None, dtype, mode, coef).value
    return Bounded(made.value, np.abs(carried) + bound)


def chain_backward(stream):
    dtype, axes = draw_dtype(stream), stream.weighted({1: 2, 2: 5, 3: 1})
    spatial = tuple(stream.randint(2, LARGEST[axes]) for _ in range(axes))
    shape = (stream.choice((1, 1, 2, 3)), stream.randint(1, 8), *spatial)
    layers, tensors = [], {"x0": Tensor(shape, dtype)}
    for at in range(stream.choice((2, 2, 3, 3, 4, 5, 8))):
        kind = stream.weighted({Convolved: 5, Activated: 2, Pooled: 2})
        layers.append(kind(stream, at, shape, dtype))
        shape = layers[-1].shape
        tensors |= layers[-1].tensors | {f"x{at + 1}": Tensor(shape, dtype, "derived")}
    tensors["dy"] = Tensor(shape, dtype)
    results = {"dx": (tensors["x0"].shape, dtype)}
    for layer in layers:
        results |= layer.results

    def derive(values):
        made = dict(values)
        for layer in layers:
            made[layer.y] = layer.forward(made).astype(DTYPES[dtype])
        return {layer.y: made[layer.y] for layer in layers}

    def backward(gradient, dy):
        """All results in order, from the gradients of each layer."""
        found = {}
        for layer in reversed(layers):
            dy, *own = gradient(layer, dy)
            found |= dict(zip(layer.results, own, strict=True))
        return {"dx": dy, **{name: found[name] for name in results if name != "dx"}}

    def expected(values, arithmetic):
        start = Bounded.exact(values["dy"])
        return backward(lambda layer, dy: layer.expected(values, dy, arithmetic), start)

    def invoke(arrays, options):
        made = backward(lambda layer, dy: layer.backward(arrays, dy), arrays["dy"])
        return tuple(made.values()) if len(made) > 1 else made["dx"]

    return Problem(
        "chain_backward", dtype, tensors, {}, results, expected, derive, has_scaling=False,
        scaled=(), may_give_out=False, most_calls=3 * len(layers) + 1, uses_tf32=True,
        exact_special=False, invoke=invoke,
        words=" > ".join(layer.words for layer in layers),
    )  # fmt: skip


DRAWERS = (chain_backward,)
