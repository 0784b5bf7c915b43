"""Idioms of arguments and outputs: structures, views, the same tensor twice, None."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import torch
from torch import nn

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.models import (
    conv,
    drawn,
    forward,
    image,
    leaf,
    loss_of,
    model,
    of_conv,
    train,
    training_on,
)


class Pair(NamedTuple):
    scores: torch.Tensor
    features: torch.Tensor


Result = collections.namedtuple("Result", ["out", "aux"])


@dataclasses.dataclass
class Output:
    scores: torch.Tensor
    features: torch.Tensor | None = None


def in_dataclass(s, x):
    y = s.c(x)
    return Output(scores=y.mean((2, 3)), features=y)


def trained_by(loss):
    def steps(run):
        for seed in range(2):
            run.backward(loss(run(leaf(image(seed)))))

    return steps


def nested(s, x):
    y = s.c(x)
    return {"levels": [y, {"small": y.mean((2, 3))}], "none": None, "count": 3, "name": "a"}


class MaxWithIndex(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(1)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, gradient, _):
        (indices,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.shape).scatter(1, indices[:, None], gradient[:, None])


def with_maxima(s, x):
    y = s.c(x)
    values, indices = MaxWithIndex.apply(y)
    return s.d(y) * values[:, None] + indices[:, None], values, indices


def standardised(y, x):
    mean, deviation = y.mean(), y.std()
    return (y - mean) / deviation, mean, deviation


def of_numbers_of_numbers(y, x):
    """Numbers of the whole batch, each made of the one before and used by what comes behind."""
    mean = y.mean()
    centred = y - mean
    deviation = centred.square().mean().sqrt()
    half = deviation / 2
    return centred / half, half, mean, centred.square().mean() + half, deviation


def quantised(s, x):
    """As VQ-VAE does it: the codes, which of them, and a loss."""
    y = s.c(x)
    chosen = (y[:, None] - s.codes[:, :, None, None]).square().sum(2).argmin(1)
    codes = s.codes[chosen].permute(0, 3, 1, 2)
    loss = (codes - y.detach()).square().mean() + 0.25 * (codes.detach() - y).square().mean()
    return y + (codes - y).detach() + 0 * loss, chosen, loss


def with_auxiliary(s, x):
    s.aux = 0.0
    for _ in range(2):
        x = s.c(x)
        s.aux = s.aux + x.square().mean()
    return x + s.aux


def by_star(s, *xs, **more):
    y = sum(s.c(x) for x in xs)
    for name in sorted(more):
        y = y + more[name]
    return y


def called_in_many_ways(run):
    for count in (1, 3):
        xs = [leaf(image(seed)) for seed in range(count)]
        run.backward(loss_of(run(*xs)))
    run.backward(loss_of(run(leaf(image()), bias=torch.ones(4, 1, 1), a=2)))


def from_dict(s, batch):
    return s.c(batch["image"]) * batch.get("weight", 1.0)


def on_dicts(run):
    run.backward(loss_of(run({"image": leaf(image())})))
    run.backward(loss_of(run({"image": leaf(image()), "weight": leaf(drawn(4, 1, 1))})))


def on_lists(run):
    run.backward(loss_of(run([leaf(image(0)), leaf(image(1))])))
    run.backward(loss_of(run([leaf(image(0)), leaf(image(1)), leaf(image(2))])))


def same_input_twice(run):
    x = leaf(image())
    run.backward(loss_of(run(x, x)))


def view_of_the_other(run):
    x = leaf(drawn(4, 4, 7, 6))
    run.backward(loss_of(run(x[:2], x[2:])))


def with_none(s, x, mask=None):
    y = s.c(x)
    return y if mask is None else y * mask


def masked_or_not(run):
    for mask in (None, leaf(drawn(5, 4)), None):
        run.backward(loss_of(run(leaf(image()), mask)))


def write_into_output(run):
    with torch.no_grad():
        y = run(image())
        y.zero_()
        run.note(y)
        run(image())


def strided(run):
    for x in (image().transpose(2, 3), image().to(memory_format=torch.channels_last)):
        run.backward(loss_of(run(leaf(x))))
    run.backward(loss_of(run(drawn(2, 8, 7, 6)[:, ::2].requires_grad_())))
    run.backward(loss_of(run(drawn(1, 4, 7, 6).expand(2, -1, -1, -1).requires_grad_())))


CASES = [
    of_conv("a tuple and a list of outputs", lambda y, x: (y, [y * 2, y.mean()])),
    Idiom("dicts, lists, None and numbers as outputs", model(nested, c=conv()), train),
    of_conv("a NamedTuple", lambda y, x: Pair(y.mean((2, 3)), y)),
    of_conv("a namedtuple", lambda y, x: Result(y, None)),
    Idiom(
        "a dataclass",
        model(in_dataclass, c=conv()),
        trained_by(lambda out: out.scores.sum() + out.features.square().sum()),
    ),
    of_conv("an OrderedDict", lambda y, x: collections.OrderedDict(out=y, aux=y + 1)),
    of_conv("None alone", lambda y, x: None),
    of_conv("a number beside a tensor", lambda y, x: (y, x.shape[-1], x.shape)),
    of_conv("an input as an output", lambda y, x: (y, x)),
    Idiom("an input alone, unchanged", model(lambda s, x: x), forward),
    of_conv("a view of an input", lambda y, x: (y, x.flatten(1), x[:, :2])),
    of_conv("a view of an output", lambda y, x: (y, y.view(2, -1), y.transpose(1, 2))),
    Idiom("a parameter as an output", model(lambda s, x: (s.c(x), s.c.weight), c=conv()), train),
    Idiom(
        "a view of a parameter as an output",
        model(lambda s, x: (s.c(x), s.c.weight.flatten(1)), c=conv()),
        train,
    ),
    Idiom(
        "a buffer as an output",
        model(lambda s, x: (s.c(x), s.b), c=conv(), b=lambda: nn.Buffer(torch.ones(2))),
        train,
    ),
    of_conv("the same tensor twice", lambda y, x: (y, y)),
    of_conv("(x.detach(), y)", lambda y, x: (x.detach(), y)),
    of_conv("(y.detach(), y)", lambda y, x: (y.detach(), y)),
    of_conv("detached beside not", lambda y, x: (y.detach().mean(), y.mean())),
    of_conv("x.data", lambda y, x: y * y.data.abs().amax()),
    of_conv("bool and integer outputs", lambda y, x: (y > 0, y.argmax(1), y)),
    of_conv("a mean of the batch as an output, and used", lambda y, x: (y - y.mean(), y.mean())),
    of_conv("a loss as an output, and used", lambda y, x: (a := y.square().mean(), y + a, a + 1)),
    of_conv("a norm that is divided by", lambda y, x: (n := y.norm(), y / n)),
    of_conv("mean and deviation as outputs, and used", standardised),
    of_conv("numbers made of numbers as outputs", of_numbers_of_numbers),
    of_conv("a mean that is used detached", lambda y, x: (m := y.mean(), y - m.detach())),
    of_conv("a mask as an output, and used", lambda y, x: (m := y > y.mean(), (y * m).sin())),
    of_conv(
        "an index as an output, and used",
        lambda y, x: (i := y.argmax(1, keepdim=True), y.gather(1, i) * 2),
    ),
    Idiom(
        "maxima and where they are, used",
        model(with_maxima, c=conv(padding=1), d=conv(padding=1)),
        train,
    ),
    Idiom(
        "a vector-quantised map, its codes and a loss",
        model(quantised, c=conv(), codes=lambda: nn.Parameter(drawn(6, 4, seed=5))),
        train,
    ),
    Idiom(
        "a loss kept as an attribute, and used",
        model(with_auxiliary, c=conv(padding=1), aux=lambda: 0.0),
        train,
    ),
    Idiom(
        "a parameter expanded as another output",
        model(
            lambda s, x: (y := s.c(x), s.w.expand_as(y), s.w.exp().expand_as(y)),
            c=conv(),
            w=lambda: nn.Parameter(drawn(4, 1, 1, seed=5)),
        ),
        train,
    ),
    of_conv("a new tensor beside", lambda y, x: (y, torch.zeros(3), torch.arange(2))),
    Idiom(
        "one of two outputs in the loss",
        model(lambda s, x: (s.c(x), s.d(x)), c=conv(), d=conv()),
        trained_by(lambda out: out[0].sum()),
    ),
    Idiom(
        "a part of an output in the loss",
        model(lambda s, x: s.c(x), c=conv()),
        trained_by(lambda y: y[0, 1:3].square().sum()),
    ),
    Idiom("*args and **kwargs", model(by_star, c=conv()), called_in_many_ways),
    Idiom("a dict of tensors as an argument", model(from_dict, c=conv()), on_dicts),
    Idiom(
        "a list of tensors as an argument",
        model(lambda s, xs: s.c(torch.cat(xs, 0)), c=conv()),
        on_lists,
    ),
    Idiom(
        "the same input twice",
        model(lambda s, a, b: s.c(a) + s.d(b), c=conv(), d=conv()),
        same_input_twice,
    ),
    Idiom(
        "two views of one tensor as inputs",
        model(lambda s, a, b: s.c(a) + s.d(b), c=conv(), d=conv()),
        view_of_the_other,
    ),
    Idiom("an argument that may be None", model(with_none, c=conv()), masked_or_not),
    Idiom(
        "an argument that is not used",
        model(lambda s, x, unused: s.c(x), c=conv()),
        training_on(image, image),
    ),
    Idiom(
        "an image without a batch",
        model(lambda s, x: s.c(x), c=conv()),
        training_on(lambda: image()[0]),
    ),
    Idiom("inputs of other strides", model(lambda s, x: s.c(x), c=conv()), strided),
    Idiom("an output is written into", model(lambda s, x: s.c(x), c=conv()), write_into_output),
    Idiom(
        "a generator's items as outputs",
        model(lambda s, x: list(c(x) for c in (s.c, s.d)), c=conv(), d=conv()),  # noqa: C400
        train,
    ),
    of_conv(
        "a NumPy array as an output",
        lambda y, x: y.detach().numpy(),
        REFUSED,
        though="NumPy computes no gradients",
    ),
    of_conv("tolist() of an output", lambda y, x: (y, y.mean((0, 2, 3)).tolist()), REFUSED),
]
