"""VGG-16 and -19 (Simonyan and Zisserman, 2015), and vDNN's deeper ones."""

from __future__ import annotations

from collections.abc import Callable

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import classify, convolution_relu, linear_relu, start, wide

#: Convolutions of each of the five groups, by the number of layers with weights.
GROUPS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
CHANNELS = (64, 128, 256, 512, 512)


def _vgg(
    groups: tuple[int, ...],
    batch: int,
    image: int,
    dtype: str,
    classes: int,
    width: float,
    dropout: float,
    seed: int,
) -> tuple[Network, Tensor]:
    net, x = start(batch, image, dtype, 3, seed)
    for group, (count, channels) in enumerate(zip(groups, CHANNELS, strict=True), 1):
        for layer in range(1, count + 1):
            name = f"conv{group}_{layer}"
            x = convolution_relu(net, x, wide(channels, width), 3, padding=1, name=name)
        x = net.pooling(x, window=2, name=f"pool{group}")
    for name in ("fc6", "fc7"):
        x = linear_relu(net, x, wide(4096, width), name=name, dropout=dropout)
    return net, classify(net, x, classes)


def vgg16(
    batch: int = 256,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """VGG-16: 13 convolutions of 3 x 3 and three linear layers; 138 million parameters."""
    return _vgg(GROUPS[16], batch, image, dtype, classes, width, dropout, seed)


def vgg19(
    batch: int = 256,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    dropout: float = 0.5,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """VGG-19: 16 convolutions of 3 x 3 and three linear layers."""
    return _vgg(GROUPS[19], batch, image, dtype, classes, width, dropout, seed)


def _deeper(further: int) -> Callable[..., tuple[Network, Tensor]]:
    """VGG-16 with so many further convolutions, a fifth of them in each group."""

    def vgg(
        batch: int = 32,
        image: int = 224,
        dtype: str = "float32",
        classes: int = 1000,
        *,
        width: float = 1.0,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> tuple[Network, Tensor]:
        groups = tuple(count + further // 5 for count in GROUPS[16])
        return _vgg(groups, batch, image, dtype, classes, width, dropout, seed)

    vgg.__name__ = vgg.__qualname__ = f"vgg{16 + further}"
    vgg.__doc__ = f"""VGG-16 with {further} further convolutions, {further // 5} in each group.

    As in vDNN (Rhu et al., 2016, section IV-C).
    """
    return vgg


vgg116, vgg216, vgg316, vgg416 = map(_deeper, (100, 200, 300, 400))
