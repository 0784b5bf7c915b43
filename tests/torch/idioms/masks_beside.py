"""Functions that make a differentiable result, and one beside it that has no gradient.

Both are read together while the first is read elsewhere, too: backward runs once in PyTorch, with
the sum of all gradients, and these backwards are no multiples of theirs.
"""

import torch
from torch import nn

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, infer, model, train


class Beside(torch.autograd.Function):
    """Twice a map, and something of it that has no gradient."""

    @staticmethod
    def forward(ctx, x, of):
        other = of(x.detach())
        ctx.mark_non_differentiable(other)
        return 2 * x, other

    @staticmethod
    def backward(ctx, dy, _):
        return (2 * dy).tanh(), None


class OfMean(Beside):
    """A number with a gradient, and a mask."""

    @staticmethod
    def forward(ctx, x):
        other = x > 0
        ctx.mark_non_differentiable(other)
        ctx.shape = x.shape
        return x.mean(), other

    @staticmethod
    def backward(ctx, dy, _):
        return dy.tanh().expand(ctx.shape)


class OfTwo(Beside):
    """Two maps with gradients, and a mask."""

    @staticmethod
    def forward(ctx, x):
        other = x > 0
        ctx.mark_non_differentiable(other)
        return 2 * x, 3 * x, other

    @staticmethod
    def backward(ctx, dy, dz, _):
        return (dy + 2 * dz).tanh()


class Gated(torch.autograd.Function):
    """A map times a parameter; beside it integers, or whatever there is of no gradient."""

    @staticmethod
    def forward(ctx, x, weight, *beside):
        ctx.save_for_backward(x, weight)
        return x * weight, *(of(x) for of in beside)

    @staticmethod
    def backward(ctx, dy, *others):
        x, weight = ctx.saved_tensors
        gradient = (dy * x).sum((0, 2, 3))[:, None, None]
        return (dy * weight).tanh(), gradient, *(None for _ in others)


@torch.library.custom_op("ooc_cudnn_idioms::with_mask", mutates_args=())
def with_mask(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x > 0


with_mask.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)))
with_mask.register_autograd(lambda ctx, dy, _: (2 * dy).tanh())


def positive(x):
    return x > 0


def beside(s, x, of=positive):
    return Beside.apply(s.c(x), of)


def times(of):
    """The map to a layer, and times what is beside it."""

    def f(s, x):
        y, other = beside(s, x, of)
        return s.d(y) + y * other

    return f


def operator(s, x):
    y, mask = with_mask(s.c(x))
    return s.d(y * mask) + s.e(y * ~mask)


def by_its_places(s, x):
    y, places = beside(s, x, lambda x: x.argmax(1, keepdim=True))
    return s.d(y) + y.gather(1, places)


def in_finer_type(s, x):
    y, other = beside(s, x, lambda x: x.double().abs())
    return s.d(y) + (y * other).float()


def by_spectra(s, x):
    y, spectra = beside(s, x, torch.fft.rfft)
    return s.d(y) + torch.fft.irfft(torch.fft.rfft(y) * spectra, n=6)


def of_a_number(s, x):
    mean, mask = OfMean.apply(s.c(x))
    return s.d(x * mean) + s.e(x + mean) * mask


def of_two(s, x):
    y, z, mask = OfTwo.apply(s.c(x))
    return s.d(y) + s.e(z) + torch.where(mask, y, z)


def mask_is_an_output(s, x):
    y, mask = beside(s, x)
    return mask, s.d(y), y


def mask_is_asked_first(s, x):
    y, mask = beside(s, x)
    return mask, y.cumsum(1) * mask, y


def mask_is_with_numbers(s, x):
    y, mask = beside(s, x)
    return s.w * mask[:, :, 0, 0].sum(0), y.cumsum(1) * y, y.mean((1, 2, 3))


def in_the_weights(s, x):
    y, mask = Beside.apply(s.c.weight, positive)
    return nn.functional.conv2d(x, y) + nn.functional.conv2d(x.sin(), y * mask)


def gated(*beside):
    """What a layer makes of the map, and all that is beside it, as outputs."""

    def f(s, x):
        y, *others = Gated.apply(s.c(x), s.w[:, None, None], *beside)
        return s.d(y), *others

    return f


def by_the_parameter(s, x):
    """The integers alone, of which one has two readers."""
    _, places, mask = Gated.apply(s.c(x), s.w[:, None, None], lambda x: x.argmax(1), positive)
    return s.d(x * mask) * mask + places[:, None], places


def large(x):
    return (x[:, 0] > 0) * (2**62 + 12345) - 2**40


def of(name, f, steps=train, **how):
    """An idiom with convolutions as large as the image."""
    parts = {each: conv(padding=1) for each in ("c", "d", "e")}
    parts["w"] = lambda: nn.Parameter(drawn(4, seed=5))
    return Idiom(f"beside a result: {name}", model(f, **parts), steps, **how)


CASES = [
    of("a mask", times(positive)),
    of("a number", times(lambda x: x.abs().max())),
    of("a row", times(lambda x: x.mean((0, 2, 3))[:, None, None])),
    of("a map", times(torch.abs)),
    of("places", by_its_places),
    of("a finer type", in_finer_type),
    of("spectra", by_spectra),
    of("a mask, by an operator of the user's", operator),
    of("a mask, of a number", of_a_number),
    of("a mask, of two maps", of_two),
    of("a mask that is an output", mask_is_an_output),
    of("a mask that is an output before the map", mask_is_asked_first),
    of("a mask that makes a row", mask_is_with_numbers),
    of("a mask, of a parameter", in_the_weights),
    of("a mask that is an output, of a map and a parameter", gated(positive)),
    of("places and integers of a map and a parameter", gated(lambda x: x.argmax(1), large)),
    of("small integers of a map and a parameter", gated(torch.Tensor.char, torch.Tensor.int)),
    of("a number of them, of a map and a parameter", gated(lambda x: (x > 0).sum())),
    of("integers alone, of a map and a parameter", by_the_parameter),
    of("integers alone, without gradients", by_the_parameter, infer, beyond=REFUSED),
]
