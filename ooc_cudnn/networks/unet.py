"""U-Net (Ronneberger et al., 2015), and one in three dimensions as nnU-Net makes them."""

from __future__ import annotations

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.networks.common import convolution_relu, start, wide


def _every_site(net: Network, x: Tensor, classes: int) -> Tensor:
    """Logits of every site, and their cross entropy with labels."""
    logits = net.convolution(x, classes, window=1, name="logits")
    labels = net.input("labels", (x.shape[0], *x.shape[2:]), "int64")
    return net.softmax_cross_entropy(logits, labels, name="loss")


def unet(
    batch: int = 1,
    image: int = 572,
    dtype: str = "float32",
    classes: int = 2,
    *,
    channels: int = 1,
    width: float = 1.0,
    dropout: float = 0.5,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """The paper's U-Net: convolutions without padding, so that labels have 184 sites less an axis.

    Parameters
    ----------
    image : int
        16 times something, and 12 more: 188, 204, ..., 572.
    channels : int
        Of an image.
    """
    if image % 16 != 12 or image < 188:
        raise ValueError(f"image must be 188, 204, 220, ... (16 k + 12), not {image}")
    net, x = start(batch, image, dtype, channels, seed)
    kept = []
    for level in range(5):
        if level:
            x = net.pooling(x, window=2, name=f"down{level}.pool")
        x = _pair(net, x, wide(64 * 2**level, width), f"down{level}")
        if level >= 3 and dropout:  # at the end of the contracting path
            x = net.dropout(x, dropout, name=f"down{level}.dropout")
        kept.append(x)
    for level in reversed(range(4)):
        x = net.transposed_convolution(
            x, wide(64 * 2**level, width), window=2, stride=2, name=f"up{level}.up"
        )
        border = (kept[level].shape[2] - x.shape[2]) // 2
        side = net.crop(kept[level], border, x.shape[2:], name=f"up{level}.crop")
        x = net.concatenate([side, x], name=f"up{level}.join")
        x = _pair(net, x, wide(64 * 2**level, width), f"up{level}")
    return net, _every_site(net, x, classes)


def _pair(net: Network, x: Tensor, channels: int, name: str) -> Tensor:
    for at in (1, 2):
        x = convolution_relu(net, x, channels, 3, name=f"{name}.conv{at}")
    return x


def unet_3d(
    batch: int = 2,
    image: int | tuple[int, ...] = 128,
    dtype: str = "float32",
    classes: int = 3,
    *,
    channels: int = 1,
    stages: int = 6,
    width: float = 1.0,
    seed: int = 0,
) -> tuple[Network, Tensor]:
    """A 3-D U-Net as nnU-Net's: instance norm, leaky ReLU, 32 to 320 channels.

    Parameters
    ----------
    image : int, or one per axis
        Multiples of ``2 ** (stages - 1)``.
    channels : int
        Of an image.
    stages : int
        Levels; at each further one the sites are halved on every axis.

    Notes
    -----
    The loss is the cross entropy of every site, without nnU-Net's Dice part and deep supervision.
    """
    net, x = start(batch, image, dtype, channels, seed, axes=3)
    if any(extent % 2 ** (stages - 1) for extent in x.shape[2:]):
        raise ValueError(f"image must be multiples of {2 ** (stages - 1)}, not {x.shape[2:]}")
    features = [wide(min(32 * 2**stage, 320), width) for stage in range(stages)]
    kept = []
    for stage, count in enumerate(features):
        x = _stage(net, x, count, f"encoder{stage}", stride=2 if stage else 1)
        kept.append(x)
    for stage in reversed(range(stages - 1)):
        name = f"decoder{stage}"
        x = net.transposed_convolution(x, features[stage], window=2, stride=2, name=f"{name}.up")
        x = net.concatenate([x, kept[stage]], name=f"{name}.join")
        x = _stage(net, x, features[stage], name)
    return net, _every_site(net, x, classes)


def _stage(net: Network, x: Tensor, channels: int, name: str, *, stride: int = 1) -> Tensor:
    """Twice: a convolution, instance norm, leaky ReLU; the first convolution strides."""
    for half in (1, 2):
        part = f"{name}.{half}"
        x = net.convolution(
            x, channels, window=3, padding=1, stride=stride if half == 1 else 1, name=f"{part}.conv"
        )
        x = net.instance_normalization(x, name=f"{part}.norm")
        x = net.activation(x, "leaky_relu", name=f"{part}.relu")
    return x
