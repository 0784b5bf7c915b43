"""The networks that ship, in PyTorch: each from its paper, by the names of its parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def conv(t, x, name, **geometry):
    function = F.conv3d if x.ndim == 5 else F.conv2d
    return function(x, t[f"{name}.w"], t.tensors.get(f"{name}.b"), **geometry)


def conv_relu(t, x, name, **geometry):
    return torch.relu(conv(t, x, name, **geometry))


def linear(t, x, name):
    return F.linear(x.flatten(1), t[f"{name}.w"], t[f"{name}.b"])


def norm(t, x, name):
    return F.batch_norm(
        x, t[f"{name}.running_mean"], t[f"{name}.running_variance"], t[f"{name}.scale"],
        t[f"{name}.bias"], t.training,
    )  # fmt: skip


def classified(t, x):
    return F.cross_entropy(linear(t, x, "logits"), t["labels"])


def fully_connected(t, x):
    for name in ("fc6", "fc7"):
        x = torch.relu(linear(t, x, name))
    return classified(t, x)


def vgg(*groups):
    def twin(t):
        x = t["images"]
        for group, count in enumerate(groups, 1):
            for at in range(1, count + 1):
                x = conv_relu(t, x, f"conv{group}_{at}", padding=1)
            x = F.max_pool2d(x, 2)
        return fully_connected(t, x)

    return twin


def alexnet(t):
    x = conv_relu(t, t["images"], "conv1", stride=4)
    x = F.max_pool2d(F.local_response_norm(x, 5, 5e-4, 0.75, 2.0), 3, 2)
    x = conv_relu(t, x, "conv2", padding=2, groups=2)
    x = F.max_pool2d(F.local_response_norm(x, 5, 5e-4, 0.75, 2.0), 3, 2)
    x = conv_relu(t, x, "conv3", padding=1)
    x = conv_relu(t, x, "conv4", padding=1, groups=2)
    x = conv_relu(t, x, "conv5", padding=1, groups=2)
    return fully_connected(t, F.max_pool2d(x, 3, 2))


def overfeat(t):
    x = F.max_pool2d(conv_relu(t, t["images"], "conv1", stride=4), 2)
    x = F.max_pool2d(conv_relu(t, x, "conv2"), 2)
    for name in ("conv3", "conv4", "conv5"):
        x = conv_relu(t, x, name, padding=1)
    return fully_connected(t, F.max_pool2d(x, 2))


def _inception(t, x, name):
    name = f"inception_{name}"
    return torch.cat(
        [
            conv_relu(t, x, f"{name}.1x1"),
            conv_relu(t, conv_relu(t, x, f"{name}.3x3_reduce"), f"{name}.3x3", padding=1),
            conv_relu(t, conv_relu(t, x, f"{name}.5x5_reduce"), f"{name}.5x5", padding=2),
            conv_relu(t, F.max_pool2d(x, 3, 1, 1), f"{name}.pool_proj"),
        ],
        1,
    )


def _side(t, x, name):
    x = conv_relu(t, F.avg_pool2d(x, 5, 3), f"{name}.conv")
    x = linear(t, torch.relu(linear(t, x, f"{name}.fc")), f"{name}.logits")
    return F.cross_entropy(x, t["labels"])


def googlenet(t):
    def halved(x):
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    x = halved(conv_relu(t, t["images"], "conv1", stride=2, padding=3))
    x = conv_relu(t, F.local_response_norm(x, 5), "conv2_reduce")
    x = halved(F.local_response_norm(conv_relu(t, x, "conv2", padding=1), 5))
    x = halved(_inception(t, _inception(t, x, "3a"), "3b"))
    x = _inception(t, x, "4a")
    first = _side(t, x, "loss_4a")
    for name in ("4b", "4c", "4d"):
        x = _inception(t, x, name)
    second = _side(t, x, "loss_4d")
    x = halved(_inception(t, x, "4e"))
    x = _inception(t, _inception(t, x, "5a"), "5b").mean((2, 3))
    return classified(t, x) + 0.3 * first + 0.3 * second


def resnet(*blocks):
    def twin(t):
        x = torch.relu(norm(t, conv(t, t["images"], "conv1", stride=2, padding=3), "bn1"))
        x = F.max_pool2d(x, 3, 2, 1)
        for group, count in enumerate(blocks, 1):
            for at in range(count):
                name, stride = f"layer{group}.{at}", 2 if group > 1 and at == 0 else 1
                y = torch.relu(norm(t, conv(t, x, f"{name}.conv1"), f"{name}.bn1"))
                y = conv(t, y, f"{name}.conv2", stride=stride, padding=1)
                y = torch.relu(norm(t, y, f"{name}.bn2"))
                y = norm(t, conv(t, y, f"{name}.conv3"), f"{name}.bn3")
                if at == 0:
                    side = conv(t, x, f"{name}.downsample.0", stride=stride)
                    x = norm(t, side, f"{name}.downsample.1")
                x = torch.relu(y + x)
        return classified(t, x.mean((2, 3)))

    return twin


def densenet121(t):
    x = conv(t, t["images"], "features.conv0", stride=2, padding=3)
    x = F.max_pool2d(torch.relu(norm(t, x, "features.norm0")), 3, 2, 1)
    for block, count in enumerate((6, 12, 24, 16), 1):
        for at in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{at}"
            y = conv(t, torch.relu(norm(t, x, f"{name}.norm1")), f"{name}.conv1")
            y = conv(t, torch.relu(norm(t, y, f"{name}.norm2")), f"{name}.conv2", padding=1)
            x = torch.cat([x, y], 1)
        if block < 4:
            name = f"features.transition{block}"
            x = F.avg_pool2d(conv(t, torch.relu(norm(t, x, f"{name}.norm")), f"{name}.conv"), 2)
    return classified(t, torch.relu(norm(t, x, "features.norm5")).mean((2, 3)))


def unet(t):
    def pair(x, name):
        return conv_relu(t, conv_relu(t, x, f"{name}.conv1"), f"{name}.conv2")

    x, kept = t["images"], []
    for level in range(5):
        x = pair(F.max_pool2d(x, 2) if level else x, f"down{level}")
        kept.append(x)
    for level in (3, 2, 1, 0):
        up = f"up{level}.up"
        x = F.conv_transpose2d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
        border = (kept[level].shape[2] - x.shape[2]) // 2
        side = kept[level][:, :, border:-border, border:-border]
        x = pair(torch.cat([side, x], 1), f"up{level}")
    return F.cross_entropy(conv(t, x, "logits"), t["labels"])


def unet_3d(stages):
    def twin(t):
        def stage(x, name, stride=1):
            for at in (1, 2):
                part = f"{name}.{at}"
                x = conv(t, x, f"{part}.conv", padding=1, stride=stride if at == 1 else 1)
                x = F.instance_norm(x, None, None, t[f"{part}.norm.scale"], t[f"{part}.norm.bias"])
                x = F.leaky_relu(x)
            return x

        x, kept = t["images"], []
        for level in range(stages):
            x = stage(x, f"encoder{level}", 2 if level else 1)
            kept.append(x)
        for level in reversed(range(stages - 1)):
            up = f"decoder{level}.up"
            x = F.conv_transpose3d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
            x = stage(torch.cat([x, kept[level]], 1), f"decoder{level}")
        return F.cross_entropy(conv(t, x, "logits"), t["labels"])

    return twin
