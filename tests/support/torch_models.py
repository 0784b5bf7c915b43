"""Small models of PyTorch, each with what some kind of network has."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from tests.support.sampling import number

#: Of a U-Net's levels. To plan three of them takes three times as long.
CHANNELS = (4, 8, 16)[: number(2, of=3)]


class Residual(nn.Module):
    """A residual block, whose shortcut is a convolution."""

    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        h += self.shortcut(x)
        return self.relu(h)


class UNet(nn.Module):
    """A U-Net on two or three axes."""

    def __init__(self, axes=2, channels=CHANNELS, norm="Instance", classes=3):
        super().__init__()
        conv, up = getattr(nn, f"Conv{axes}d"), getattr(nn, f"ConvTranspose{axes}d")
        make = getattr(nn, f"{norm}Norm{axes}d")

        def block(before, after):
            layers = []
            for channels in (before, after):
                layers += [conv(channels, after, 3, padding=1), make(after, affine=True)]
                layers.append(nn.LeakyReLU(0.01, inplace=True))
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(
            block(before, after) for before, after in zip((2, *channels), channels, strict=False)
        )
        self.pool = getattr(nn, f"MaxPool{axes}d")(2)
        pairs = list(pairwise(channels))[::-1]
        self.up = nn.ModuleList(up(deep, wide, 2, 2) for wide, deep in pairs)
        self.join = nn.ModuleList(block(2 * wide, wide) for wide, _ in pairs)
        self.head = conv(channels[0], classes, 1)

    def forward(self, x):
        kept = []
        for at, block in enumerate(self.down):
            x = block(self.pool(x) if at else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class SqueezeExcite(nn.Module):
    """Channels scaled by what all sites say, as EfficientNet and MobileNet do."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, groups=1)
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        h = nn.functional.silu(self.conv(x))
        scale = self.up(nn.functional.relu(self.down(self.pool(h))))
        return torch.sigmoid(scale) * h


class ConvNeXt(nn.Module):
    """A block of ConvNeXt: depthwise, layer norm and linear with channels last, a layer scale."""

    def __init__(self, channels=6):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.5 + torch.rand(channels, 1, 1))

    def forward(self, x):
        x = self.stem(x)
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.down(nn.functional.gelu(self.up(h))).permute(0, 3, 1, 2)
        return x + self.scale * h


class Dense(nn.Module):
    """Normalized maps that are concatenated with what is made of them, as in U-Net++."""

    def __init__(self):
        super().__init__()

        def block(before):
            conv, norm = nn.Conv2d(before, 2, 3, padding=1), nn.InstanceNorm2d(2, affine=True)
            return nn.Sequential(conv, norm, nn.LeakyReLU(0.1, inplace=True))

        self.first, self.second, self.third = block(3), block(2), block(4)

    def forward(self, x):
        x = self.first(x)
        return self.third(torch.cat([x, self.second(x)], 1))


def classifier():
    """Convolution, batch norm, ReLU, pooling, linear."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 16, 10),
    )  # fmt: skip


def residual():
    """Two residual blocks and a head, as ResNet's."""
    return nn.Sequential(
        Residual(3, 8),
        Residual(8, 8, 2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


MODELS = {
    "classifier": (classifier, (4, 3, 16, 16)),
    "residual": (residual, (4, 3, 16, 16)),
    "U-Net": (UNet, (2, 2, 32, 32)),
    "U-Net with batch norm": (lambda: UNet(norm="Batch"), (2, 2, 32, 32)),
    "3-D U-Net": (lambda: UNet(axes=3), (1, 2, 8, 8, 8)),
    "squeeze and excite": (SqueezeExcite, (2, 3, 16, 16)),
    "ConvNeXt": (ConvNeXt, (2, 3, 16, 16)),
    "dense": (Dense, (1, 3, 8, 8)),
}
