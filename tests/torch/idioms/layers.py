"""Idioms of layers: attention, recurrence, embeddings, paddings, poolings, resampling, Fourier."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import (
    conv,
    drawn,
    image,
    infer,
    leaf,
    loss_of,
    model,
    of_conv,
    train,
    training_on,
)


def part(name, make, before=lambda x: x, after=lambda y: y, steps=train):
    """An idiom of one part behind a convolution that keeps the shape."""
    f = model(lambda s, x: after(s.p(before(s.c(x)))), c=conv(padding=1), p=make)
    return Idiom(name, f, steps)


def tokens(y):
    return y.flatten(2).transpose(1, 2)


def attention(s, x):
    t = tokens(s.c(x))
    q, k, v = s.qkv(t).reshape(*t.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4)
    weights = (q * 2**-0.5 @ k.transpose(-2, -1)).softmax(-1)
    return s.out((weights @ v).transpose(1, 2).reshape(t.shape)) + t


def fused(s, x):
    t = tokens(s.c(x))
    q, k, v = s.qkv(t).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def multi_head(s, x):
    t = tokens(s.c(x))
    return s.a(t, t, t, need_weights=True)


class Windows(nn.Module):
    """Attention in shifted windows, without the attention (Swin)."""

    def __init__(self, size=2):
        super().__init__()
        self.c, self.l, self.size = conv()(), nn.Linear(4, 4), size

    def forward(self, x):
        y = self.c(x)
        size = self.size
        pad = [extent for each in (y.shape[3], y.shape[2]) for extent in (0, -each % size)]
        y = F.pad(y, pad).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
        batch, height, width, channels = y.shape
        y = y.view(batch, height // size, size, width // size, size, channels)
        y = self.l(y.transpose(2, 3).reshape(-1, size * size, channels)).softmax(1)
        y = y.view(batch, height // size, width // size, size, size, channels).transpose(2, 3)
        return y.reshape(batch, height, width, channels).roll((1, 1), (1, 2))


def pooled_and_unpooled(s, x):
    y, places = F.max_pool2d(s.c(x), 2, return_indices=True)
    return F.max_unpool2d(s.d(y), places, 2, output_size=(5, 4))


def localised(s, x):
    theta = s.l(x.mean((2, 3))).view(-1, 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)


def spectral(s, x):
    y = torch.fft.rfft2(s.c(x), norm="ortho")
    weight = torch.view_as_complex(s.w)
    return torch.fft.irfft2(y * weight, s=(5, 4), norm="ortho")


def pyramid(s, x):
    small = s.c(F.avg_pool2d(x, 2))
    return F.interpolate(small, size=x.shape[2:], mode="bilinear", align_corners=False) + x


def decoded(s, x):
    small = s.down(x)
    return s.up(small, output_size=x.shape[2:]) + x


def recurrent(s, x):
    out, (hidden, cell) = s.r(tokens(s.c(x)))
    return out, hidden, cell


def gated(s, x):
    return s.r(tokens(s.c(x)), torch.zeros(2, len(x), 3))[0]


def squeezed(s, x):
    y = s.c(x)
    return y * torch.sigmoid(s.up(F.relu(s.down(y.mean((2, 3), keepdim=True)))))


def timed(s, x, t):
    rates = torch.exp(torch.arange(2) * (-math.log(100.0) / 2))
    angles = t[:, None].float() * rates[None]
    embedded = s.l(torch.cat([angles.sin(), angles.cos()], -1))
    return s.c(x) + embedded[:, :, None, None]


def shuffled(y, x):
    batch, channels, height, width = y.shape
    return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(y.shape)


def patches(y, x):
    columns = F.unfold(y, (2, 2), stride=1)
    return F.fold(columns * 0.25, y.shape[2:], (2, 2))


def joined(s, x):
    maps = [s.c(x)]
    for part in (s.d, s.e):
        maps.append(part(torch.cat(maps, 1)))
    return torch.cat(maps, 1)


def encoder():
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def on_words(run):
    for seed in range(2):
        run.backward(loss_of(run(leaf(image(seed)), torch.tensor([[1, 2, 1], [0, 4, 4]]))))


CASES = [
    Idiom(
        "attention by matmul",
        model(attention, c=conv(), qkv=lambda: nn.Linear(4, 12), out=lambda: nn.Linear(4, 4)),
        train,
    ),
    Idiom(
        "scaled_dot_product_attention, causal",
        model(fused, c=conv(), qkv=lambda: nn.Linear(4, 12)),
        train,
    ),
    Idiom(
        "nn.MultiheadAttention with weights",
        model(multi_head, c=conv(), a=lambda: nn.MultiheadAttention(4, 2, batch_first=True)),
        train,
    ),
    part("nn.TransformerEncoderLayer in training", encoder, tokens),
    part("nn.TransformerEncoderLayer in eval", encoder, tokens, steps=infer),
    Idiom("shifted windows", Windows, train),
    of_conv("einsum", lambda y, x: torch.einsum("bchw,bdhw->bcd", y, y).softmax(-1).unsqueeze(-1)),
    Idiom(
        "nn.LSTM",
        model(recurrent, c=conv(), r=lambda: nn.LSTM(4, 3, batch_first=True)),
        train,
    ),
    Idiom(
        "nn.GRU in both directions, with a state",
        model(gated, c=conv(), r=lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True)),
        train,
    ),
    Idiom(
        "nn.Embedding of integers",
        model(
            lambda s, x, w: s.c(x) + s.e(w).mean(1)[:, :, None, None],
            c=conv(),
            e=lambda: nn.Embedding(5, 4, padding_idx=0),
        ),
        on_words,
    ),
    Idiom(
        "nn.EmbeddingBag",
        model(
            lambda s, x, w: s.c(x) * s.e(w)[:, :, None, None],
            c=conv(),
            e=lambda: nn.EmbeddingBag(5, 4, mode="mean"),
        ),
        on_words,
    ),
    Idiom(
        "an embedding of time",
        model(timed, c=conv(), l=lambda: nn.Linear(4, 4)),
        training_on(image, lambda: torch.tensor([3, 50])),
    ),
    of_conv("unfold and fold", patches),
    Idiom(
        "affine_grid and grid_sample",
        model(localised, l=lambda: nn.Linear(4, 6)),
        train,
    ),
    part("pixel shuffle", lambda: nn.PixelShuffle(2)),
    part("pixel unshuffle", lambda: nn.PixelUnshuffle(2), before=lambda x: x[:, :, :6]),
    of_conv("a shuffle of channels", shuffled),
    of_conv("roll over both axes", lambda y, x: y.roll((1, -2), (2, 3)) - y),
    Idiom(
        "a product of spectra (rfft2)",
        model(spectral, c=conv(), w=lambda: nn.Parameter(drawn(4, 5, 3, 2))),
        train,
    ),
    of_conv("fft, absolute value", lambda y, x: torch.fft.fft(y).abs() + 1e-3),
    Idiom("interpolate to the size of another", model(pyramid, c=conv(padding=1)), train),
    of_conv("interpolate by a scale, nearest", lambda y, x: F.interpolate(y, scale_factor=2)),
    of_conv(
        "interpolate, bicubic", lambda y, x: F.interpolate(y, scale_factor=1.5, mode="bicubic")
    ),
    part("adaptive poolings", lambda: nn.AdaptiveMaxPool2d((3, None)), after=F.relu),
    of_conv("adaptive average pooling to 3 by 2", lambda y, x: F.adaptive_avg_pool2d(y, (3, 2))),
    of_conv("max pooling, ceil_mode", lambda y, x: F.max_pool2d(y, 2, ceil_mode=True)),
    of_conv(
        "average pooling, ceil_mode, padding not counted",
        lambda y, x: F.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    of_conv("max pooling, dilated", lambda y, x: F.max_pool2d(y, 2, 1, dilation=2)),
    of_conv("pooling by a power (lp)", lambda y, x: F.lp_pool2d(y.abs() + 0.1, 2, 2)),
    Idiom(
        "max pooling with places, unpooled",
        model(pooled_and_unpooled, c=conv(), d=conv(size=1)),
        train,
    ),
    of_conv("pad by reflection", lambda y, x: F.pad(y, (1, 2, 0, 1), mode="reflect")),
    of_conv("pad by a value, and cut", lambda y, x: F.pad(y, (-1, 2, 0, 1), value=0.5)),
    part("padding_mode replicate", lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate")),
    part("padding_mode circular", lambda: nn.Conv2d(4, 3, 3, padding=2, padding_mode="circular")),
    part("padding same, an even kernel", lambda: nn.Conv2d(4, 3, (4, 3), padding="same")),
    part("groups, dilation, stride", lambda: nn.Conv2d(4, 8, 3, 2, 2, 2, groups=4)),
    Idiom(
        "ConvTranspose2d with output_size",
        model(
            decoded,
            down=lambda: nn.Conv2d(4, 4, 3, 2, 1),
            up=lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1),
        ),
        train,
    ),
    Idiom(
        "squeeze and excitation",
        model(squeezed, c=conv(), down=conv(4, 2, 1), up=conv(2, 4, 1)),
        train,
    ),
    Idiom(
        "dense joins",
        model(joined, c=conv(padding=1), d=conv(padding=1), e=conv(8, 2, padding=1)),
        train,
    ),
    of_conv("glu, prelu by a tensor", lambda y, x: F.glu(F.prelu(y, torch.tensor([0.3])), 1)),
    part(
        "layers of activations",
        lambda: nn.Sequential(nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softplus()),
    ),
    part("dropout with p 0", lambda: nn.Dropout2d(0.0)),
    part("dropout in eval", lambda: nn.Dropout(0.7), steps=infer),
    of_conv(
        "log_softmax, logsumexp, norm",
        lambda y, x: (y.log_softmax(1), y.logsumexp(1), y.norm(dim=1)),
    ),
    of_conv(
        "normalize and cosine similarity",
        lambda y, x: F.cosine_similarity(F.normalize(y), y.roll(1, 0)),
    ),
    Idiom(
        "kron of rows",
        model(
            lambda s, x: torch.kron(s.l(x.flatten(2).mT), torch.ones(1, 1, 2, device=x.device)),
            l=lambda: nn.Linear(4, 6),
        ),
        train,
    ),
    of_conv("cumsum, tril, outer", lambda y, x: y.cumsum(-1) + y.tril() + y[:, :, :1] * y[..., :1]),
    of_conv(
        "meshgrid, linspace, stack",
        lambda y, x: (
            y
            + torch.stack(
                torch.meshgrid(torch.linspace(0, 1, 5), torch.arange(4.0), indexing="ij")
            ).sum(0)
        ),
    ),
    of_conv(
        "repeat, tile, repeat_interleave",
        lambda y, x: (y.repeat(1, 2, 1, 1), y.tile(2), y.repeat_interleave(2, 1)),
    ),
    of_conv(
        "std, var, median, amin",
        lambda y, x: (y.std((2, 3)), y.var(1), y.median(-1)[0], y.amin((1, 2))),
    ),
    of_conv(
        "matrix inverse and determinant",
        lambda y, x: torch.linalg.solve(torch.eye(4) + 0.1 * y[:, 0, :4], y[:, 1, :4]),
    ),
]
