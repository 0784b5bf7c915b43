"""The models that the PyTorch door is measured with, in plain torch: the card has no other.

Layer by layer as torchvision, nnU-Net and MONAI have them; `width` is a factor of all channels, for
smaller relatives.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


def wide(channels: int, width: float) -> int:
    return max(1, round(channels * width))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which strides), 1x1 to four times the channels."""

    def __init__(self, before: int, channels: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        after = 4 * channels
        self.conv1 = nn.Conv2d(before, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            if projects
            else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 (He et al., 2016), with torchvision's names; or with fewer blocks in its groups."""

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1.0,
        blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
    ) -> None:
        super().__init__()
        before = wide(64, width)
        self.conv1 = nn.Conv2d(3, before, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(before), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for group, count in enumerate(blocks, 1):
            channels, bottlenecks = wide(32 * 2**group, width), []
            for index in range(count):
                stride = 2 if group > 1 and not index else 1
                bottlenecks.append(Bottleneck(before, channels, stride, projects=not index))
                before = 4 * channels
            setattr(self, f"layer{group}", nn.Sequential(*bottlenecks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class UNet(nn.Module):
    """A U-Net of two convolutions a level.

    On two axes as Ronneberger et al., 2015, with batch normalization and poolings; on three as
    nnU-Net's and MONAI's DynUNet, with instance normalization, leaky ReLU and strides.
    """

    def __init__(
        self, axes: int, channels: tuple[int, ...], inputs: int, classes: int, width: float = 1.0
    ) -> None:
        super().__init__()
        channels = tuple(wide(each, width) for each in channels)
        conv, up = getattr(nn, f"Conv{axes}d"), getattr(nn, f"ConvTranspose{axes}d")
        volumes = axes == 3

        def stage(before: int, after: int, stride: int = 1) -> nn.Sequential:
            layers: list[nn.Module] = []
            for turn in range(2):
                layers.append(conv(after if turn else before, after, 3, 1 if turn else stride, 1))
                if volumes:
                    layers += [nn.InstanceNorm3d(after, affine=True), nn.LeakyReLU(0.01, True)]
                else:
                    layers += [nn.BatchNorm2d(after), nn.ReLU(True)]
            return nn.Sequential(*layers)

        befores, stride = (inputs, *channels), 2 if volumes else 1
        self.down = nn.ModuleList(
            stage(before, after, stride if at else 1)
            for at, (before, after) in enumerate(zip(befores, channels, strict=False))
        )
        self.pool = nn.Identity() if volumes else nn.MaxPool2d(2)
        pairs = list(pairwise(channels))[::-1]
        self.up = nn.ModuleList(up(deep, shallow, 2, 2) for shallow, deep in pairs)
        self.join = nn.ModuleList(stage(2 * shallow, shallow) for shallow, _ in pairs)
        self.head = conv(channels[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, stage in enumerate(self.down):
            x = stage(self.pool(x) if level else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


def unet(classes: int = 2, width: float = 1.0) -> nn.Module:
    """The 2-D U-Net, 64 to 1024 channels."""
    return UNet(2, (64, 128, 256, 512, 1024), 3, classes, width)


def dynunet(width: float = 1.0) -> nn.Module:
    """The 3-D U-Net of nnU-Net, 32 to 320 channels."""
    return UNet(3, (32, 64, 128, 256, 320, 320), 1, 3, width)


class ResBlock(nn.Module):
    """Normalized first, as in MONAI's SegResNet."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(self.relu(self.norm1(x)))
        return self.conv2(self.relu(self.norm2(y))) + x


class SegResNet(nn.Module):
    """SegResNet (Myronenko, 2018) as MONAI's defaults have it: 8 filters, trilinear upsampling."""

    def __init__(self, filters: int = 8) -> None:
        super().__init__()
        groups = min(8, filters)
        self.first = nn.Conv3d(4, filters, 3, padding=1, bias=False)
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level, count in enumerate((1, 2, 2, 4)):
            channels = filters * 2**level
            stage = [nn.Conv3d(channels // 2, channels, 3, 2, 1, bias=False)] if level else []
            stage += [ResBlock(channels, groups) for _ in range(count)]
            self.down.append(nn.Sequential(*stage))
        for level in (2, 1, 0):
            channels = filters * 2**level
            self.up.append(
                nn.Sequential(
                    nn.Conv3d(2 * channels, channels, 1, bias=False),
                    nn.Upsample(scale_factor=2, mode="trilinear", align_corners=False),
                )
            )
            self.join.append(ResBlock(channels, groups))
        self.head = nn.Sequential(
            nn.GroupNorm(groups, filters), nn.ReLU(inplace=True), nn.Conv3d(filters, 3, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(up(x) + skip)
        return self.head(x)
