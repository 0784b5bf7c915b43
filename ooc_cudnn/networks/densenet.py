"""DenseNet-121 (Huang et al., 2017), with names as in torchvision."""

from __future__ import annotations

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import classify, start, wide

BLOCKS = (6, 12, 24, 16)
GROWTH = 32


def densenet121(
    batch: int = 128,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """DenseNet-121: every layer of a block reads what all before it made; 8 million parameters.

    What a block concatenates is one buffer, of which each layer's input is a view.
    """
    net, x = start(batch, image, dtype, 3, seed)
    growth = wide(GROWTH, width)
    x = net.convolution(
        x, 2 * growth, window=7, stride=2, padding=3, bias=False, name="features.conv0"
    )
    x = _rectified(net, x, "features.norm0")
    x = net.pooling(x, window=3, stride=2, padding=1, name="features.pool0")
    for block, count in enumerate(BLOCKS, 1):
        for layer in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            y = _rectified(net, x, f"{name}.norm1")
            y = net.convolution(y, 4 * growth, window=1, bias=False, name=f"{name}.conv1")
            y = _rectified(net, y, f"{name}.norm2")
            y = net.convolution(y, growth, window=3, padding=1, bias=False, name=f"{name}.conv2")
            x = net.concatenate([x, y], name=name)
        if block < len(BLOCKS):
            name = f"features.transition{block}"
            x = _rectified(net, x, f"{name}.norm")
            x = net.convolution(x, x.shape[1] // 2, window=1, bias=False, name=f"{name}.conv")
            x = net.pooling(x, window=2, mode="average_include_padding", name=f"{name}.pool")
    x = _rectified(net, x, "features.norm5")
    return net, classify(net, net.global_average(x, name="pool"), classes)


def _rectified(net: Network, x: Tensor, name: str) -> Tensor:
    return net.activation(net.batch_normalization(x, name=name), name=f"{name}.relu")
