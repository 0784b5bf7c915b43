"""Models to train and to measure, in plain torch: where torchvision has none of the kind.

Layer by layer as torchvision, nnU-Net and MONAI have them; `width` is a factor of all channels, for
smaller relatives.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def wide(channels: int, width: float) -> int:
    """Scale a number of channels."""
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
        """Add the shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 (He et al., 2016), with torchvision's names; or with fewer blocks in its groups."""

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

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
        """Return scores of classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Stage(nn.Sequential):
    """Two convolutions of 3 to a side; the first may stride.

    On two axes with batch normalization and ReLU, on three with instance normalization and leaky
    ReLU.
    """

    def __init__(self, axes: int, before: int, after: int, stride: int = 1) -> None:
        conv, layers = getattr(nn, f"Conv{axes}d"), list[nn.Module]()
        for turn in range(2):
            layers.append(conv(after if turn else before, after, 3, 1 if turn else stride, 1))
            if axes == 3:
                layers += [nn.InstanceNorm3d(after, affine=True), nn.LeakyReLU(0.01, True)]
            else:
                layers += [nn.BatchNorm2d(after), nn.ReLU(True)]
        super().__init__(*layers)


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
        up, volumes = getattr(nn, f"ConvTranspose{axes}d"), axes == 3
        befores, stride = (inputs, *channels), 2 if volumes else 1
        self.down = nn.ModuleList(
            Stage(axes, before, after, stride if at else 1)
            for at, (before, after) in enumerate(zip(befores, channels, strict=False))
        )
        self.pool = nn.Identity() if volumes else nn.MaxPool2d(2)
        pairs = list(pairwise(channels))[::-1]
        self.up = nn.ModuleList(up(deep, shallow, 2, 2) for shallow, deep in pairs)
        self.join = nn.ModuleList(Stage(axes, 2 * shallow, shallow) for shallow, _ in pairs)
        self.head = getattr(nn, f"Conv{axes}d")(channels[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of sites."""
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
        """Add the input."""
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
            stage: list[nn.Module] = (
                [nn.Conv3d(channels // 2, channels, 3, 2, 1, bias=False)] if level else []
            )
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
        """Return scores of sites."""
        x, kept = self.first(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(up(x) + skip)
        return self.head(x)


class SwinBlock(nn.Module):
    """Attention within the windows of a volume, and two linear layers: (n, d, h, w, channels).

    As in Swin (Liu et al., 2021), with a bias of relative positions. Where windows are shifted, the
    sites that are rolled around the border are not masked.
    """

    relative: torch.Tensor

    def __init__(self, channels: int, heads: int, window: int, *, is_shifted: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2 if is_shifted else 0
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 3, heads))
        sites = torch.cartesian_prod(*[torch.arange(window)] * 3)
        apart = sites[:, None] - sites[None] + window - 1
        scale = torch.tensor([(2 * window - 1) ** 2, 2 * window - 1, 1])
        self.register_buffer("relative", (apart * scale).sum(-1), persistent=False)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention, then the linear layers."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to the sites of each window."""
        axes, (n, d, h, w, c), side = (1, 2, 3), x.shape, self.window
        if self.shift:
            x = torch.roll(x, (-self.shift,) * 3, axes)
        x = x.reshape(n, d // side, side, h // side, side, w // side, side, c)
        x = x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, side**3, c)
        x = self.qkv(x).reshape(-1, side**3, 3, self.heads, c // self.heads)
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        weights = weights + self.bias[self.relative].permute(2, 0, 1)
        x = (weights.softmax(-1) @ v).transpose(1, 2).reshape(-1, side**3, c)
        x = self.out(x).reshape(n, d // side, h // side, w // side, side, side, side, c)
        x = x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(n, d, h, w, c)
        return torch.roll(x, (self.shift,) * 3, axes) if self.shift else x


class SwinUNETR(nn.Module):
    """A U-Net on volumes whose encoder is a Swin transformer, after Hatamizadeh et al., 2022."""

    def __init__(
        self,
        channels: int = 48,
        classes: int = 14,
        heads: tuple[int, ...] = (3, 6, 12, 24),
        window: int = 6,
    ) -> None:
        super().__init__()
        wide = [channels * 2**level for level in range(len(heads) + 1)]
        self.embed = nn.Conv3d(1, channels, 2, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(SwinBlock(c, count, window, is_shifted=bool(at)) for at in range(2)))
            for c, count in zip(wide, heads, strict=False)
        )
        self.merge = nn.ModuleList(nn.Conv3d(c, 2 * c, 2, 2) for c in wide[:-1])
        outer = (channels, *wide)
        self.skip = nn.ModuleList(Stage(3, b, a) for b, a in zip((1, *wide), outer, strict=True))
        ups = [(b, a) for a, b in pairwise(outer)][::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for b, a in ups)
        self.join = nn.ModuleList(Stage(3, 2 * a, a) for _, a in ups)
        self.head = nn.Conv3d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of sites."""
        maps, x = [x], self.embed(x)
        for blocks, merge in zip(self.blocks, self.merge, strict=True):
            x = blocks(x.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)
            maps.append(x)
            x = merge(x)
        kept = [skip(each) for skip, each in zip(self.skip, (*maps, x), strict=True)]
        x = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


class DiffusionBlock(nn.Module):
    """A residual block that a time is added in, and attention among all sites where asked."""

    def __init__(self, before: int, after: int, times: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.time = nn.Linear(times, after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1)
        self.heads = heads
        if heads:
            self.norm, self.qkv = nn.GroupNorm(groups, after), nn.Conv2d(after, 3 * after, 1)
            self.out = nn.Conv2d(after, after, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Add the input, then attention."""
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        x = self.conv2(functional.silu(self.norm2(y))) + self.shortcut(x)
        if not self.heads:
            return x
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, 3, self.heads, -1, h * w).mT.unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v).mT.reshape(n, c, h, w)
        return x + self.out(y)


class DiffusionUNet(nn.Module):
    """The U-Net of a diffusion model, after Dhariwal and Nichol, 2021: noise of images and times.

    Attention at all levels but the first.
    """

    rates: torch.Tensor

    def __init__(
        self,
        channels: int = 192,
        factors: tuple[int, ...] = (1, 2, 3, 4),
        head: int = 64,
        groups: int = 32,
    ) -> None:
        super().__init__()
        times, count = 4 * channels, 2

        def block(before: int, after: int, level: int) -> DiffusionBlock:
            return DiffusionBlock(before, after, times, after // head if level else 0, groups)

        self.time = nn.Sequential(nn.Linear(channels, times), nn.SiLU(), nn.Linear(times, times))
        rates = torch.exp(-math.log(1e4) * torch.arange(channels // 2) / (channels // 2))
        self.register_buffer("rates", rates, persistent=False)
        self.first = nn.Conv2d(3, channels, 3, 1, 1)
        self.down, self.up, kept, c = nn.ModuleList(), nn.ModuleList(), [channels], channels
        for level, factor in enumerate(factors):
            if level:
                self.down.append(nn.Conv2d(c, c, 3, 2, 1))
                kept.append(c)
            for _ in range(count):
                self.down.append(block(c, channels * factor, level))
                c = channels * factor
                kept.append(c)
        self.middle = nn.ModuleList(block(c, c, level) for level in (1, 0))
        for level in range(len(factors))[::-1]:
            for _ in range(count + 1):
                self.up.append(block(c + kept.pop(), channels * factors[level], level))
                c = channels * factors[level]
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, 1, 1)))
        self.head = nn.Sequential(nn.GroupNorm(groups, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return the noise of images at times (n,)."""
        angles = times[:, None] * self.rates
        time = functional.silu(self.time(torch.cat([angles.sin(), angles.cos()], 1)))
        x = self.first(x)
        kept = [x]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, DiffusionBlock) else layer(x)
            kept.append(x)
        for layer in self.middle:
            x = layer(x, time)
        for layer in self.up:
            if isinstance(layer, DiffusionBlock):
                x = layer(torch.cat([x, kept.pop()], 1), time)
            else:
                x = layer(x)
        return self.head(x)
