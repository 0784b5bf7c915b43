"""Models of today that neither torchvision, MONAI, timm nor diffusers has, in plain torch.

Layer by layer as their papers and first sources have them; sizes are arguments, for tiny twins.
"""

from __future__ import annotations

import importlib
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


class ResidualStage(nn.Module):
    """Two convolutions with instance normalization and a shortcut, of nnU-Net's ResEnc."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(before, after, 3, stride, 1)
        self.conv2 = nn.Conv3d(after, after, 3, padding=1)
        self.norm1, self.norm2 = (nn.InstanceNorm3d(after, affine=True) for _ in range(2))
        shortcut: list[nn.Module] = [nn.AvgPool3d(stride)] if stride > 1 else []
        if before != after:
            shortcut += [nn.Conv3d(before, after, 1, bias=False)]
            shortcut += [nn.InstanceNorm3d(after, affine=True)]
        self.shortcut, self.act = nn.Sequential(*shortcut), nn.LeakyReLU(0.01, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the shortcut."""
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return self.act(y + self.shortcut(x))


class ResEnc(nn.Module):
    """nnU-Net's U-Net with a residual encoder (Isensee et al., 2024): size L by default."""

    def __init__(
        self,
        channels: tuple[int, ...] = (32, 64, 128, 256, 320, 320),
        blocks: tuple[int, ...] = (1, 3, 4, 6, 6, 6),
        classes: int = 3,
    ) -> None:
        super().__init__()
        first = channels[0]
        self.stem = nn.Sequential(
            nn.Conv3d(1, first, 3, padding=1), nn.InstanceNorm3d(first, affine=True), nn.LeakyReLU()
        )
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level, (before, after) in enumerate(pairwise((first, *channels))):
            stage = [ResidualStage(before, after, 2 if level else 1)]
            stage += [ResidualStage(after, after) for _ in range(blocks[level] - 1)]
            self.down.append(nn.Sequential(*stage))
        for shallow, deep in list(pairwise(channels))[::-1]:
            self.up.append(nn.ConvTranspose3d(deep, shallow, 2, 2))
            norm = nn.InstanceNorm3d(shallow, affine=True)
            conv = nn.Conv3d(2 * shallow, shallow, 3, padding=1)
            self.join.append(nn.Sequential(conv, norm, nn.LeakyReLU(inplace=True)))
        self.head = nn.Conv3d(first, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of sites."""
        x, kept = self.stem(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


class MixBlock(nn.Module):
    """SegFormer's block on tokens (n, h w, channels): attention to fewer sites, then a mix."""

    def __init__(self, channels: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads, self.ratio, wide = heads, ratio, 4 * channels
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.q, self.kv = nn.Linear(channels, channels), nn.Linear(channels, 2 * channels)
        self.out = nn.Linear(channels, channels)
        if ratio > 1:
            self.reduce = nn.Conv2d(channels, channels, ratio, ratio)
            self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, wide), nn.Linear(wide, channels)
        self.mix = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)

    def attention(self, x: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """Attend to all sites, or to one for each `ratio` by `ratio` of them."""
        n, sites, c = x.shape
        q = self.q(x).reshape(n, sites, self.heads, -1).transpose(1, 2)
        if self.ratio > 1:
            x = self.reduce(x.transpose(1, 2).reshape(n, c, h, w)).flatten(2).transpose(1, 2)
            x = self.norm(x)
        k, v = self.kv(x).reshape(n, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, sites, c))

    def forward(self, x: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """Add attention, then linear layers with a depthwise convolution between them."""
        x = x + self.attention(self.norm1(x), h, w)
        y = self.up(self.norm2(x))
        y = self.mix(y.transpose(1, 2).unflatten(2, (h, w))).flatten(2).transpose(1, 2)
        return x + self.down(functional.gelu(y))


class SegFormer(nn.Module):
    """SegFormer (Xie et al., 2021), B2 by default; scores at a quarter of the image's sides."""

    def __init__(
        self,
        channels: tuple[int, ...] = (64, 128, 320, 512),
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        heads: tuple[int, ...] = (1, 2, 5, 8),
        ratios: tuple[int, ...] = (8, 4, 2, 1),
        width: int = 768,
        classes: int = 150,
    ) -> None:
        super().__init__()
        self.embed, self.stages = nn.ModuleList(), nn.ModuleList()
        for at, (before, after) in enumerate(pairwise((3, *channels))):
            side, stride = (3, 2) if at else (7, 4)
            self.embed.append(nn.Conv2d(before, after, side, stride, side // 2))
            stage = [MixBlock(after, heads[at], ratios[at]) for _ in range(blocks[at])]
            self.stages.append(nn.ModuleList(stage))
        self.enter = nn.ModuleList(nn.LayerNorm(each) for each in channels)
        self.leave = nn.ModuleList(nn.LayerNorm(each) for each in channels)
        self.project = nn.ModuleList(nn.Linear(each, width) for each in channels)
        fuse = nn.Conv2d(len(channels) * width, width, 1, bias=False)
        self.head = nn.Sequential(
            fuse, nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, classes, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of sites."""
        maps: list[torch.Tensor] = []
        for embed, enter, stage, leave, project in zip(
            self.embed, self.enter, self.stages, self.leave, self.project, strict=True
        ):
            x = embed(x)
            sides = x.shape[2:]
            tokens = enter(x.flatten(2).transpose(1, 2))
            for block in stage:
                tokens = block(tokens, *sides)
            tokens = leave(tokens)
            x = tokens.transpose(1, 2).unflatten(2, sides)
            y = project(tokens).transpose(1, 2).unflatten(2, sides)
            size = maps[0].shape[2:] if maps else sides
            maps.append(functional.interpolate(y, size, mode="bilinear", align_corners=False))
        return self.head(torch.cat(maps[::-1], 1))


class WaveNet(nn.Module):
    """WaveNet (van den Oord et al., 2016): causal dilated convolutions with gates, by samples."""

    def __init__(
        self, channels: int = 64, skip: int = 256, dilations: int = 10, cycles: int = 3
    ) -> None:
        super().__init__()
        spans = [2**each for each in range(dilations)] * cycles
        self.first = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=each) for each in spans
        )
        self.out = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in spans)
        self.skip = nn.ModuleList(nn.Conv1d(channels, skip, 1) for _ in spans)
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, 256, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of the next sample's 256 values: (n, 256, samples)."""
        x, total = self.first(x), torch.zeros((), dtype=x.dtype, device=x.device)
        for gate, out, skip in zip(self.gates, self.out, self.skip, strict=True):
            a, b = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(y)
            x = x + out(y)
        return self.head(total)


class ConvTasNet(nn.Module):
    """Conv-TasNet (Luo and Mesgarani, 2019): masks of a learned basis separate two speakers."""

    def __init__(
        self,
        basis: int = 512,
        channels: int = 128,
        wide: int = 512,
        dilations: int = 8,
        cycles: int = 3,
        speakers: int = 2,
    ) -> None:
        super().__init__()
        self.speakers = speakers
        self.encoder = nn.Conv1d(1, basis, 16, 8, bias=False)
        self.decoder = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)
        self.enter = nn.Sequential(nn.GroupNorm(1, basis), nn.Conv1d(basis, channels, 1))
        spans = [2**each for each in range(dilations)] * cycles
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(channels, wide, 1), nn.PReLU(), nn.GroupNorm(1, wide),
                nn.Conv1d(wide, wide, 3, padding=each, dilation=each, groups=wide),
                nn.PReLU(), nn.GroupNorm(1, wide),
            )
            for each in spans
        )  # fmt: skip
        self.out = nn.ModuleList(nn.Conv1d(wide, channels, 1) for _ in spans)
        self.skip = nn.ModuleList(nn.Conv1d(wide, channels, 1) for _ in spans)
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, speakers * basis, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the samples of each speaker: (n, speakers, samples)."""
        waves = self.encoder(x)
        y, total = self.enter(waves), torch.zeros((), dtype=x.dtype, device=x.device)
        for block, out, skip in zip(self.blocks, self.out, self.skip, strict=True):
            inner = block(y)
            total = total + skip(inner)
            y = y + out(inner)
        masks = torch.sigmoid(self.masks(total)).unflatten(1, (self.speakers, -1))
        masked = (masks * waves[:, None]).flatten(0, 1)
        return self.decoder(masked).reshape(x.shape[0], self.speakers, -1)


class Demucs(nn.Module):
    """Demucs (Defossez et al., 2019): a U-Net on samples, gated, with an LSTM at its bottom."""

    def __init__(self, channels: int = 64, depth: int = 6, sources: int = 4) -> None:
        super().__init__()
        self.down, self.up, before, after = nn.ModuleList(), nn.ModuleList(), 2, channels
        for level in range(depth):
            layers = [nn.Conv1d(before, after, 8, 4, 2), nn.ReLU()]
            self.down.append(nn.Sequential(*layers, nn.Conv1d(after, 2 * after, 1), nn.GLU(1)))
            back = before if level else 2 * sources
            layers = [nn.Conv1d(after, 2 * after, 3, padding=1), nn.GLU(1)]
            layers += [nn.ConvTranspose1d(after, back, 8, 4, 2)]
            self.up.insert(0, nn.Sequential(*layers, *([nn.ReLU()] if level else [])))
            before, after = after, 2 * after
        self.lstm = nn.LSTM(before, before, 2, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * before, before)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the samples of each source, stereo: (n, sources, 2, samples)."""
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        x = self.linear(self.lstm(x.transpose(1, 2))[0]).transpose(1, 2)
        for layer in self.up:
            x = layer(x + kept.pop())
        return x.unflatten(1, (-1, 2))


class HiFiGAN(nn.Module):
    """HiFi-GAN's generator (Kong et al., 2020), V1: from mel spectra to samples."""

    def __init__(
        self,
        channels: int = 512,
        rates: tuple[int, ...] = (8, 8, 2, 2),
        sides: tuple[int, ...] = (3, 7, 11),
        mels: int = 80,
    ) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(mels, channels, 7, padding=3))
        self.up, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            up = nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2)
            self.up.append(weight_norm(up))
            channels //= 2
            blocks = nn.ModuleList()
            for side in sides:
                pads = [(span, span * (side - 1) // 2) for each in (1, 3, 5) for span in (each, 1)]
                convs = [nn.Conv1d(channels, channels, side, 1, pad, span) for span, pad in pads]
                blocks.append(nn.ModuleList(map(weight_norm, convs)))
            self.blocks.append(blocks)
        self.last = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return samples: (n, 1, product of the rates for each spectrum)."""
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            total = None
            for convs in blocks:
                y = x
                for one, other in zip(convs[::2], convs[1::2], strict=True):
                    inner = one(functional.leaky_relu(y, 0.1))
                    y = y + other(functional.leaky_relu(inner, 0.1))
                total = y if total is None else total + y
            x = total / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


class SwinIR(nn.Module):
    """SwinIR (Liang et al., 2021) for images four times as wide; Swin's blocks by torchvision."""

    def __init__(
        self, channels: int = 180, groups: int = 6, blocks: int = 6, heads: int = 6, window: int = 8
    ) -> None:
        super().__init__()
        block = importlib.import_module("torchvision.models.swin_transformer").SwinTransformerBlock
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.groups, self.convs = nn.ModuleList(), nn.ModuleList()
        for _ in range(groups):
            shifts = ([window // 2 * (at % 2)] * 2 for at in range(blocks))
            made = (block(channels, heads, [window] * 2, each, mlp_ratio=2.0) for each in shifts)
            self.groups.append(nn.Sequential(*made))
            self.convs.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.after = nn.LayerNorm(channels), nn.Conv2d(channels, channels, 3, padding=1)
        up: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1), nn.LeakyReLU()]
        for _ in range(2):
            up += [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2)]
        self.up = nn.Sequential(*up, nn.Conv2d(64, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the large images."""
        y = first = self.first(x)
        for group, conv in zip(self.groups, self.convs, strict=True):
            y = y + conv(group(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        y = self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.up(first + self.after(y))


class FNO(nn.Module):
    """A Fourier neural operator on two axes (Li et al., 2021)."""

    def __init__(self, channels: int = 64, modes: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.modes, scale = modes, 1 / channels**2
        self.lift, self.project = nn.Conv2d(3, channels, 1), nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, 1, 1)
        )  # fmt: skip
        # positive and negative rows; real, imaginary
        shape = (2, channels, channels, modes, modes, 2)
        self.spectra = nn.ParameterList(scale * torch.rand(shape) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the field: (n, 1, h, w)."""
        x, m = self.lift(x), self.modes
        for spectrum, local in zip(self.spectra, self.local, strict=True):
            weights, there = torch.view_as_complex(spectrum), torch.fft.rfft2(x)
            parts = zip((there[:, :, :m, :m], there[:, :, -m:, :m]), weights, strict=True)
            rows = [torch.einsum("nixy,ioxy->noxy", part, weight) for part, weight in parts]
            far = there.shape[2] - 2 * m, there.shape[3] - m
            left = torch.cat([functional.pad(rows[0], (0, 0, 0, far[0])), rows[1]], 2)
            y = torch.fft.irfft2(functional.pad(left, (0, far[1])), x.shape[2:])
            x = functional.gelu(y + local(x))
        return self.project(x)


class NAFBlock(nn.Module):
    """NAFNet's block: gates by halves of channels, and simple attention to channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.norm1, self.norm2 = nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
        self.conv1 = nn.Conv2d(channels, wide, 1)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, 1, wide)
        self.attend = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1))
        self.conv3 = nn.Conv2d(channels, channels, 1)
        self.conv4, self.conv5 = nn.Conv2d(channels, wide, 1), nn.Conv2d(channels, channels, 1)
        self.beta, self.gamma = (nn.Parameter(torch.full((1, channels, 1, 1), 0.1)) for _ in "bg")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the two branches."""
        a, b = self.conv2(self.conv1(self.norm1(x))).chunk(2, 1)
        y = a * b
        x = x + self.conv3(y * self.attend(y)) * self.beta
        a, b = self.conv4(self.norm2(x)).chunk(2, 1)
        return x + self.conv5(a * b) * self.gamma


class NAFNet(nn.Module):
    """NAFNet (Chen et al., 2022), width 32, as its authors restore images."""

    def __init__(
        self,
        channels: int = 32,
        encoders: tuple[int, ...] = (1, 1, 1, 28),
        middle: int = 1,
        decoders: tuple[int, ...] = (1, 1, 1, 1),
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 3, 1, 1), nn.Conv2d(channels, 3, 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.encoders, self.decoders = nn.ModuleList(), nn.ModuleList()
        for count in encoders:
            self.encoders.append(nn.Sequential(*(NAFBlock(channels) for _ in range(count))))
            self.down.append(nn.Conv2d(channels, 2 * channels, 2, 2))
            channels *= 2
        self.middle = nn.Sequential(*(NAFBlock(channels) for _ in range(middle)))
        for count in decoders:
            up = nn.Conv2d(channels, 2 * channels, 1, bias=False)
            self.up.append(nn.Sequential(up, nn.PixelShuffle(2)))
            channels //= 2
            self.decoders.append(nn.Sequential(*(NAFBlock(channels) for _ in range(count))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the restored images."""
        y, kept = self.first(x), []
        for encoder, down in zip(self.encoders, self.down, strict=True):
            y = encoder(y)
            kept.append(y)
            y = down(y)
        y = self.middle(y)
        for decoder, up in zip(self.decoders, self.up, strict=True):
            y = decoder(up(y) + kept.pop())
        return self.last(y) + x
