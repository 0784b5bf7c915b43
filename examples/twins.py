"""The networks that ship, in PyTorch as its users would write them, by their parameters' names.

A twin takes what holds the parameters by these names, images and labels, and returns the loss. That
holder also has `torch`, `training`, and in `tensors` running statistics where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: (what holds the parameters, images, labels) -> the loss.
Twin = Callable[..., Any]


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a block; in place of it, one that saves the inputs of blocks alone."""
    return function(*arguments)


def conv(t: Any, x: Any, name: str, **geometry: Any) -> Any:
    """Convolve on two axes or three; with a bias where there is one."""
    functional = t.torch.nn.functional
    function = functional.conv3d if x.ndim == 5 else functional.conv2d
    return function(x, t[f"{name}.w"], t.tensors.get(f"{name}.b"), **geometry)


def relu(t: Any, x: Any) -> Any:
    """Rectify in place."""
    return t.torch.nn.functional.relu(x, inplace=True)


def conv_relu(t: Any, x: Any, name: str, **geometry: Any) -> Any:
    """Convolve and rectify."""
    return relu(t, conv(t, x, name, **geometry))


def linear(t: Any, x: Any, name: str) -> Any:
    """Multiply by a matrix."""
    return t.torch.nn.functional.linear(x.flatten(1), t[f"{name}.w"], t[f"{name}.b"])


def norm(t: Any, x: Any, name: str) -> Any:
    """Normalize a batch, by its own statistics in training."""
    running = (t.tensors.get(f"{name}.running_{each}") for each in ("mean", "variance"))
    scale, bias = t[f"{name}.scale"], t[f"{name}.bias"]
    return t.torch.nn.functional.batch_norm(x, *running, scale, bias, t.training)


def norm_relu(t: Any, x: Any, name: str) -> Any:
    """Normalize and rectify."""
    return relu(t, norm(t, x, name))


def classified(t: Any, x: Any, labels: Any, name: str = "logits") -> Any:
    """Return the cross entropy of a last layer."""
    return t.torch.nn.functional.cross_entropy(linear(t, x, name), labels)


def fully_connected(t: Any, x: Any, labels: Any) -> Any:
    """Add the three last layers of AlexNet, OverFeat and VGG."""
    for name in ("fc6", "fc7"):
        x = relu(t, linear(t, x, name))
    return classified(t, x, labels)


def vgg_features(t: Any, x: Any, groups: tuple[int, ...], through: Any = called) -> Any:
    """Convolve so many times in each group, and pool."""

    def group(x: Any, number: int, count: int) -> Any:
        for at in range(1, count + 1):
            x = conv_relu(t, x, f"conv{number}_{at}", padding=1)
        return t.torch.nn.functional.max_pool2d(x, 2)

    for number, count in enumerate(groups, 1):
        x = through(group, x, number, count)
    return x


def vgg(*groups: int) -> Twin:
    """VGG with so many convolutions in its groups."""

    def twin(t: Any, images: Any, labels: Any, through: Any = called) -> Any:
        return fully_connected(t, vgg_features(t, images, groups, through), labels)

    return twin


VGG16 = (2, 2, 3, 3, 3)


def features(t: Any, images: Any, targets: Any) -> Any:
    """Return the distance of VGG-16's feature maps to given ones."""
    return t.torch.nn.functional.mse_loss(vgg_features(t, images, VGG16), targets)


def alexnet(t: Any, images: Any, labels: Any) -> Any:
    """AlexNet without dropout."""
    functional = t.torch.nn.functional

    def pooled(x: Any) -> Any:
        return functional.max_pool2d(functional.local_response_norm(x, 5, 5e-4, 0.75, 2.0), 3, 2)

    x = pooled(conv_relu(t, images, "conv1", stride=4))
    x = pooled(conv_relu(t, x, "conv2", padding=2, groups=2))
    x = conv_relu(t, x, "conv3", padding=1)
    for name in ("conv4", "conv5"):
        x = conv_relu(t, x, name, padding=1, groups=2)
    return fully_connected(t, functional.max_pool2d(x, 3, 2), labels)


def overfeat(t: Any, images: Any, labels: Any) -> Any:
    """OverFeat without dropout."""
    pool = t.torch.nn.functional.max_pool2d
    x = pool(conv_relu(t, images, "conv1", stride=4), 2)
    x = pool(conv_relu(t, x, "conv2"), 2)
    for name in ("conv3", "conv4", "conv5"):
        x = conv_relu(t, x, name, padding=1)
    return fully_connected(t, pool(x, 2), labels)


def googlenet(t: Any, images: Any, labels: Any) -> Any:
    """GoogLeNet without dropout; with the two further classifiers."""
    functional = t.torch.nn.functional

    def halved(x: Any) -> Any:
        return functional.max_pool2d(x, 3, 2, ceil_mode=True)

    def module(x: Any, name: str) -> Any:
        name = f"inception_{name}"
        branches = [
            conv_relu(t, x, f"{name}.1x1"),
            conv_relu(t, conv_relu(t, x, f"{name}.3x3_reduce"), f"{name}.3x3", padding=1),
            conv_relu(t, conv_relu(t, x, f"{name}.5x5_reduce"), f"{name}.5x5", padding=2),
            conv_relu(t, functional.max_pool2d(x, 3, 1, 1), f"{name}.pool_proj"),
        ]
        return t.torch.cat(branches, 1)

    def side(x: Any, name: str) -> Any:
        x = conv_relu(t, functional.avg_pool2d(x, 5, 3), f"{name}.conv")
        return classified(t, relu(t, linear(t, x, f"{name}.fc")), labels, f"{name}.logits")

    x = halved(conv_relu(t, images, "conv1", stride=2, padding=3))
    x = conv_relu(t, functional.local_response_norm(x, 5), "conv2_reduce")
    x = halved(functional.local_response_norm(conv_relu(t, x, "conv2", padding=1), 5))
    x = halved(module(module(x, "3a"), "3b"))
    x = module(x, "4a")
    first = side(x, "loss_4a")
    for name in ("4b", "4c", "4d"):
        x = module(x, name)
    second = side(x, "loss_4d")
    x = module(module(halved(module(x, "4e")), "5a"), "5b").mean((2, 3))
    return classified(t, x, labels) + 0.3 * first + 0.3 * second


def resnet(*blocks: int) -> Twin:
    """A ResNet with so many bottlenecks in its groups."""

    def twin(t: Any, images: Any, labels: Any, through: Any = called) -> Any:
        def block(x: Any, name: str, stride: int, index: int) -> Any:
            y = norm_relu(t, conv(t, x, f"{name}.conv1"), f"{name}.bn1")
            y = conv(t, y, f"{name}.conv2", stride=stride, padding=1)
            y = norm(t, conv(t, norm_relu(t, y, f"{name}.bn2"), f"{name}.conv3"), f"{name}.bn3")
            if index == 0:
                side = f"{name}.downsample"
                x = norm(t, conv(t, x, f"{side}.0", stride=stride), f"{side}.1")
            return relu(t, y + x)

        x = norm_relu(t, conv(t, images, "conv1", stride=2, padding=3), "bn1")
        x = t.torch.nn.functional.max_pool2d(x, 3, 2, 1)
        for group, count in enumerate(blocks, 1):
            for index in range(count):
                stride = 2 if group > 1 and index == 0 else 1
                x = through(block, x, f"layer{group}.{index}", stride, index)
        return classified(t, x.mean((2, 3)), labels)

    return twin


def densenet121(t: Any, images: Any, labels: Any) -> Any:
    """DenseNet-121."""
    functional = t.torch.nn.functional
    x = conv(t, images, "features.conv0", stride=2, padding=3)
    x = functional.max_pool2d(norm_relu(t, x, "features.norm0"), 3, 2, 1)
    for block, count in enumerate((6, 12, 24, 16), 1):
        for layer in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            y = conv(t, norm_relu(t, x, f"{name}.norm1"), f"{name}.conv1")
            y = conv(t, norm_relu(t, y, f"{name}.norm2"), f"{name}.conv2", padding=1)
            x = t.torch.cat([x, y], 1)
        if block < 4:
            name = f"features.transition{block}"
            x = functional.avg_pool2d(conv(t, norm_relu(t, x, f"{name}.norm"), f"{name}.conv"), 2)
    return classified(t, norm_relu(t, x, "features.norm5").mean((2, 3)), labels)


def unet(t: Any, images: Any, labels: Any) -> Any:
    """U-Net without dropout."""
    functional = t.torch.nn.functional

    def pair(x: Any, name: str) -> Any:
        return conv_relu(t, conv_relu(t, x, f"{name}.conv1"), f"{name}.conv2")

    x, kept = images, []
    for level in range(5):
        x = pair(functional.max_pool2d(x, 2) if level else x, f"down{level}")
        kept.append(x)
    for level in (3, 2, 1, 0):
        up = f"up{level}.up"
        x = functional.conv_transpose2d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
        border = (kept[level].shape[2] - x.shape[2]) // 2
        side = kept[level][:, :, border:-border, border:-border]
        x = pair(t.torch.cat([side, x], 1), f"up{level}")
    return functional.cross_entropy(conv(t, x, "logits"), labels)


def unet_3d(t: Any, images: Any, labels: Any) -> Any:
    """The 3-D U-Net, of as many stages as there are parameters for."""
    functional = t.torch.nn.functional
    stages = sum(name.endswith(".1.conv.w") for name in t.tensors if name.startswith("encoder"))

    def stage(x: Any, name: str, stride: int = 1) -> Any:
        for number in (1, 2):
            part = f"{name}.{number}"
            x = conv(t, x, f"{part}.conv", padding=1, stride=stride if number == 1 else 1)
            scale, bias = t[f"{part}.norm.scale"], t[f"{part}.norm.bias"]
            x = functional.instance_norm(x, None, None, scale, bias)
            x = functional.leaky_relu(x, inplace=True)
        return x

    x, kept = images, []
    for level in range(stages):
        x = stage(x, f"encoder{level}", 2 if level else 1)
        kept.append(x)
    for level in reversed(range(stages - 1)):
        up = f"decoder{level}.up"
        x = functional.conv_transpose3d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
        x = stage(t.torch.cat([x, kept[level]], 1), f"decoder{level}")
    return functional.cross_entropy(conv(t, x, "logits"), labels)
