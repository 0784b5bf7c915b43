"""VGG-16 of `examples`, described without allocating it: layers, weights, bytes, arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import ooc_cudnn
from examples import vgg16_layers
from examples.vgg16 import VGG16

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Layer:
    """One layer: "convolution" (with bias), "pooling" (2x2) or "softmax" (its logarithm)."""

    name: str
    kind: str
    padding: int = 0
    relu: bool = False


@dataclass(frozen=True)
class Network:
    """The network for images of one size, in float32.

    `map_shapes` are those of each layer's result; `weights` ("conv1_1.w", ...) what training begins
    with.
    """

    layers: tuple[Layer, ...]
    image_shape: Shape
    map_shapes: tuple[Shape, ...]
    weights: dict[str, Array]

    @classmethod
    @lru_cache(maxsize=1)  # seconds, and cases that follow each other have the same
    def of(cls, image: int, classes: int, channels_scale: float) -> Network:
        """Read it off a network for one image, which draws the same weights as a larger batch's."""
        network = VGG16(1, image, classes, channels_scale=channels_scale)
        weights = {}
        for name, parameter in network.parameters.items():
            weights[name] = np.empty(parameter.value.shape, np.float32)
            ooc_cudnn.memcpy(weights[name], parameter.value)
        layers = []
        for layer in network.layers:
            if isinstance(layer, vgg16_layers.Convolution):
                relu = layer.activation == "relu"
                layers.append(Layer(layer.name, "convolution", layer.padding, relu))
            else:
                pooling = isinstance(layer, vgg16_layers.MaxPooling)
                layers.append(Layer(layer.name, "pooling" if pooling else "softmax"))
        shapes = tuple(tuple(map_.shape[1:]) for map_ in network.maps)
        return cls(tuple(layers), tuple(network.images_shape[1:]), shapes, weights)

    def operations(self, batch: int) -> float:
        """Floating-point operations of the convolutions in one training step.

        2 n cY hY wY cX rH rW forward, and the same for each of the two gradients: that of the
        images, too, which the example computes.
        """
        total = 0
        for layer, shape in zip(self.layers, self.map_shapes, strict=True):
            if layer.kind == "convolution":
                _, h_y, w_y = shape
                total += 2 * batch * h_y * w_y * self.weights[f"{layer.name}.w"].size
        return 3.0 * total

    def allocations(self, batch: int, aligned_elements: int) -> Iterator[int]:
        """Yield the bytes of each array of the example, in the order that it allocates them.

        Parameters with their gradients, the two buffers for gradients of maps, the maps.
        """
        for weight in self.weights.values():
            half = math.ceil(weight.size / aligned_elements) * aligned_elements
            yield 2 * half * _FLOAT_BYTES
        maps = [batch * math.prod(shape) * _FLOAT_BYTES for shape in self.map_shapes]
        largest = max(*maps, batch * math.prod(self.image_shape) * _FLOAT_BYTES)
        yield from (largest, largest, *maps)

    def bytes_outside(self, batch: int, room_bytes: int) -> int:
        """Return the bytes that do not fit a room on the device: they go to pinned host memory.

        Array by array as `ooc_cudnn.empty` decides: a smaller one may fit after a larger did not.
        """
        outside = 0
        for nbytes in self.allocations(batch, vgg16_layers.ALIGNED_ELEMENTS):
            if nbytes <= room_bytes:
                room_bytes -= nbytes
            else:
                outside += nbytes
        return outside
