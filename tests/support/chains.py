"""Chains for tests: a recipe, the operations it means to the library, its result in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import ooc_cudnn
from ooc_cudnn import operations
from tests.support import bounded
from tests.support.bounded import Bounded
from tests.support.function_cases import Call, draw, finished


@dataclass(frozen=True)
class Step:
    """One operation of a recipe: its kind, and its arguments; parameters are drawn."""

    kind: str
    arguments: dict

    def __str__(self):
        return self.kind


def conv(c_y, window, *, groups=1, **geometry):
    return Step("convolution", {"c_y": c_y, "window": window, "groups": groups, **geometry})


def bias():
    return Step("bias", {})


def act(mode="relu", coef=None):
    return Step("activation", {"mode": mode, "coef": coef})


def pool(window, **geometry):
    return Step("pooling", {"window": window, **geometry})


def norm(epsilon=1e-5):
    return Step("normalization", {"epsilon": epsilon})


def tensor(op, keeps="nchw", *, alpha_a=1.0, alpha_b=1.0):
    """An OpTensor whose b keeps the axes named (n, c, h for the first spatial one, w the rest)."""
    return Step("tensor", {"op": op, "keeps": keeps, "alpha_a": alpha_a, "alpha_b": alpha_b})


def transposed(c_y, window, *, groups=1, **geometry):
    return Step("transposed", {"c_y": c_y, "window": window, "groups": groups, **geometry})


def resize(size=None, *, scale_factor=None, mode="nearest", align_corners=None):
    options = {"size": size, "scale_factor": scale_factor}
    return Step("resize", {**options, "mode": mode, "align_corners": align_corners})


def adapt(output, mode="average"):
    return Step("adapt", {"output": output, "mode": mode})


def surround(pairs, value=0.0):
    return Step("pad", {"padding": pairs, "value": value})


def layer(epsilon=1e-2):
    return Step("layer", {"epsilon": epsilon})


def respond(size, **options):
    return Step("respond", {"size": size, **options})


def take_reshaping(step, x, random, dtype):
    """As `take`, of what changes extents: by PyTorch."""
    from torch.nn import functional

    arguments, axes = dict(step.arguments), x.value.ndim - 2
    if step.kind == "transposed":
        import torch

        c_y, window, groups = (arguments.pop(name) for name in ("c_y", "window", "groups"))
        w = draw(random, (x.value.shape[1], c_y // groups, *[window] * axes), dtype)
        w = (w / np.sqrt(w[:, 0].size)).astype(w.dtype)
        function = getattr(functional, f"conv_transpose{axes}d")
        weights = torch.from_numpy(w.astype("f8"))
        made = bounded.linear(
            x,
            dtype,
            lambda t: function(t, weights, groups=groups, **arguments),
            w[:, 0].size + 8,
            lambda t: function(t, weights.abs(), groups=groups, **arguments),
        )
        return operations.TransposedConvolution(w, groups=groups, **arguments), made
    if step.kind == "resize":
        name = ("linear", "bilinear", "trilinear")[axes - 1]
        options = {**arguments, "mode": name if arguments["mode"] == "linear" else "nearest"}
        made = bounded.linear(x, dtype, lambda t: functional.interpolate(t, **options), 4 * 2**axes)
        arguments["align_corners"] = bool(arguments["align_corners"])
        return operations.Interpolation(**arguments), made
    if step.kind == "adapt":
        output, mode = arguments["output"], arguments["mode"]
        name = f"adaptive_{'max' if mode == 'max' else 'avg'}_pool{axes}d"
        terms = np.prod(x.value.shape[2:]) + 8
        made = bounded.linear(x, dtype, lambda t: getattr(functional, name)(t, output), terms)
        return operations.AdaptivePooling(output, mode=mode), made
    pairs, value = arguments["padding"], arguments["value"]
    flat = [side for pair in reversed(pairs) for side in pair]
    around = bounded.linear(x, dtype, lambda t: functional.pad(t, flat), 1)
    value = np.pad(np.zeros(x.value.shape), ((0, 0), (0, 0), *np.maximum(pairs, 0)),
                   constant_values=value)  # fmt: skip
    cut = tuple(slice(max(-a, 0), e - max(-b, 0)) for (a, b), e in
                zip(pairs, value.shape[2:], strict=True))  # fmt: skip
    made = around._replace(value=around.value + value[(..., *cut)])
    return operations.Pad(pairs, value=arguments["value"]), made


def take(step, x, random, dtype):
    """One step: (the library's operation, the Bounded result)."""
    arguments = dict(step.arguments)
    shape = x.value.shape
    if step.kind == "respond":
        import torch

        made = torch.nn.functional.local_response_norm(torch.from_numpy(x.value), **arguments)
        # With k = 1 and beta below 1 no slope exceeds 2; a power errs by its logarithm.
        result = Bounded(made.numpy(), 2 * x.error)
        result = result.computed(8 * arguments["size"], np.abs(result.value) + x.error, dtype)
        return operations.LocalResponseNormalization(**arguments), result
    if step.kind == "layer":
        vectors = random.standard_normal((2, shape[1])).astype("f8" if dtype == "float64" else "f4")
        made = bounded.layer_normalised(x, *vectors, dtype, **arguments)
        return operations.LayerNormalization(*vectors, **arguments), made
    if step.kind in ("transposed", "resize", "adapt", "pad"):
        return take_reshaping(step, x, random, dtype)
    vector = np.dtype("f8" if dtype == "float64" else "f4")
    if step.kind == "convolution":
        c_y, window = arguments.pop("c_y"), arguments.pop("window")
        window = (window,) * (len(shape) - 2) if isinstance(window, int) else window
        w = draw(random, (c_y, shape[1] // arguments["groups"], *window), dtype)
        # Keep the numbers moderate through deep chains.
        w = (w / np.sqrt(np.prod(w.shape[1:]))).astype(w.dtype)
        made = bounded.convolution(x, w, dtype, **arguments)
        return operations.Convolution(w, **arguments), made
    if step.kind == "bias":
        b = draw(random, shape[1:2], dtype)
        return operations.AddTensor(b), bounded.bias(x, b, dtype)
    if step.kind == "activation":
        mode, coef = arguments["mode"], arguments["coef"]
        made = bounded.activation(x, dtype, mode, coef)
        return operations.Activation(mode, coef=coef), made
    if step.kind == "pooling":
        window = arguments.pop("window")
        made = bounded.pooling(x, dtype, window=window, **arguments)
        return operations.Pooling(window, **arguments), made
    if step.kind == "normalization":
        scale, shift, mean = random.standard_normal((3, shape[1])).astype(vector)
        variance = (0.5 + random.random(shape[1])).astype(vector)
        vectors = (scale, shift, mean, variance)
        made = bounded.normalised(x, *vectors, dtype, **arguments)
        return operations.BatchNormalization(*vectors, **arguments), made
    keeps = arguments.pop("keeps")
    axes = ["n", "c", "h", *["w"] * (len(shape) - 3)]
    b = draw(random, [e if a in keeps else 1 for e, a in zip(shape, axes, strict=True)], dtype)
    made = bounded.op_tensor(x, b, dtype, **arguments)
    return operations.OpTensor(arguments.pop("op"), b, **arguments), made


class ChainCall(Call):
    """A `chain_forward`; its operations hold the parameters."""

    def run(self, arrays=None, out=None):
        arrays = {**self.operands, **(arrays or {})}
        options = dict(self.options)
        made = ooc_cudnn.chain_forward(
            arrays["x"], options.pop("operations"), **options, **({"out": out["y"]} if out else {})
        )
        assert out is None or made is out["y"]
        return {"y": made}


def make_call(shape, recipe, dtype="float32", alpha=1.0, beta=0.0, *, seed=41, name=""):
    """Draw x and every parameter of a recipe."""
    random = np.random.default_rng(seed)
    x = draw(random, shape, dtype)
    result, made = Bounded.exact(x), []
    for step in recipe:
        operation, result = take(step, result, random, dtype)
        made.append(operation)
    result, old = finished(result, dtype, alpha=alpha, beta=beta, random=random)
    options = {"operations": made, "alpha": alpha, "beta": beta}
    return ChainCall("chain_forward", {"x": x}, options, {"y": result}, old={"y": old}, name=name)
