"""Operations of several results: PyTorch calls backward once, with the gradients of all."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, image, in_parts, leaf, loss_of, model, train


class Clipped(torch.autograd.Function):
    """Two multiples, of which the sum of gradients is clipped."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx, dy, dz):
        return (dy + 3 * dz).clamp(-0.5, 0.5)


class Plus(torch.autograd.Function):
    """One result, of whose gradient backward is no multiple."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy + 1


class ByNorm(torch.autograd.Function):
    """Several maps as they are, whose gradients are scaled to a common norm."""

    @staticmethod
    def forward(ctx, *xs):
        return tuple(x * 1 for x in xs)

    @staticmethod
    def backward(ctx, *dys):
        norm = torch.sqrt(sum(each.square().sum() for each in dys))
        return tuple(each / (1e-3 + norm) for each in dys)


class Parts(torch.autograd.Function):
    """A map, what lies in other shapes, and what has no gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        index = x.argmax(1)
        ctx.mark_non_differentiable(index)
        return x * w.view(4, 1, 1), x.mean((1, 2, 3)), x.square().mean(), index

    @staticmethod
    def backward(ctx, dy, dmean, dsquare, _):
        x, w = ctx.saved_tensors
        dx = (dy * w.view(4, 1, 1) + dmean[:, None, None, None] + dsquare * x).clamp(-1, 1)
        return dx, (dy * x).sum((0, 2, 3)) * (1 + dmean.abs().sum())


class WithNone(Clipped):
    """The same, of which one has no elements."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return 2 * x, x[:, :0].sum(0)[:, :0]

    @staticmethod
    def backward(ctx, dy, dz):
        return dy + dz.sum() + 1


class Shaped(torch.autograd.Function):
    """Two results, in given shapes and types."""

    @staticmethod
    def forward(ctx, x, shape, dtype):
        ctx.shape = x.shape
        return x * 1, (2 * x).to(dtype).reshape(shape)

    @staticmethod
    def backward(ctx, dy, dz):
        return (dy + dz.real.reshape(ctx.shape).to(dy.dtype)).sign(), None, None


@torch.library.custom_op("ooc_cudnn_idioms::split", mutates_args=())
def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


@split.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


split.register_autograd(lambda ctx, dy, dz: (dy + 2 * dz).clamp(-0.2, 0.2))


def layers(s, *ys):
    """The sum of layers, one for each."""
    return sum(layer(y) for layer, y in zip((s.d, s.e, s.f2), ys, strict=False))


def of_parts(s, x):
    y, mean, square, index = Parts.apply(s.c(x), s.w)
    return s.d(y) * mean[:, None, None, None] + s.e(y.relu() * square) + index[:, None] % 2


def of_numbers(s, x):
    _, mean, square, _ = Parts.apply(s.c(x), s.w)
    return mean, square


def by_its_mean(s, x):
    mean = Plus.apply(s.c(x)).mean()
    return s.d(x * mean) + s.e(x + mean)


def by_a_hook(s, x):
    mean = s.c(x).mean()
    mean.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return s.d(x * mean) + s.e(x + mean)


def in_a_loop(s, x):
    for _ in range(3):
        x = layers(s, *Clipped.apply(s.c(x)))
    return x


def with_hooks(s, x):
    y, z = Clipped.apply(s.c(x))
    y.register_hook(lambda gradient: 2 * gradient)
    z.register_hook(lambda gradient: gradient.clamp(0))
    return layers(s, y, z)


def by_spectra(s, x):
    y = torch.fft.fft2(s.c(x))
    y.register_hook(lambda gradient: gradient * gradient.abs())
    return s.d(y.real) + s.e(y.conj().imag)


def in_place(s, x):
    y, z = Clipped.apply(s.c(x))
    return layers(s, y.mul_(2), z.relu_())


def by_vmap(s, x):
    return torch.vmap(lambda y: (y * s.w[:, None, None], y.softmax(0) * s.v[:, None, None]))(s.c(x))


def of_lstm(s, x):
    y, (h, c) = s.lstm(s.c(x).mean(3).mT)
    return s.d(y.mT[:, :, :, None]), h.sin(), c * h


def frozen(run):
    run.model.c.requires_grad_(False)
    for seed in range(2):
        run.backward(loss_of(run(image(seed))))


def under_autocast(run):
    for seed in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(leaf(image(seed)))
        run.backward(loss_of(outputs))


def of(name, f, steps=train, *expected, computed_in=None, **parts):
    """An idiom with convolutions as large as the image."""
    parts = {each: conv(padding=1) for each in ("c", "d", "e", "f2")} | parts
    parts["w"] = lambda: nn.Parameter(drawn(4, seed=5))
    return Idiom(
        f"several results: {name}", model(f, **parts), steps, *expected, computed_in=computed_in
    )


CASES = [
    of("both are outputs", lambda s, x: Clipped.apply(s.c(x))),
    of("outputs, in parts", lambda s, x: Clipped.apply(s.c(x)), in_parts),
    of("each to a layer", lambda s, x: layers(s, *Clipped.apply(s.c(x)))),
    of("one that nobody reads", lambda s, x: s.d(Clipped.apply(s.c(x))[1])),
    of(
        "one that is detached",
        lambda s, x: layers(s, *(e + e.detach() for e in ByNorm.apply(s.c(x), s.d(x).detach()))),
    ),
    of("a common norm", lambda s, x: layers(s, *ByNorm.apply(s.c(x), s.d(x), s.e(x)))),
    of(
        "halves of each to a layer",
        lambda s, x: layers(
            s,
            *(
                torch.cat(e, 1)
                for e in zip(*(y.chunk(2, 1) for y in Clipped.apply(s.c(x))), strict=True)
            ),
        ),
    ),
    of(
        "halves of one, each to a layer",
        lambda s, x: layers(
            s, *(F.pad(e, (0, 0, 0, 0, 1, 1)) for e in Plus.apply(s.c(x)).chunk(2, 1))
        ),
    ),
    of("maps, numbers, and indices", of_parts),
    of("numbers that are outputs", of_numbers),
    of("numbers that are outputs, in parts", of_numbers, in_parts),
    of("a number of one result, read by two layers", by_its_mean),
    of("a number with a hook, read by two layers", by_a_hook),
    of(
        "six axes",
        lambda s, x: layers(
            s,
            *(e.reshape(x.shape) for e in Shaped.apply(s.c(x), (2, 2, 2, 1, 7, 6), torch.float32)),
        ),
    ),
    of(
        "a finer type",
        lambda s, x: layers(
            s, *(e.float() for e in Shaped.apply(s.c(x), (2, 4, 7, 6), torch.float64))
        ),
    ),
    of(
        "a complex one",
        lambda s, x: layers(
            s, *(e.real for e in Shaped.apply(s.c(x), (2, 4, 7, 6), torch.complex64))
        ),
    ),
    of("spectra with a hook, each to a layer", by_spectra),
    of(
        "one without elements",
        lambda s, x: (lambda y, z: s.d(y) + z.sum())(*WithNone.apply(s.c(x))),
        train,
        REFUSED,
        "networks hold none",
    ),
    of("in a loop", in_a_loop),
    of("with hooks", with_hooks),
    of("changed in place", in_place),
    of(
        "in a checkpoint",
        lambda s, x: layers(
            s, *checkpoint(lambda x: Clipped.apply(s.c(x)), x, use_reentrant=False)
        ),
    ),
    of("an operator of the user's", lambda s, x: layers(s, *split(s.c(x)))),
    of("of what is frozen", lambda s, x: layers(s, *ByNorm.apply(s.c(x), s.d(x))), frozen),
    of(
        "under autocast",
        lambda s, x: layers(s, *Clipped.apply(s.c(x))),
        under_autocast,
        computed_in=torch.bfloat16,
    ),
    of("two of vmap, in parts", by_vmap, in_parts, v=lambda: nn.Parameter(drawn(4, seed=6))),
    of(
        "two of vmap",
        lambda s, x: layers(s, *torch.vmap(lambda y: (y * y.mean(), y.softmax(0)))(s.c(x))),
    ),
    of("all of an LSTM", of_lstm, lstm=lambda: nn.LSTM(4, 4, batch_first=True)),
]
if torch.__version__ >= "2.13":  # before, PyTorch has no derivative of aminmax
    CASES.append(
        of(
            "their least and largest, by images",
            lambda s, x: layers(
                s, *(e.expand(-1, 4, -1, -1) for e in s.c(x).aminmax(dim=1, keepdim=True))
            ),
        )
    )
