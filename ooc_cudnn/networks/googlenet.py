"""GoogLeNet: Inception of the first version (Szegedy et al., 2015)."""

from __future__ import annotations

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import convolution_relu, linear_relu, start, wide

#: Of each module: channels of 1x1, before and of 3x3, before and of 5x5, after the pooling.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(
    batch: int = 128,
    image: int = 224,
    dtype: str = "float32",
    classes: int = 1000,
    *,
    auxiliary: bool = True,
    width: float = 1.0,
    dropout: float = 0.4,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """GoogLeNet: nine modules whose four branches are concatenated; 7 million parameters.

    Parameters
    ----------
    auxiliary : bool
        Whether there are the two further classifiers after modules 4a and 4d, whose losses count
        0.3; their dropout is 0.7.
    """
    net, x = start(batch, image, dtype, 3, seed)
    labels = net.input("labels", (batch,), "int64")
    x = convolution_relu(net, x, wide(64, width), 7, stride=2, padding=3, name="conv1")
    x = _halved(net, x, "pool1")
    x = net.local_response_normalization(x, 5, name="norm1")
    x = convolution_relu(net, x, wide(64, width), 1, name="conv2_reduce")
    x = convolution_relu(net, x, wide(192, width), 3, padding=1, name="conv2")
    x = net.local_response_normalization(x, 5, name="norm2")
    x = _halved(net, x, "pool2")
    losses = []
    for name, channels in MODULES.items():
        x = _module(net, x, f"inception_{name}", tuple(wide(c, width) for c in channels))
        if auxiliary and name in ("4a", "4d"):
            side = net.pooling(
                x, window=5, stride=3, mode="average_include_padding", name=f"loss_{name}.pool"
            )
            side = convolution_relu(net, side, wide(128, width), 1, name=f"loss_{name}.conv")
            side = linear_relu(
                net, side, wide(1024, width), name=f"loss_{name}.fc", dropout=0.7 * bool(dropout)
            )
            side = net.linear(side, classes, name=f"loss_{name}.logits")
            losses.append(net.softmax_cross_entropy(side, labels, name=f"loss_{name}"))
        if name in ("3b", "4e"):
            x = _halved(net, x, f"pool{name[0]}")
    x = net.global_average(x, name="pool5")
    x = net.dropout(x, dropout, name="dropout") if dropout else x
    logits = net.linear(x, classes, name="logits")
    if not auxiliary:
        return net, net.softmax_cross_entropy(logits, labels, name="loss")
    main = net.softmax_cross_entropy(logits, labels, name="loss_main")
    return net, net.total_loss([main, *losses], (1.0, 0.3, 0.3), name="loss")


def _halved(net: Network, x: Tensor, name: str) -> Tensor:
    return net.pooling(x, window=3, stride=2, ceil_mode=True, name=name)


def _module(net: Network, x: Tensor, name: str, channels: tuple[int, ...]) -> Tensor:
    one, before_3, three, before_5, five, after = channels
    pooled = net.pooling(x, window=3, stride=1, padding=1, name=f"{name}.pool")
    branches = [
        convolution_relu(net, x, one, 1, name=f"{name}.1x1"),
        _two(net, x, before_3, three, 3, f"{name}.3x3"),
        _two(net, x, before_5, five, 5, f"{name}.5x5"),
        convolution_relu(net, pooled, after, 1, name=f"{name}.pool_proj"),
    ]
    return net.concatenate(branches, name=name)


def _two(net: Network, x: Tensor, before: int, channels: int, window: int, name: str) -> Tensor:
    x = convolution_relu(net, x, before, 1, name=f"{name}_reduce")
    return convolution_relu(net, x, channels, window, padding=window // 2, name=name)
