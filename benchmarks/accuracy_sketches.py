"""Calls as people make them, drawn at random function by function; their batch is still open.

A sketch is data: shapes without n, arguments, and the arithmetic of one image. Result shapes are
computed here, by the definition of a window, and not asked from the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

CHANNELS = (1, 3, 4, 8, 16, 32, 64, 96, 128, 256, 512)
WINDOWS = (1, 3, 5, 7)
#: Extents of the spatial axes, by how many there are: series, images, volumes.
EXTENTS = {
    1: (128, 1024, 16384, 2**17, 2**20, 2**22),
    2: (7, 14, 28, 32, 56, 64, 112, 128, 224, 256, 512, 1024, 2048, 4096, 8192),
    3: (7, 16, 32, 64, 128, 256),
}
ACTIVATIONS = ("relu", "clipped_relu", "elu", "sigmoid", "tanh", "swish", "gelu", "leaky_relu")
POOLINGS = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")
#: Kernels compute so many channels at a time, so fewer cost as much (section 4.2 of the paper).
CHANNEL_STEP = 32

Generator = np.random.Generator
Shape = tuple[int, ...]
Choice = TypeVar("Choice")


@dataclass
class Sketch:
    """A call whose batch is open.

    `data` and `results` are the large operands, as (c, spatial...); `vectors` and `sums` the small
    ones that are read and written, by their whole shapes; `wide` of them are in the precision of
    sums. `flops` is of one image. `fills` says what an operand must hold where any numbers will
    not do: "filters", "positive" or "pooled".
    """

    data: dict[str, Shape]
    results: dict[str, Shape] = field(default_factory=dict)
    vectors: dict[str, Shape] = field(default_factory=dict)
    sums: dict[str, Shape] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    operations: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    flops: float = 0.0
    fills: dict[str, str] = field(default_factory=dict)
    wide: frozenset[str] = frozenset()


def pick(rng: Generator, choices: tuple[Choice, ...]) -> Choice:
    """One of some choices, all alike."""
    return choices[int(rng.integers(len(choices)))]


def windowed(extents: Shape, window: int, padding: int, stride: int, dilation: int = 1) -> Shape:
    """Extents of what windows give: (extent + 2 p - d (k - 1) - 1) // s + 1 on each axis."""
    reach = dilation * (window - 1) + 1
    return tuple((extent + 2 * padding - reach) // stride + 1 for extent in extents)


class Shapes:
    """Where sketches take their shapes from: at random."""

    def __init__(self, rng: Generator) -> None:
        self.rng = rng

    def pick(self, choices: tuple[Choice, ...]) -> Choice:
        """One of some choices, all alike."""
        return pick(self.rng, choices)

    def image(self) -> Shape:
        """(c, spatial...): mostly images, square ones more often than others."""
        axes = int(self.rng.choice((1, 2, 3), p=(0.15, 0.7, 0.15)))
        extent = self.pick(EXTENTS[axes])
        extents = [extent] * axes
        if axes > 1 and self.rng.random() < 0.3:
            extents[-1] = self.pick((extent // 2, extent * 2))
        return (self.pick(CHANNELS), *extents)

    def convolution(self, c_x: int, extents: Shape) -> tuple[dict[str, Any], Shape, Shape]:
        """Draw (geometry, shape of w, shape of y) of a convolution of (c_x, extents)."""
        rng, pick = self.rng, self.pick
        window = pick(tuple(w for w in WINDOWS if w <= min(extents)))
        stride = 2 if rng.random() < 0.2 and min(extents) > 2 * window else 1
        wide = rng.random() < 0.05 and len(extents) == 2 and min(extents) > 2 * window
        dilation = 2 if wide else 1
        padding = dilation * (window // 2) if rng.random() < 0.7 else 0
        if min(extents) + 2 * padding < dilation * (window - 1) + 1:
            padding = dilation * (window // 2)
        c_y = pick(CHANNELS)
        divisors = tuple(g for g in (2, 4, c_x) if g > 1 and c_x % g == 0 and c_y % g == 0)
        groups = pick(divisors) if divisors and rng.random() < 0.15 else 1
        geometry = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
        y = (c_y, *windowed(extents, window, padding, stride, dilation))
        return geometry, (c_y, c_x // groups, *[window] * len(extents)), y


def convolution_flops(w: Shape, y: Shape, groups: int) -> float:
    """Arithmetic of one image, with the channels of each group in full steps."""
    c_y, c_x = w[0] // groups, w[1]
    steps = [-(-channels // CHANNEL_STEP) * CHANNEL_STEP for channels in (c_x, c_y)]
    return 2.0 * math.prod(y[1:]) * math.prod(w[2:]) * groups * math.prod(steps)


def _pooling(of: Shapes, extents: Shape) -> tuple[dict[str, Any], Shape]:
    """Draw (arguments, extents of y) of a pooling."""
    window = of.pick((2, 3))
    stride = window if of.rng.random() < 0.6 else of.pick((1, 2))
    padding = 1 if window == 3 and of.rng.random() < 0.5 else 0
    geometry = {"window": window, "mode": of.pick(POOLINGS), "padding": padding, "stride": stride}
    return geometry, windowed(extents, window, padding, stride)


def _convolving(of: Shapes, read: str, written: str) -> Sketch:
    """What all convolutions share, w beside the large operands of these names."""
    x = of.image()
    geometry, w, y = of.convolution(x[0], x[1:])
    flops = convolution_flops(w, y, geometry["groups"])
    shapes = {"x": x, "dx": x, "y": y, "dy": y}
    data, results = ({name: shapes[name] for name in each.split()} for each in (read, written))
    return Sketch(data, results, {"w": w}, {}, geometry, [], flops, {"w": "filters"})


def convolution_forward(of: Shapes) -> Sketch:
    return _convolving(of, "x", "y")


def convolution_add_activation_forward(of: Shapes) -> Sketch:
    sketch = _convolving(of, "x", "y")
    sketch.vectors["b"] = sketch.results["y"][:1]
    sketch.arguments["activation"] = of.pick(ACTIVATIONS)
    return sketch


def convolution_add_activation_pooling_forward(of: Shapes) -> Sketch:
    sketch = convolution_add_activation_forward(of)
    y = sketch.results["y"]
    pooled, extents = _pooling(of, y[1:])
    sketch.results = {"y": (y[0], *extents)}
    renamed = {"padding": "pooling_padding", "stride": "pooling_stride"}
    sketch.arguments |= {renamed.get(name, name): value for name, value in pooled.items()}
    return sketch


def convolution_backward_data(of: Shapes) -> Sketch:
    return _convolving(of, "dy", "dx")


def convolution_backward_filter(of: Shapes) -> Sketch:
    sketch = _convolving(of, "x dy", "")
    sketch.sums = {"dw": sketch.vectors.pop("w")}
    return sketch


def convolution_add_activation_backward(of: Shapes) -> Sketch:
    sketch = _convolving(of, "x y dy", "dx")
    sketch.sums = {"dw": sketch.vectors["w"], "db": sketch.data["y"][:1]}
    sketch.flops *= 2
    return sketch


def convolution_backward_bias(of: Shapes) -> Sketch:
    x = of.image()
    return Sketch({"dy": x}, sums={"db": x[:1]})


def add_tensor(of: Shapes) -> Sketch:
    x = of.image()
    if of.rng.random() < 0.3:
        return Sketch({"b": x, "y": x}, {"out": x})
    return Sketch({"y": x}, {"out": x}, {"b": x[:1]})


def activation_forward(of: Shapes) -> Sketch:
    x = of.image()
    return Sketch({"x": x}, {"y": x}, arguments={"mode": of.pick(ACTIVATIONS)})


def activation_backward(of: Shapes) -> Sketch:
    x, mode = of.image(), of.pick(ACTIVATIONS)
    names = ("y", "dy", "x") if mode in ("swish", "gelu") else ("y", "dy")
    return Sketch(dict.fromkeys(names, x), {"dx": x}, arguments={"mode": mode})


def pooling_forward(of: Shapes) -> Sketch:
    x = of.image()
    geometry, extents = _pooling(of, x[1:])
    return Sketch({"x": x}, {"y": (x[0], *extents)}, arguments=geometry)


def pooling_backward(of: Shapes) -> Sketch:
    x = of.image()
    geometry, extents = _pooling(of, x[1:])
    y = (x[0], *extents)
    sketch = Sketch({"y": y, "dy": y, "x": x}, {"dx": x}, arguments=geometry)
    sketch.fills["y"] = "pooled"
    return sketch


def _softmax(of: Shapes) -> dict[str, Any]:
    mode = "channel" if of.rng.random() < 0.6 else "instance"
    return {"mode": mode, "algorithm": of.pick(("accurate", "log"))}


def softmax_forward(of: Shapes) -> Sketch:
    x = of.image()
    return Sketch({"x": x}, {"y": x}, arguments=_softmax(of))


def softmax_backward(of: Shapes) -> Sketch:
    x = of.image()
    return Sketch({"y": x, "dy": x}, {"dx": x}, arguments=_softmax(of))


def _normalising(x: Shape, names: tuple[str, ...], positive: tuple[str, ...]) -> Sketch:
    """A batch normalisation: channel vectors in the precision of sums."""
    sketch = Sketch({"x": x}, {"y": x}, dict.fromkeys(names, x[:1]))
    sketch.fills, sketch.wide = dict.fromkeys(positive, "positive"), frozenset(names)
    return sketch


def batch_normalization_forward_training(of: Shapes) -> Sketch:
    x = of.image()
    sketch = _normalising(x, ("scale", "bias"), ("scale",))
    sketch.sums = dict.fromkeys(("saved_mean", "saved_inverse_variance"), x[:1])
    sketch.wide |= set(sketch.sums)
    return sketch


def batch_normalization_forward_inference(of: Shapes) -> Sketch:
    names = ("scale", "bias", "mean", "variance")
    return _normalising(of.image(), names, ("scale", "variance"))


def batch_normalization_backward(of: Shapes) -> Sketch:
    x = of.image()
    saved = ("saved_mean", "saved_inverse_variance") if of.rng.random() < 0.6 else ()
    sketch = _normalising(x, ("scale", *saved), ("scale", *saved[1:]))
    sketch.data, sketch.results = {"x": x, "dy": x}, {"dx": x}
    sketch.sums = {"dscale": x[:1], "dbias": x[:1]}
    sketch.wide |= set(sketch.sums)
    return sketch


def chain_forward(of: Shapes) -> Sketch:
    """Three to six operations: a convolution, what mostly follows one, and another now and then."""
    x = of.image()
    sketch, shape = Sketch({"x": x}), x
    for index in range(int(of.rng.integers(3, 7))):
        before = sketch.operations[-1][0] if index else ""
        if before == "Convolution":
            kind = of.pick(("AddTensor", "BatchNormalization"))
        elif before in ("AddTensor", "BatchNormalization"):
            kind = "Activation"
        elif index == 0 or of.rng.random() < 0.6 or before == "Pooling" or min(shape[1:]) < 4:
            kind = "Convolution"
        else:
            kind = "Pooling"
        shape = _append(of, sketch, f"operations[{index}].", kind, shape)
    sketch.results = {"y": shape}
    return sketch


def _append(of: Shapes, sketch: Sketch, prefix: str, kind: str, shape: Shape) -> Shape:
    """Add an operation to a chain; return the shape that it gives."""
    if kind == "Convolution":
        geometry, w, y = of.convolution(shape[0], shape[1:])
        sketch.vectors[f"{prefix}w"], sketch.fills[f"{prefix}w"] = w, "filters"
        sketch.flops += convolution_flops(w, y, geometry["groups"])
        sketch.operations.append((kind, geometry))
        return y
    if kind == "Pooling":
        geometry, extents = _pooling(of, shape[1:])
        sketch.operations.append((kind, geometry))
        return (shape[0], *extents)
    if kind == "Activation":
        sketch.operations.append((kind, {"mode": of.pick(ACTIVATIONS)}))
        return shape
    names = ("b",) if kind == "AddTensor" else ("scale", "bias", "mean", "variance")
    vectors = {f"{prefix}{name}": shape[:1] for name in names}
    sketch.vectors |= vectors
    if kind == "BatchNormalization":
        sketch.wide |= set(vectors)
        sketch.fills |= {f"{prefix}{name}": "positive" for name in ("scale", "variance")}
    sketch.operations.append((kind, {}))
    return shape


#: What draws a sketch, by public function.
SKETCHES: Mapping[str, Callable[[Shapes], Sketch]] = {
    sketch.__name__: sketch
    for sketch in (
        convolution_forward,
        convolution_add_activation_forward,
        convolution_add_activation_pooling_forward,
        convolution_backward_data,
        convolution_backward_filter,
        convolution_backward_bias,
        convolution_add_activation_backward,
        add_tensor,
        activation_forward,
        activation_backward,
        pooling_forward,
        pooling_backward,
        softmax_forward,
        softmax_backward,
        batch_normalization_forward_training,
        batch_normalization_forward_inference,
        batch_normalization_backward,
        chain_forward,
    )
}
