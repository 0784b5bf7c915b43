"""VGG-16 as the library ships it, described for others: layers, weights, shapes, arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ooc_cudnn import networks

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer: "convolution" or "linear" (with bias), "pooling" (2x2) or "softmax" (its log)."""

    name: str
    kind: str
    padding: int = 0
    relu: bool = False

    @property
    def has_weights(self) -> bool:
        return self.kind in ("convolution", "linear")


@dataclass(frozen=True)
class Network:
    """The network for images of one size, in float32 and without dropout.

    `map_shapes` are those of each layer's result, (c, h, w); `weights` ("conv1_1.w", ...) what
    training begins with.
    """

    layers: tuple[Layer, ...]
    image_shape: Shape
    map_shapes: tuple[Shape, ...]
    weights: dict[str, Array]

    @classmethod
    @lru_cache(maxsize=1)  # seconds, and cases that follow each other have the same
    def of(cls, image: int, classes: int, width: float) -> Network:
        """Read it off a network for one image, which draws the same weights as a larger batch's."""
        net, _ = networks.vgg16(1, image, classes=classes, width=width, dropout=0)
        layers: list[Layer] = []
        shapes: list[Shape] = []
        for name in net.graph.nodes:
            if name.endswith((".relu", ".x")):  # .x: a map as the rows that a linear layer reads
                continue
            relu = f"{name}.relu" in net.graph.nodes
            if name.startswith("conv"):
                layers.append(Layer(name, "convolution", 1, relu))
            elif name == "loss":
                layers.append(Layer("softmax", "softmax"))
                shapes.append(shapes[-1])
                continue
            else:
                layers.append(Layer(name, "pooling" if name[:4] == "pool" else "linear", 0, relu))
            shape = net.graph.tensors[name].shape[1:]
            shapes.append((*shape, 1, 1)[: max(len(shape), 3)])
        weights = {name: np.asarray(net.parameters[name]) for name in net.parameters}
        return cls(tuple(layers), (3, image, image), tuple(shapes), weights)

    def operations(self, batch: int) -> float:
        """Floating-point operations of convolutions and linear layers in one training step.

        2 n cY hY wY cX rH rW forward, and the same for each of the two gradients. That of the
        images, which nobody asks for, is counted as the paper counts it.
        """
        total = 0
        for layer, shape in zip(self.layers, self.map_shapes, strict=True):
            if layer.has_weights:
                _, h_y, w_y = shape
                total += 2 * batch * h_y * w_y * self.weights[f"{layer.name}.w"].size
        return 3.0 * total
