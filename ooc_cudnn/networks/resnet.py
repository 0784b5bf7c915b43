"""ResNet-50 and -152 (He et al., 2016), with names as in torchvision."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import classify, start, wide


def _resnet(
    blocks: tuple[int, ...],
    batch: int,
    image: int,
    dtype: str,
    classes: int,
    width: float,
    seed: int,
) -> tuple[Network, Tensor]:
    net, x = start(batch, image, dtype, 3, seed)
    x = _normalised(net, x, wide(64, width), 7, "conv1", "bn1", stride=2, padding=3)
    x = net.activation(x, name="relu")
    x = net.pooling(x, window=3, stride=2, padding=1, name="maxpool")
    for group, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if group and not block else 1
            name = f"layer{group + 1}.{block}"
            x = _block(net, x, wide(64 * 2**group, width), stride, name, projects=not block)
    x = net.global_average(x, name="avgpool")
    return net, classify(net, x, classes)


def _block(
    net: Network, x: Tensor, channels: int, stride: int, name: str, *, projects: bool
) -> Tensor:
    """1x1, 3x3 (which strides), 1x1 to four times the channels; beside it x, or its projection."""
    y = _normalised(net, x, channels, 1, f"{name}.conv1", f"{name}.bn1")
    y = net.activation(y, name=f"{name}.relu1")
    y = _normalised(net, y, channels, 3, f"{name}.conv2", f"{name}.bn2", stride=stride, padding=1)
    y = net.activation(y, name=f"{name}.relu2")
    y = _normalised(net, y, 4 * channels, 1, f"{name}.conv3", f"{name}.bn3")
    if projects:
        side = f"{name}.downsample"
        x = _normalised(net, x, 4 * channels, 1, f"{side}.0", f"{side}.1", stride=stride)
    return net.activation(net.add(y, x, name=f"{name}.add"), name=f"{name}.relu")


def _normalised(
    net: Network, x: Tensor, channels: int, window: int, name: str, norm: str, **geometry: Any
) -> Tensor:
    y = net.convolution(x, channels, window=window, bias=False, name=name, **geometry)
    return net.batch_normalization(y, name=norm)


def resnet50(
    batch: int = 256,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """ResNet-50: 53 convolutions with batch norm, one linear layer; 26 million parameters."""
    return _resnet((3, 4, 6, 3), batch, image, dtype, classes, width, seed)


def resnet152(
    batch: int = 128,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    width: float = 1.0,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """ResNet-152: 155 convolutions with batch norm, one linear layer; 60 million parameters."""
    return _resnet((3, 8, 36, 3), batch, image, dtype, classes, width, seed)
