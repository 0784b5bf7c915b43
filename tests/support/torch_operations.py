"""A small model for each operation of PyTorch that the library has: name to (model, shapes)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

MAP, LINE, VOLUME = (2, 4, 12, 10), (3, 4, 24), (1, 4, 6, 8, 7)


class Apply(nn.Module):
    """What a function makes of maps, between two convolutions."""

    def __init__(self, function, after=4, axes=2):
        super().__init__()
        conv = getattr(nn, f"Conv{axes}d")
        self.before, self.after = conv(4, 4, 1), conv(after, 3, 1)
        self.function = function

    def forward(self, *args):
        """Apply it."""
        first, *rest = args
        return self.after(self.function(self.before(first), *rest))


def around(module, axes=2):
    """A module between two convolutions: it has a gradient of its input, and is given one."""
    return Apply(module, axes=axes)


def drawn_statistics(module):
    """Running statistics and factors that are not 0 and 1."""
    for name, each in [*module.named_parameters(), *module.named_buffers()]:
        if each.dtype.is_floating_point:
            with torch.no_grad():
                each.uniform_(0.5, 1.5) if "mean" not in name else each.normal_()
    return module


class Twice(nn.Module):
    """A module that is called twice, a parameter that two modules share, one that is used twice."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(4, 4, 3, padding=1)
        self.other = nn.Conv2d(4, 4, 3, padding=1)
        self.other.weight = self.shared.weight
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        """Use everything twice."""
        h = self.norm(self.shared(x)) * self.scale
        return self.norm(self.other(self.shared(h))) + self.scale


class Frozen(nn.Module):
    """Batch normalization by its running statistics in training, as detectors have it."""

    def __init__(self, *, affine=True):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
        self.norm = drawn_statistics(nn.BatchNorm2d(4, affine=affine)).eval()

    def forward(self, x):
        """Normalize."""
        return self.norm(self.conv(x)).relu()

    def train(self, mode=True):
        """Keep the normalization in evaluation."""
        super().train(mode)
        self.norm.eval()
        return self


class ChannelsLast(nn.Module):
    """Linear layers on maps whose channels are last."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)

    def forward(self, x):
        """There and back."""
        return self.norm(self.linear(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class SeveralOutputs(nn.Module):
    """A dict of outputs, one of them of another branch."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        """A map and two heads."""
        h = self.stem(x).relu()
        return {"out": self.head(h), "more": [h, h.mean((2, 3))]}


def _activations():
    modules = (
        nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Sigmoid(), nn.Tanh(), nn.SiLU(),
        nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Hardswish(), nn.Hardsigmoid(), nn.Hardtanh(0, 2),
        nn.PReLU(), nn.PReLU(4), nn.ReLU(inplace=True), nn.Identity(),
    )  # fmt: skip
    return {str(each): (lambda each=each: around(each), MAP) for each in modules}


def _convolutions():
    found = {}
    for axes, shape in ((1, LINE), (2, MAP), (3, VOLUME)):
        conv = getattr(nn, f"Conv{axes}d")
        up = getattr(nn, f"ConvTranspose{axes}d")
        cases = {
            "plain": lambda conv=conv: conv(4, 6, 3),
            "without bias": lambda conv=conv: conv(4, 6, 3, bias=False),
            "stride, padding": lambda conv=conv: conv(4, 6, 3, 2, 1),
            "dilation": lambda conv=conv: conv(4, 6, 3, padding=2, dilation=2),
            "groups": lambda conv=conv: conv(4, 8, 3, padding=1, groups=2),
            "depthwise": lambda conv=conv: conv(4, 4, 3, padding=1, groups=4),
            "same": lambda conv=conv: conv(4, 6, 3, padding="same", dilation=2),
            "same, even": lambda conv=conv: conv(4, 6, 4, padding="same"),
            "valid": lambda conv=conv: conv(4, 6, 3, padding="valid"),
            "transposed": lambda up=up: up(4, 6, 2, 2),
            "transposed, output padding": lambda up=up: up(4, 6, 3, 2, 1, output_padding=1),
            "transposed, groups, dilation": lambda up=up: up(4, 6, 3, groups=2, dilation=2),
        }
        found |= {f"{axes}-D: conv, {name}": (make, shape) for name, make in cases.items()}
    found["conv2d of uneven windows"] = (lambda: nn.Conv2d(4, 6, (3, 1), (1, 2), (1, 0)), MAP)
    return found


def _poolings():
    found = {}
    for axes, shape in ((1, LINE), (2, MAP), (3, VOLUME)):
        most, average = getattr(nn, f"MaxPool{axes}d"), getattr(nn, f"AvgPool{axes}d")
        adaptive, largest = (getattr(nn, f"Adaptive{k}Pool{axes}d") for k in ("Avg", "Max"))
        modules = (
            most(2), most(3, 2, 1), most(3, 2, ceil_mode=True), average(2), average(3, 2, 1),
            average(3, 2, 1, count_include_pad=False), average(3, 2, ceil_mode=True),
            average(3, 2, 1, ceil_mode=True, count_include_pad=False),
            adaptive(1), adaptive(3), adaptive(5), largest(1), largest(3),
        )  # fmt: skip
        for each in modules:
            kind = str(each).replace(f"{axes}d(", "(")
            found[f"{axes}-D: {kind}"] = (
                lambda each=each, axes=axes: around(each, axes),
                shape,
            )
    return found


def _normalizations():
    modules = {
        "batch norm": nn.BatchNorm2d(4),
        "batch norm, momentum": nn.BatchNorm2d(4, eps=1e-3, momentum=0.3),
        "batch norm, not affine": nn.BatchNorm2d(4, affine=False),
        "batch norm, no running statistics": nn.BatchNorm2d(4, track_running_stats=False),
        "instance norm": nn.InstanceNorm2d(4, affine=True),
        "instance norm, not affine": nn.InstanceNorm2d(4),
        "group norm": nn.GroupNorm(2, 4),
        "group norm, not affine": nn.GroupNorm(2, 4, affine=False),
    }
    found = {
        name: (lambda each=each: around(drawn_statistics(each)), MAP)
        for name, each in modules.items()
    }
    found["batch norm of features"] = (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
        (7, 5),
    )
    found["batch norm of lines"] = (lambda: around(nn.BatchNorm1d(4), 1), LINE)
    found["batch norm of volumes"] = (lambda: around(nn.BatchNorm3d(4), 3), VOLUME)
    found["instance norm of volumes"] = (lambda: around(nn.InstanceNorm3d(4), 3), VOLUME)
    found["layer norm, channels last"] = (ChannelsLast, MAP)
    found["frozen batch norm"] = (Frozen, MAP)
    found["frozen batch norm, not affine"] = (lambda: Frozen(affine=False), MAP)
    return found


def _resizing():
    def sized(**how):
        return lambda x: F.interpolate(x, **how)

    flat = {
        "nearest": {"scale_factor": 2, "mode": "nearest"},
        "nearest to a size": {"size": (17, 5), "mode": "nearest"},
        "bilinear": {"scale_factor": 2, "mode": "bilinear"},
        "bilinear, aligned": {"scale_factor": 2, "mode": "bilinear", "align_corners": True},
        "bilinear to a size": {"size": (7, 23), "mode": "bilinear", "align_corners": False},
        "bilinear to a size, aligned": {"size": (7, 23), "mode": "bilinear", "align_corners": True},
    }
    found = {name: (lambda how=how: Apply(sized(**how)), MAP) for name, how in flat.items()}
    found["linear"] = (lambda: Apply(sized(scale_factor=2, mode="linear"), axes=1), LINE)
    found["nearest of volumes"] = (lambda: Apply(sized(scale_factor=2), axes=3), VOLUME)
    found["trilinear"] = (lambda: Apply(sized(scale_factor=2, mode="trilinear"), axes=3), VOLUME)
    found["upsampling"] = (lambda: around(nn.UpsamplingBilinear2d(scale_factor=2)), MAP)
    pads = {"zeros": (1, 2, 3, 0), "crops": (-1, -2, 0, -3), "both": (2, -1), "one axis": (1, 1)}
    for name, pad in pads.items():
        found[f"pad: {name}"] = (lambda pad=pad: Apply(lambda x: F.pad(x, pad)), MAP)
    modes = {"reflect": (2, 1, 0, 3), "replicate": (1, 2, 2, 0), "circular": (2, 0, 0, 1)}
    for mode, pad in modes.items():
        pads = (pad, MAP, 2), ((2, 1), LINE, 1)
        for each, shape, axes in pads:
            found[f"{axes}-D: pad, {mode}"] = (
                lambda each=each, axes=axes, mode=mode: Apply(
                    lambda x: F.pad(x, each, mode=mode), axes=axes
                ),
                shape,
            )
    found |= {f"moves: {k}": (lambda each=each: Apply(*each), MAP) for k, each in _moves().items()}
    found["circular convolution"] = (
        lambda: around(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        MAP,
    )
    found["cat of rows"] = (lambda: Apply(lambda x: torch.cat([x.relu(), x, x[:, :, 2:]], 2)), MAP)
    found["pad: a value"] = (lambda: Apply(lambda x: F.pad(x, (1, 1, 2, 2), value=0.5)), MAP)
    found["slices"] = (lambda: Apply(lambda x: x[:, :, 1:-2, 3:]), MAP)
    found |= {name: (lambda each=each: Apply(*each), MAP) for name, each in _parts().items()}
    found["GLU of lines"] = (lambda: Apply(lambda x: F.glu(x, 1), after=2, axes=1), LINE)
    return found


def _moves():
    """Functions that move elements, and the channels of what they make."""

    def shuffled(x):
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return torch.cat([part.relu() for part in x.chunk(2, 1)], 1)

    def tokens(x):
        n, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        t = F.gelu(F.layer_norm(t, (c,))) + t
        return t.transpose(1, 2).reshape(n, c, h, w).tanh() + x

    def unshuffled(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(
            n, 4 * c, h // 2, w // 2
        ).sigmoid()  # fmt: skip

    def apart(x):
        y = x.transpose(1, 2).contiguous()
        return (F.layer_norm(y, (10,)).transpose(1, 2).relu() + x.tanh()) * x

    def windows(x):
        n, c, h, w = x.shape
        t = x.permute(0, 2, 3, 1).roll((-1, -2), (1, 2)).view(n, h // 2, 2, w // 5, 5, c)
        t = t.permute(0, 1, 3, 2, 4, 5).reshape(-1, 10, c)
        t = F.layer_norm(t, (c,)) + t.tanh()
        t = t.view(n, h // 2, w // 5, 2, 5, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return t.roll((1, 2), (1, 2)).permute(0, 3, 1, 2)

    def by_slices(*places, dim=1, last=False):
        def function(x):
            x = x.permute(0, 2, 3, 1) if last else x
            parts = [x[:, h::2, w::2] if last else x[..., h::2, w::2] for h, w in places]
            y = torch.cat(parts, dim)
            return F.layer_norm(y, (16,)).permute(0, 3, 1, 2) if last else y.relu()

        return function

    columns, rows = ((0, 0), (1, 0), (0, 1), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))
    return {
        "pixels by slices": (by_slices(*rows), 16),
        "patches merged": (by_slices(*columns, dim=-1, last=True), 16),
        "slices side by side": (by_slices(*columns, dim=-1), 4),
        "slices in no order": (by_slices((0, 0), (1, 1), (0, 1), (1, 0)), 16),
        "slices, one twice": (by_slices((0, 0), (0, 0), (0, 1), (1, 0)), 16),
        "windows that are shifted": (windows, 4),
        "a shuffle of channels": (lambda x: F.channel_shuffle(x, 2).relu(), 4),
        "a shuffle by views": (shuffled, 4),
        "a shuffle of means": (
            lambda x: F.channel_shuffle(x.mean((2, 3), keepdim=True), 2).relu() * x,
            4,
        ),
        "a shuffle of pixels": (lambda x: F.pixel_shuffle(x, 2).relu(), 1),
        "a shuffle of pixels back": (lambda x: F.pixel_unshuffle(x, 2).relu(), 16),
        "that by views": (unshuffled, 16),
        "tokens and back": (tokens, 4),
        "maps permuted apart": (apart, 4),
    }


def _parts():
    """Functions of some channels, and the channels of what they make."""

    def gated(x):
        a, b = x.chunk(2, 1)
        return a.tanh() * b.sigmoid()

    def last_axis(x):
        a, b = x.permute(0, 2, 3, 1).split([1, 3], -1)
        return (a * b[..., 1:2]).permute(0, 3, 1, 2) + x[:, :1]

    def some(x):
        return x[:, 1:3].relu() + x[:, 2:].tanh()

    def joined(x):
        parts = x.split([1, 2, 1], 1)
        return torch.cat([parts[0], parts[1].relu(), parts[2].sigmoid()], 1) + x

    return {
        "chunks of channels": (gated, 2),
        "chunks along an axis": (lambda x: torch.mul(*x.chunk(2, 2)), 4),
        "a split of channels last": (last_axis, 1),
        "some channels, some twice": (some, 2),
        "a split that is joined": (joined, 4),
        "narrow": (lambda x: x.narrow(1, 1, 2).narrow(2, -5, 4), 2),
        "GLU": (lambda x: F.glu(x, 1), 2),
        "one of unequal chunks": (lambda x: x.chunk(3, 2)[2], 4),
    }


def _normalized(axes):
    """A normalization by hand, as many models have it."""

    def normalize(x):
        centered = x - x.mean(axes, keepdim=True)
        return centered / torch.sqrt(centered.pow(2).mean(axes, keepdim=True) + 0.1)

    return normalize


def _by_means_of_means(x):
    """Conv-TasNet's, with a factor before the quotient."""
    mean = x.mean(1, keepdim=True).mean((2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean(1, keepdim=True).mean((2, 3), keepdim=True)
    factor = torch.linspace(0.5, 2, 4, dtype=x.dtype).reshape(4, 1, 1)
    return factor * (x - mean) / torch.pow(variance + 1e-2, 0.5) + x


def _by_response(x):
    """ConvNeXt V2's, on channels last."""
    y = x.permute(0, 2, 3, 1)
    norm = y.norm(p=2, dim=(1, 2), keepdim=True)
    y = y + y * (norm / (norm.mean(dim=-1, keepdim=True) + 1e-6))
    return y.permute(0, 3, 1, 2)


def _arithmetic():
    functions = {
        "x + x": lambda x: x + x.relu(),
        "x - x": lambda x: x - x.relu(),
        "x * x": lambda x: x * x.sigmoid(),
        "add with alpha": lambda x: torch.add(x, x.tanh(), alpha=0.3),
        "numbers": lambda x: (2 - 3 * x + 1) / 4 - 0.5,
        "negated": lambda x: -x,
        "per channel of an image": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
        "a gate of one channel": lambda x: x * x.mean(1, keepdim=True).sigmoid(),
        "a quotient of maps": lambda x: x.tanh() / (x.sigmoid() + 1),
        "a quotient by channel of an image": lambda x: x / (x.mean((2, 3), True).sigmoid() + 1),
        "a norm over channels by hand": _normalized(1),
        "a norm over images by hand": _normalized((1, 2, 3)),
        "a norm over positions by hand": _normalized((2, 3)),
        "an inverse root by hand": lambda x: (
            (x - x.mean(1, True)) * torch.rsqrt((x - x.mean(1, True)).square().mean(1, True) + 0.1)
        ),
        "a norm by means of means": _by_means_of_means,
        "a mean of images": lambda x: x + x.mean((1, 2, 3), keepdim=True),
        "global response normalization": _by_response,
        "squares": lambda x: x.square() + x.pow(2).mean(1, keepdim=True),
        "addcmul": lambda x: torch.addcmul(x.tanh(), x, x.sigmoid()),
        "what PyTorch makes small": lambda x: x + x.mean((2, 3), keepdim=True).clamp(min=0.1),
        "in place": lambda x: (x + 1).add_(x).mul_(0.5),
        "cat": lambda x: torch.cat([x, x.relu()], 1)[:, :, :, :],
        "transposed and back": lambda x: x.transpose(1, 3).relu().transpose(1, 3),
        "clone": lambda x: x.clone().contiguous().relu(),
    }
    return {
        name: (lambda each=each, name=name: Apply(each, after=8 if name == "cat" else 4), MAP)
        for name, each in functions.items()
    }


def _parametrized():
    def conv():
        return nn.Conv2d(4, 4, 3, padding=1)

    return {
        "weight norm": (lambda: around(parametrizations.weight_norm(conv())), MAP),
        "spectral norm": (lambda: around(parametrizations.spectral_norm(conv())), MAP),
        "shared modules and parameters": (Twice, MAP),
        "several outputs": (SeveralOutputs, MAP),
        "flatten, linear": (
            lambda: nn.Sequential(nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(160, 5)),
            MAP,
        ),
        "linear, no bias": (lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU()), (7, 5)),
        "dropout of p = 0": (lambda: around(nn.Dropout(0.0)), MAP),
        "dropout in evaluation": (lambda: around(nn.Dropout(0.5)).eval(), MAP),
    }


OPERATIONS = {
    **_activations(),
    **_convolutions(),
    **_poolings(),
    **_normalizations(),
    **_resizing(),
    **_arithmetic(),
    **_parametrized(),
}
