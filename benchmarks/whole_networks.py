"""Networks that are run on whole images and volumes, in plain torch: see `benchmarks.whole`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class VolumeUNet(nn.Module):
    """FaultSeg3D (Wu et al., Geophysics 84(3), 2019), as its later version has channels.

    Two convolutions a level, largest values of 2 x 2 x 2, nearest upsampling; no normalization.
    (https://github.com/xinwucwp/faultSeg has 512 channels at the lowest level.)
    """

    def __init__(self, classes: int = 1, channels: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        downs = pairwise((1, *channels))
        ups = list(pairwise(channels))[::-1]
        self.down = nn.ModuleList(self._stage(before, after) for before, after in downs)
        self.up = nn.ModuleList(self._stage(deep + shallow, shallow) for shallow, deep in ups)
        self.head = nn.Conv3d(channels[0], classes, 1)

    @staticmethod
    def _stage(before: int, after: int) -> nn.Sequential:
        pairs = ((before, after), (after, after))
        layers = ((nn.Conv3d(*pair, 3, padding=1), nn.ReLU(inplace=True)) for pair in pairs)
        return nn.Sequential(*(layer for each in layers for layer in each))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of sites: of one class, its probability."""
        kept = []
        for level, stage in enumerate(self.down):
            x = stage(functional.max_pool3d(x, 2) if level else x)
            kept.append(x)
        for stage, skip in zip(self.up, kept[-2::-1], strict=True):
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2.0), skip], 1))
        x = self.head(x)
        return torch.sigmoid(x) if x.shape[1] == 1 else x


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before, eps=1e-6)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, after, eps=1e-6)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.conv_shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class _Attention(nn.Module):
    """Of one head, among all sites."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.group_norm(x).flatten(2).mT
        q, k, v = (each(y)[:, None] for each in (self.to_q, self.to_k, self.to_v))
        y = functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return x + self.to_out[0](y).mT.reshape(x.shape)


class _Upsampler(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0))


class _Block(nn.Module):
    """Residual blocks, with attention between them or upsampling behind them."""

    def __init__(
        self, before: int, after: int, count: int, groups: int, *, attends: bool, grows: bool
    ) -> None:
        super().__init__()
        befores = (before, *(after,) * (count - 1))
        self.resnets = nn.ModuleList(_Residual(each, after, groups) for each in befores)
        self.attentions = nn.ModuleList([_Attention(after, groups)] if attends else [])
        self.upsamplers = nn.ModuleList([_Upsampler(after)] if grows else [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self.resnets
        for layer in (first, *self.attentions, *others, *self.upsamplers):
            x = layer(x)
        return x


class Decoder(nn.Module):
    """The decoder of Stable Diffusion's AutoencoderKL, by the names that diffusers has.

    Latents (n, 4, h, w) to images (n, 3, 8 h, 8 w).
    """

    def __init__(
        self, channels: tuple[int, ...] = (128, 256, 512, 512), layers: int = 3, groups: int = 32
    ) -> None:
        super().__init__()
        top = channels[-1]
        self.conv_in = nn.Conv2d(4, top, 3, padding=1)
        self.mid_block = _Block(top, top, 2, groups, attends=True, grows=False)
        pairs = list(pairwise((top, *channels[::-1])))
        self.up_blocks = nn.ModuleList(
            _Block(*pair, layers, groups, attends=False, grows=at < len(pairs) - 1)
            for at, pair in enumerate(pairs)
        )
        self.conv_norm_out = nn.GroupNorm(groups, channels[0], eps=1e-6)
        self.conv_out = nn.Conv2d(channels[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images."""
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(functional.silu(self.conv_norm_out(x)))
