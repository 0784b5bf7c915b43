"""AlexNet (Krizhevsky et al., 2012) and OverFeat, the fast one (Sermanet et al., 2014)."""

from __future__ import annotations

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import classify, convolution_relu, linear_relu, start, wide


def alexnet(
    batch: int = 128,
    image: int = 227,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """AlexNet with the paper's two groups and its local response normalization.

    Five convolutions, three linear layers; `width` must leave channels that two groups divide.
    """
    net, x = start(batch, image, dtype, 3, seed)
    layers: tuple[tuple[int, int, dict[str, int]], ...] = (
        (96, 11, {"stride": 4}),
        (256, 5, {"padding": 2, "groups": 2}),
        (384, 3, {"padding": 1}),
        (384, 3, {"padding": 1, "groups": 2}),
        (256, 3, {"padding": 1, "groups": 2}),
    )
    for layer, (channels, window, geometry) in enumerate(layers, 1):
        x = convolution_relu(net, x, wide(channels, width), window, name=f"conv{layer}", **geometry)
        if layer <= 2:  # the paper's alpha is that of each channel
            x = net.local_response_normalization(x, 5, alpha=5e-4, k=2.0, name=f"norm{layer}")
        if layer in (1, 2, 5):
            x = net.pooling(x, window=3, stride=2, name=f"pool{layer}")
    for name in ("fc6", "fc7"):
        x = linear_relu(net, x, wide(4096, width), name=name, dropout=dropout)
    return net, classify(net, x, classes)


def overfeat(
    batch: int = 128,
    image: int = 231,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """OverFeat's fast model: five convolutions, three linear layers."""
    net, x = start(batch, image, dtype, 3, seed)
    layers: tuple[tuple[int, int, dict[str, int]], ...] = (
        (96, 11, {"stride": 4}),
        (256, 5, {}),
        (512, 3, {"padding": 1}),
        (1024, 3, {"padding": 1}),
        (1024, 3, {"padding": 1}),
    )
    for layer, (channels, window, geometry) in enumerate(layers, 1):
        x = convolution_relu(net, x, wide(channels, width), window, name=f"conv{layer}", **geometry)
        if layer in (1, 2, 5):
            x = net.pooling(x, window=2, name=f"pool{layer}")
    for name, features in (("fc6", 3072), ("fc7", 4096)):
        x = linear_relu(net, x, wide(features, width), name=name, dropout=dropout)
    return net, classify(net, x, classes)
