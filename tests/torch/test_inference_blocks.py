"""`infer` in blocks of what PyTorch computes within the network, beside PyTorch on whole images."""

from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.tiled.infer import TilePlan
from tests.support.torch_checks import Of, close


def of(function):
    return lambda: Of(function)


def gated(x):
    one, other = x.chunk(2, 1)
    return one * other.softmax(1)


def by_hand(x):
    """Pixels shuffled by views, an axis split and joined."""
    n, c, h, w = x.shape
    x = x.view(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // 4, 2 * h, 2 * w)


def by_hand_down(x):
    n, c, h, w = x.shape
    x = x[..., : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
    return x.amax((3, 5))


def resized(**how):
    return of(lambda x: F.interpolate(x, **how))


def dark(x):
    return x.masked_fill(x < 0.1, -2.0).clamp(-1, 1).where(x > 0, x.exp())


def laid_last(x):
    return (x.permute(0, 2, 3, 1).softmax(-1) @ torch.full((8, 8), 2.0, dtype=x.dtype)).permute(
        0, 3, 1, 2
    )


def summed(x):
    return torch.einsum("nchw,cd->ndhw", x.sin(), torch.eye(8, dtype=x.dtype))


def quarters(x):
    return torch.cat([x[..., ::2, 1::2], x[..., ::2, :-1:2]], 1).sin()


#: What PyTorch computes of a block, of eight channels; and how many channels it makes.
CASES = {
    "mish": (nn.Mish, 8),
    "softplus": (lambda: nn.Softplus(2.0, 1.0), 8),
    "clamp, where, masked_fill": (of(dark), 8),
    "softmax": (lambda: nn.Softmax(1), 8),
    "log_softmax": (lambda: nn.LogSoftmax(1), 8),
    "glu": (lambda: nn.GLU(1), 4),
    "a gate of chunks": (of(gated), 4),
    "norm over channels": (of(lambda x: F.normalize(x, dim=1)), 8),
    "channel statistics": (of(lambda x: (x - x.mean(1, True)) / (x.var(1, keepdim=True) + 1)), 8),
    "the largest channels": (of(lambda x: x.topk(3, 1).values), 3),
    "sums of channels": (of(lambda x: x.cumsum(1) + x.logsumexp(1, True)), 8),
    "channels last": (of(laid_last), 8),
    "einsum": (of(summed), 8),
    "channel shuffle": (lambda: nn.ChannelShuffle(4), 8),
    "some channels": (of(lambda x: x.sigmoid().index_select(1, torch.tensor([5, 1, 1]))), 3),
    "again": (of(lambda x: x.tanh().sin().repeat(1, 2, 1, 1)), 16),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), 2),
    "pixel unshuffle": (of(lambda x: F.pixel_unshuffle(F.pad(x, (0, 1, 0, 1)), 2)), 32),
    "pixels by views": (of(by_hand), 2),
    "halves by views": (of(by_hand_down), 8),
    "every other row": (of(quarters), 16),
    "upside down": (of(lambda x: x.flip(2).sin()), 8),
    "dilated pooling": (lambda: nn.MaxPool2d(3, 1, 1, dilation=2), 8),
    "strided dilated pooling": (lambda: nn.MaxPool2d(4, (2, 3), (2, 1), (2, 1), ceil_mode=True), 8),
    "mean by another number": (of(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5)), 8),
    "mean without padding": (
        of(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, divisor_override=2)), 8
    ),
    "power mean": (lambda: nn.LPPool2d(2, 3, 2, ceil_mode=True), 8),
    "reflected": (lambda: nn.ReflectionPad2d((3, 1, 2, 4)), 8),
    "replicated": (lambda: nn.ReplicationPad2d((3, 1, 2, 4)), 8),
    "padded by ones": (of(lambda x: F.pad(x.sin(), (2, -1, 3, 5), value=1.0)), 8),
    "reflected convolution": (lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), 8),
    "local response": (lambda: nn.LocalResponseNorm(5), 8),
    "unfolded": (of(lambda x: x.unfold(2, 3, 1).unfold(3, 3, 2).amax((-1, -2))), 8),
    "bicubic": (resized(scale_factor=2, mode="bicubic"), 8),
    "bicubic by a half": (resized(scale_factor=0.5, mode="bicubic"), 8),
    "bicubic by a third": (resized(scale_factor=1 / 3, mode="bicubic"), 8),
    "bicubic by 3": (resized(scale_factor=(3, 1.7), mode="bicubic"), 8),
    "bicubic with corners": (resized(scale_factor=2, mode="bicubic", align_corners=True), 8),
    "bicubic to a size": (resized(size=(27, 20), mode="bicubic"), 8),
    "bicubic to a size with corners": (
        resized(size=(27, 35), mode="bicubic", align_corners=True), 8
    ),
    "bicubic, smoothed": (resized(scale_factor=0.5, mode="bicubic", antialias=True), 8),
    "bilinear, smoothed": (resized(scale_factor=(0.25, 2), mode="bilinear", antialias=True), 8),
    "bilinear of a softmax": (
        of(lambda x: F.interpolate(x.softmax(1), scale_factor=4, mode="bilinear")), 8
    ),
    "bilinear by 1.7 of a softmax": (
        of(lambda x: F.interpolate(x.softmax(1), scale_factor=1.7, mode="bilinear")), 8
    ),
    "corners of a softmax": (
        of(lambda x: F.interpolate(x.softmax(1), size=31, mode="bilinear", align_corners=True)), 8
    ),
    "nearest of a softmax": (of(lambda x: F.interpolate(x.softmax(1), scale_factor=1.3)), 8),
    "nearest by 2 of a softmax": (of(lambda x: F.interpolate(x.softmax(1), scale_factor=2)), 8),
    "the exactly nearest": (resized(scale_factor=1.5, mode="nearest-exact"), 8),
}  # fmt: skip
#: What needs all of an axis.
WHOLE = {
    "softmax of a row": (of(lambda x: x.softmax(3)), 8),
    "mean": (of(lambda x: x.sin() - x.sin().mean((2, 3), keepdim=True)), 8),
    "circular": (lambda: nn.CircularPad2d(1), 8),
    "rolled": (of(lambda x: x.roll(1, 2)), 8),
    "sorted": (of(lambda x: x.sort(2).values), 8),
}


def around(name, dtype):
    """What is asked for between convolutions, one of them strided."""
    middle, channels = {**CASES, **WHOLE}[name]
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        middle(), nn.Conv2d(channels, 2, 3, padding=1),
    ).eval().to(dtype)  # fmt: skip


#: Where blocks begin: some are smaller than a halo, a side is not cut, dtypes take turns.
CUTS = {
    "float64": [(3, 5, 9), (1, 12)],
    "float32": [(7, 11), ()],
}


@pytest.fixture
def infer_in(monkeypatch, fewest_plans):
    """The result in blocks that begin at these places of each axis."""
    calls = import_module("ooc_cudnn.torch.runtime.ready_model")

    def made(model, x, cuts, limit=None):
        counts = []

        def planned(step, under):
            shape = step.tensors[step.outputs[0]].shape
            places = (
                (0, *(at for at in own if at < extent), extent)
                for own, extent in zip(cuts, shape[2:], strict=True)
            )
            plan = TilePlan((tuple(range(shape[0] + 1)), (0, shape[1]), *places), None, 1.0)
            counts.append(plan.count)
            return plan

        monkeypatch.setattr(calls, "plan_tiles", planned)
        found = ooc.infer(model, x, memory_limit=limit)
        assert min(counts) > 1
        return found

    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        yield made


@pytest.mark.parametrize("dtype", CUTS)
@pytest.mark.parametrize("name", CASES)
def test_blocks_are_those_of_the_whole_image(name, dtype, infer_in):
    model = around(name, getattr(torch, dtype))
    x = torch.randn(1 + (dtype == "float32"), 3, 27, 31, dtype=getattr(torch, dtype))
    with torch.no_grad():
        found, expected = infer_in(model, x, CUTS[dtype]), model(x)
    close(found, expected, name, tolerance={"float64": 1e-12, "float32": 1e-5}[dtype])


@pytest.mark.parametrize("factor", [2, 3, 4, 8])
def test_nearest_rows_of_blocks_of_any_size(factor, infer_in):
    """PyTorch takes others where a result is twice as large as what it reads, by any factor."""

    class Model(nn.Sequential):
        def forward(self, x):
            return self[0](F.interpolate(x.softmax(1), scale_factor=factor))

    x = torch.randn(1, 2, 7, 6, dtype=torch.float64)
    model = Model(nn.Conv2d(2, 2, 1)).eval().double()
    with torch.no_grad():
        found = infer_in(model, x, [(1, 2, 4, 5, 8, 14), (2, 8, 16, 17)])
        close(found, model(x), "result", tolerance=1e-12)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("cuts", [[(), (1,)], [(1,), (1,)], [(), (3,)], [(1, 2), (1, 2, 3)]])
def test_smoothed_blocks_one_element_wide(mode, cuts, infer_in):
    """Of a result that is no wider PyTorch itself smooths the rows wrongly, on the host."""
    smoothed = Of(lambda x: F.interpolate(x, scale_factor=0.5, mode=mode, antialias=True))
    model = nn.Sequential(nn.Conv2d(2, 3, 1), smoothed).eval().double()
    x = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        close(infer_in(model, x, cuts), model(x), mode, tolerance=1e-12)


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_whole_images_is_told(name, infer_in):
    model = around(name, torch.float64)
    with pytest.raises(ValueError, match="needs whole images"):
        infer_in(model, torch.randn(1, 3, 27, 31, dtype=torch.float64), CUTS["float64"])


@pytest.mark.parametrize("name", ["clamped", "shuffled", "reflected", "of rows that lie last"])
def test_an_input_that_pytorch_reads_itself_comes_in_parts(name, infer_in):
    """Its axes may be others than those of the result."""
    function = {
        "clamped": lambda x: x.clamp(-1, 1),
        "shuffled": lambda x: F.pixel_unshuffle(x[..., :26, :30], 2)[:, :3],
        "reflected": lambda x: F.pad(x, (2, 1, 2, 1), "reflect"),
        "of rows that lie last": lambda x: x.transpose(2, 3).sin(),
    }[name]
    model = nn.Sequential(Of(function), nn.Conv2d(3, 2, 3)).eval().double()
    x = torch.randn(1, 3, 27, 31, dtype=torch.float64)
    with torch.no_grad():
        close(infer_in(model, x, CUTS["float64"]), model(x), name, tolerance=1e-12)


def test_what_takes_images_together_is_not_cut_along_them(infer_in):
    model = nn.Sequential(
        nn.Conv2d(3, 2, 3), Of(lambda x: x.sin() - x.sin().mean(0, True)), nn.Conv2d(2, 2, 1)
    ).eval().double()  # fmt: skip
    with pytest.raises(ValueError, match="takes images together"):
        infer_in(model, torch.randn(3, 3, 9, 9, dtype=torch.float64), [(), ()])


@pytest.mark.parametrize("seed", range(6))
def test_drawn_models_are_exact_in_drawn_blocks(seed, infer_in):
    """Whatever follows what, under a limit that leaves little more than a block needs."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    names = [name for name in CASES if CASES[name][1] == 8]
    layers = [nn.Conv2d(2, 8, 3, padding=2)]
    for name in random.choice(names, 2):
        stride = int(random.integers(1, 3))
        layers += [nn.Conv2d(8, 8, 3, stride, 1), CASES[name][0]()]
    model = nn.Sequential(*layers, nn.Conv2d(8, 2, 1)).eval().double()
    x = torch.randn(1, 2, *map(int, random.integers(24, 40, 2)), dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        cuts = [sorted({int(at) for at in random.integers(1, side, 2)}) for side in (9, 9)]
        found = infer_in(model, x, cuts, "256KiB")
    close(found, expected, "result", tolerance=1e-12)
