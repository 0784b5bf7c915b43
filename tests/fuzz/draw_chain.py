"""The fused functions, and chains of 2 to 8 operations."""

from __future__ import annotations

import math

import ooc_cudnn
from ooc_cudnn import operations
from tests.fuzz import activations, draw_reshaping
from tests.fuzz.draw_convolution import draw_dtype, draw_shapes
from tests.fuzz.draw_elementwise import draw_broadcast, wide
from tests.fuzz.draw_normalization import draw_vector
from tests.fuzz.draw_pooling import draw_pooling, has_elements, pooled_extents
from tests.fuzz.problems import WIDE, Problem, Tensor
from tests.support import bounded, gradients
from tests.support.bounded import Bounded
from tests.support.function_cases import DTYPES


def draw_fused(stream):
    """(tensors x, w and b, options of the convolution and its activation, dtype)."""
    x, w, geometry, dtype = draw_shapes(stream)
    scale = 1 / math.sqrt(math.prod(w[1:]))
    tensors = {
        "x": Tensor(x, dtype), "w": Tensor(w, dtype, scale=scale), "b": Tensor(w[:1], dtype)
    }  # fmt: skip
    return tensors, geometry, dtype


def activated(values, geometry, mode, coef, arithmetic, last):
    """Convolution, bias and activation; intermediates may be rounded to the dtype."""
    x = arithmetic.factor(values["x"])
    z = bounded.convolution(x, values["w"], arithmetic.dtype, **geometry)
    z = bounded.bias(z, values["b"], arithmetic.dtype)
    return activations.activation(z, last, mode, coef)


def convolution_add_activation_forward(stream):
    tensors, geometry, dtype = draw_fused(stream)
    mode, coef = activations.draw_activation(stream)

    def expected(values, arithmetic):
        return {"y": activated(values, geometry, mode, coef, arithmetic, arithmetic.last)}

    y = gradients.output_shape(tensors["x"].shape, tensors["w"].shape, **geometry)
    return Problem(
        "convolution_add_activation_forward", dtype, tensors,
        {"activation": mode, "coef": coef, **geometry}, {"y": (y, dtype)}, expected,
        uses_tf32=True,
    )  # fmt: skip


def convolution_add_activation_pooling_forward(stream):
    mode, coef = activations.draw_activation(stream)
    while True:
        tensors, geometry, dtype = draw_fused(stream)
        z = gradients.output_shape(tensors["x"].shape, tensors["w"].shape, **geometry)
        how = draw_fitting_pooling(stream, z)
        if how is not None:
            break
    named = {
        {"padding": "pooling_padding", "stride": "pooling_stride"}.get(name, name): value
        for name, value in how.items()
    }

    def expected(values, arithmetic):
        made = activated(values, geometry, mode, coef, arithmetic, dtype)
        return {"y": bounded.pooling(made, arithmetic.last, **how)}

    return Problem(
        "convolution_add_activation_pooling_forward", dtype, tensors,
        {"activation": mode, "coef": coef, **geometry, **named},
        {"y": (pooled_extents(z, how), dtype)}, expected, uses_tf32=True,
    )  # fmt: skip


def draw_fitting_pooling(stream, shape):
    """How a tensor of that shape may be pooled; None if nothing drawn fits."""
    for _ in range(8):
        _, how = draw_pooling(stream, len(shape) - 2, largest=3)
        if len(how["window"]) == len(shape) - 2 and has_elements(shape[2:], how):
            return how
    return None


def convolution_add_activation_backward(stream):
    tensors, geometry, dtype = draw_fused(stream)
    mode, coef = activations.draw_activation(stream, from_y=True)
    x, w = tensors["x"].shape, tensors["w"].shape
    y = gradients.output_shape(x, w, **geometry)
    tensors["y"], tensors["dy"] = Tensor(y, dtype, "derived"), Tensor(y, dtype)

    def derive(values):
        made = bounded.convolution(Bounded.exact(values["x"]), values["w"], dtype, **geometry)
        made = bounded.bias(made, values["b"], dtype)
        made = activations.activation(made, dtype, mode, coef)
        return {"y": made.value.astype(DTYPES[dtype])}

    def expected(values, arithmetic):
        dz = activations.activation_backward(values["y"], values["dy"], None, dtype, mode, coef)
        cut, last = arithmetic.factor(dz), arithmetic.last
        return {
            "dx": gradients.backward_data(x, values["w"], cut, last, **geometry),
            "dw": gradients.backward_filter(values["x"], w, cut, last, **geometry),
            "db": gradients.channel_sum(dz, last),
        }

    return Problem(
        "convolution_add_activation_backward", dtype, tensors,
        {"activation": mode, "coef": coef, **geometry},
        {"dx": (x, dtype), "dw": (w, dtype), "db": (w[:1], dtype)}, expected, derive,
        hidden=("b",), uses_tf32=True,
    )  # fmt: skip


# Chains ------------------------------------------------------------------------------------------


class Step:
    """One operation of a chain: its tensors, what the library is told, what float64 does."""

    def __init__(self, tensors, make, take, words, shape, geometry=None):
        self.tensors, self.make, self.take = tensors, make, take
        self.words, self.shape, self.geometry = words, shape, geometry


def step_convolution(stream, shape, dtype, at):
    groups = stream.choice([g for g in (1, 1, 1, 2, 4) if shape[1] % g == 0])
    c_y = groups * stream.randint(1, max(1, 12 // groups))
    geometry, window = {}, []
    padding, stride, dilation = [], [], []
    for extent in shape[2:]:
        k, d = stream.choice((1, 2, 3, 3, 5)), 1 if stream.chance(0.8) else 2
        first = stream.randint(0, k // 2 + (1 if stream.chance(0.1) else 0))
        pads = (first, first if stream.chance(0.6) else stream.randint(0, k // 2))
        if (k - 1) * d + 1 > extent + sum(pads):
            k, d = 1, 1
        window.append(k)
        padding.append(pads)
        dilation.append(d)
        stride.append(stream.choice((1, 1, 1, 2, 3)))
    geometry = {"padding": tuple(padding), "stride": tuple(stride), "dilation": tuple(dilation)}
    if groups > 1:
        geometry["groups"] = groups
    w, name = (c_y, shape[1] // groups, *window), f"w{at}"
    scale = 1 / math.sqrt(math.prod(w[1:]))

    def take(x, values, arithmetic, last):
        return bounded.convolution(arithmetic.factor(x), values[name], last, **geometry)

    return Step(
        {name: Tensor(w, dtype, scale=scale)},
        lambda arrays: operations.Convolution(arrays[name], **geometry),
        take, f"conv {list(w)} {geometry}", gradients.output_shape(shape, w, **geometry),
        geometry,
    )  # fmt: skip


def step_bias(stream, shape, dtype, at):
    name = f"b{at}"
    b = shape[1:2] if stream.chance(0.5) else draw_broadcast(stream, shape)

    def take(x, values, arithmetic, last):
        return bounded.op_tensor(x, wide(values[name], len(shape)), last)

    return Step(
        {name: Tensor(b, dtype)}, lambda arrays: operations.AddTensor(arrays[name]), take,
        f"add {list(b)}", shape,
    )  # fmt: skip


def step_activation(stream, shape, dtype, at):
    mode, coef = activations.draw_activation(stream)
    return Step(
        {}, lambda arrays: operations.Activation(mode, coef=coef),
        lambda x, values, arithmetic, last: activations.activation(x, last, mode, coef),
        f"{mode} {coef}" if coef is not None else mode, shape,
    )  # fmt: skip


def step_pooling(stream, shape, dtype, at):
    how = draw_fitting_pooling(stream, shape) if len(shape) > 2 else None
    if how is None:
        return step_activation(stream, shape, dtype, at)
    return Step(
        {}, lambda arrays: operations.Pooling(**how),
        lambda x, values, arithmetic, last: bounded.pooling(x, last, **how),
        f"pool {how}", pooled_extents(shape, how),
    )  # fmt: skip


def step_normalization(stream, shape, dtype, at):
    names = [f"{what}{at}" for what in ("scale", "bias", "mean", "variance")]
    epsilon = stream.choice((1e-5, 0.1))
    tensors = {
        name: Tensor(
            draw_vector(stream, shape), WIDE[dtype], "positive" if "var" in name else "normal"
        )
        for name in names
    }

    def take(x, values, arithmetic, last):
        vectors = (values[name].ravel() for name in names)
        return bounded.normalised(x, *vectors, last, epsilon=epsilon)

    return Step(
        tensors,
        lambda arrays: operations.BatchNormalization(
            *(arrays[name] for name in names), epsilon=epsilon
        ),
        take, "normalise", shape,
    )  # fmt: skip


def step_tensor(stream, shape, dtype, at):
    name, op = f"b{at}", stream.choice(("add", "multiply", "minimum", "maximum"))
    b = draw_broadcast(stream, shape)
    scales = {"alpha_a": stream.choice((1.0, 0.5)), "alpha_b": stream.choice((1.0, -1.0))}

    def take(x, values, arithmetic, last):
        return bounded.op_tensor(x, wide(values[name], len(shape)), last, op=op, **scales)

    return Step(
        {name: Tensor(b, dtype)},
        lambda arrays: operations.OpTensor(op, arrays[name], **scales), take,
        f"{op} {list(b)} {scales}", shape,
    )  # fmt: skip


def step_reshaping(stream, shape, dtype, at):
    if len(shape) < 3 or max(shape[2:]) > draw_reshaping.LARGEST:
        return step_activation(stream, shape, dtype, at)
    if stream.chance(0.3):
        return draw_reshaping.step_transposed_convolution(Step, stream, shape, dtype, at)
    return stream.choice(draw_reshaping.WITHOUT_TENSORS)(Step, stream, shape)


STEPS = {
    step_convolution: 5, step_bias: 2, step_activation: 3, step_pooling: 2,
    step_normalization: 2, step_tensor: 1, step_reshaping: 2,
}  # fmt: skip
LARGEST = {1: 120, 2: 24, 3: 9}


def chain_forward(stream):
    dtype, axes = draw_dtype(stream), stream.weighted({1: 2, 2: 5, 3: 2})
    spatial = tuple(stream.randint(2, LARGEST[axes]) for _ in range(axes))
    x = shape = (stream.choice((1, 1, 2, 3)), stream.randint(1, 9), *spatial)
    steps = []
    for at in range(stream.choice((2, 2, 3, 3, 4, 5, 6, 8))):
        steps.append(stream.weighted(STEPS)(stream, shape, dtype, at))
        shape = steps[-1].shape
    tensors = {"x": Tensor(x, dtype)}
    for step in steps:
        tensors |= step.tensors

    def expected(values, arithmetic):
        made = Bounded.exact(values["x"])
        for step in steps:
            last = arithmetic.last if step is steps[-1] else dtype
            made = step.take(made, values, arithmetic, last)
        return {"y": made}

    def invoke(arrays, options):
        made = [step.make(arrays) for step in steps]
        return ooc_cudnn.chain_forward(arrays["x"], made, **options)

    return Problem(
        "chain_forward", dtype, tensors, {}, {"y": (shape, dtype)}, expected, invoke=invoke,
        # A difference of roundings may have either sign, and so has infinity times it.
        uses_tf32=True, exact_special=False, words=" > ".join(step.words for step in steps),
    )  # fmt: skip


DRAWERS = (
    convolution_add_activation_forward, convolution_add_activation_pooling_forward,
    convolution_add_activation_backward, chain_forward,
)  # fmt: skip
