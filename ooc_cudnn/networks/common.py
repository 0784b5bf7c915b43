"""Parts that the networks share: inputs, the end with its loss, layers of several nodes."""

from __future__ import annotations

import math
from typing import Any

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network


def wide(channels: int, width: float) -> int:
    """Return so many channels times a factor, at least one.

    >>> wide(64, 1), wide(64, 1 / 16), wide(3, 0.1)
    (64, 4, 1)
    """
    if not 0 < width < math.inf:
        raise ValueError(f"width must be a positive number, not {width!r}")
    return max(1, round(channels * width))


def start(
    batch: int, image: int | tuple[int, ...], dtype: str, channels: int, seed: int, *, axes: int = 2
) -> tuple[Network, Tensor]:
    """A network and its images; an int stands for that extent on every axis."""
    net = Network(seed=seed)
    sites = (image,) * axes if isinstance(image, int) else tuple(image)
    return net, net.input("images", (batch, channels, *sites), dtype)


def classify(net: Network, x: Tensor, classes: int) -> Tensor:
    """Logits of whole images, and their cross entropy with labels."""
    logits = net.linear(x, classes, name="logits")
    labels = net.input("labels", (x.shape[0],), "int64")
    return net.softmax_cross_entropy(logits, labels, name="loss")


def convolution_relu(
    net: Network, x: Tensor, channels: int, window: int, *, name: str, **geometry: Any
) -> Tensor:
    """A convolution with bias, and ReLU."""
    y = net.convolution(x, channels, window=window, name=name, **geometry)
    return net.activation(y, name=f"{name}.relu")


def linear_relu(net: Network, x: Tensor, features: int, *, name: str, dropout: float) -> Tensor:
    """A linear layer, ReLU and dropout."""
    y = net.activation(net.linear(x, features, name=name), name=f"{name}.relu")
    return net.dropout(y, dropout, name=f"{name}.dropout") if dropout else y
