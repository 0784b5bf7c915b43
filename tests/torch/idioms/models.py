"""What the idioms are made of: small models, inputs, and the usual steps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.torch.idioms.judge import EQUAL, Idiom


def drawn(*shape, seed=0):
    """A tensor of normal numbers, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


#: The number of images, and of their rows, that come next.
_sizes = itertools.repeat((2, 7))


def image(seed=0):
    """Two small images of four channels; or others within `of_several_sizes`."""
    images, rows = next(_sizes)
    return drawn(images, 4, rows, 6, seed=seed)


def of_several_sizes(idiom):
    """The idiom, done twice, with images of another number or size in each call."""

    def make():
        global _sizes
        _sizes = itertools.cycle([(2, 7), (3, 7), (5, 7), (4, 8), (3, 9)])
        return idiom.make()

    def steps(run):
        global _sizes
        try:
            idiom.steps(run)
            idiom.steps(run)
        finally:
            _sizes = itertools.repeat((2, 7))

    return replace(idiom, make=make, steps=steps)


class Model(nn.Module):
    """A forward given as a function of the module and its arguments, with attributes by name."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.f(self, *args, **kwargs)


def model(f, **parts):
    """A function that makes a Model: parts are given as functions that make them."""
    return lambda: Model(f, **{name: make() for name, make in parts.items()})


def conv(before=4, after=4, size=3, **how):
    """A function that makes a convolution."""
    return lambda: nn.Conv2d(before, after, size, **how)


def held(value):
    """A function that gives a plain value: a number, a function, a string."""
    return lambda: value


def loss_of(outputs):
    """A number of all outputs that have a gradient, each element with a weight of its own."""
    total = 0.0
    for each in pytree.tree_leaves(outputs):
        if torch.is_tensor(each) and each.requires_grad and each.dtype.is_floating_point:
            weights = torch.linspace(0.5, 1.5, max(each.numel(), 1))[: each.numel()]
            total = total + (each.float() * weights.reshape(each.shape)).sum()
    return total


def train(run, *inputs, calls=2, **how):
    """Call and go backward, twice, with other numbers; inputs ask for gradients."""
    for seed in range(calls):
        args = [leaf(each) for each in inputs] or [leaf(image(seed))]
        outputs = run(*args, **how)
        loss = loss_of(outputs)
        if torch.is_tensor(loss):
            run.backward(loss)


def leaf(value):
    """A copy of a tensor that asks for a gradient, if it can have one; other values as they are."""
    if not torch.is_tensor(value):
        return value
    return value.detach().clone().requires_grad_(value.dtype.is_floating_point)


def training_on(*makers, calls=2, **how):
    """Steps that train on given inputs, each given as a function or a plain value."""

    def steps(run):
        train(run, *(each() if callable(each) else each for each in makers), calls=calls, **how)

    return steps


def in_parts(run):
    """Gradients of one output, then of the other, then of both."""
    for which in ((0,), (1,), (0, 1)):
        outputs = run(leaf(image()))
        run.backward(loss_of([outputs[at] for at in which]))


def forward(run):
    """Call twice, with gradients allowed and none asked of inputs."""
    for seed in range(2):
        run(image(seed))


def infer(run):
    """Call twice in eval mode without gradients."""
    run.model.eval()
    with torch.no_grad():
        forward(run)


def changed(change, before=train, after=train):
    """Steps with a change between: given the model."""

    def steps(run):
        before(run)
        change(run.model)
        after(run)

    return steps


def of_conv(name, f, expected=EQUAL, steps=train, **how):
    """An idiom on what a convolution makes of x: f(y, x)."""
    return Idiom(name, model(lambda s, x: f(s.c(x), x), c=conv()), steps, expected, **how)
