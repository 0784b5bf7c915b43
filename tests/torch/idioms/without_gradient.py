"""A function whose backward returns None for what another function has made.

PyTorch calls the backward of that one with zeros, and hands on None everywhere else.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.functions import StraightThrough
from tests.torch.idioms.judge import DIFFERENT, Idiom
from tests.torch.idioms.models import conv, drawn, image, in_parts, leaf, loss_of, model, train
from tests.torch.idioms.several_results import Clipped, Plus, split


class First(torch.autograd.Function):
    """A sum, whose gradient goes to its first operand alone."""

    @staticmethod
    def forward(ctx, x, other):
        return 2 * x + other

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Neither(torch.autograd.Function):
    """What has a history, and hands no gradient on."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return None


class Apart(torch.autograd.Function):
    """Two results; neither hands a gradient to the second operand."""

    @staticmethod
    def forward(ctx, x, other):
        return x + other, x - other

    @staticmethod
    def backward(ctx, dy, dz):
        return dy + dz, None


@torch.library.custom_op("ooc_cudnn_idioms::first", mutates_args=())
def first(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return 2 * x + other


first.register_fake(lambda x, other: torch.empty_like(x))
first.register_autograd(lambda ctx, dy: (dy, None))


def beside(made):
    """A layer's result, to which `made(s, x)` is added without a gradient."""
    return lambda s, x: First.apply(s.d(x), made(s, x))


def hooked(tensor):
    tensor.register_hook(lambda gradient: 2 * gradient)
    return tensor


def by_parameters(made):
    """Two outputs, of which the second alone depends on what is made of parameters."""
    return lambda s, x: (s.c(x), s.d(x) * made(s))


def within(function, s, x, **how):
    return checkpoint(lambda x: function(s.c(x)), x, **how)


def of_a_function(run):
    """The second argument is made by a function before the call; a loss of each output alone."""
    for which in (0, 1, 0):
        other = leaf(image(1))
        outputs = run(leaf(image()), Plus.apply(Plus.apply(other).sin()) * 2)
        run.backward(loss_of(outputs[which]))
        run.note(other.grad)


def of(name, f, steps=train, **how):
    parts = {each: conv(padding=1) for each in ("c", "d", "e")}
    parts |= {each: (lambda: nn.Parameter(drawn(4, 1, 1, seed=5))) for each in ("w", "v")}
    return Idiom(f"None for what is made: {name}", model(f, **parts), steps, **how)


CASES = [
    of("by a function", beside(lambda s, x: StraightThrough.apply(s.c(x)))),
    of("by one that adds to gradients", beside(lambda s, x: Plus.apply(s.c(x)))),
    of("by a layer", beside(lambda s, x: s.c(x).relu())),
    of("by a function and a layer", beside(lambda s, x: s.e(Plus.apply(s.c(x)) * s.w))),
    of("by one of several results", beside(lambda s, x: Clipped.apply(s.c(x))[1] * 2)),
    of("by a function of parameters", beside(lambda s, x: Plus.apply(s.w * 3))),
    of("by an operator of the user's", beside(lambda s, x: split(s.c(x))[0])),
    of("to an operator", lambda s, x: first(s.d(x), s.e(Plus.apply(s.c(x))))),
    of("by two functions", beside(lambda s, x: Plus.apply(Plus.apply(s.c(x))) + Plus.apply(s.w))),
    of(
        "and read by others",
        lambda s, x: (lambda y: First.apply(s.d(x), y) + s.e(y))(Plus.apply(s.c(x))),
    ),
    of("and nothing else", lambda s, x: Neither.apply(Plus.apply(s.c(x))) + s.d(x)),
    of("by a function, of two", lambda s, x: Apart.apply(s.d(x), Plus.apply(s.c(x))), in_parts),
    of("of parameters, for another output", by_parameters(lambda s: Plus.apply(s.w)), in_parts),
    of(
        "of parameters by an operator",
        by_parameters(lambda s: split(s.w * 2)[1] + Clipped.apply(s.v)[0]),
        in_parts,
    ),
    of(
        "of parameters, twice", by_parameters(lambda s: Plus.apply(Plus.apply(s.w).sin())), in_parts
    ),
    of("before the call", lambda s, x, other: (s.c(x), s.d(other)), of_a_function),
    of("of parameters with a hook", by_parameters(lambda s: hooked(s.w * 1)), in_parts),
    of(
        "of parameters, for a function of them",
        by_parameters(lambda s: First.apply(s.w, Plus.apply(s.v))),
        in_parts,
    ),
    of(
        "by a reentrant checkpoint",
        beside(lambda s, x: within(torch.relu, s, x, use_reentrant=True)),
        beyond=DIFFERENT,
    ),
    of("by a checkpoint", beside(lambda s, x: within(torch.relu, s, x, use_reentrant=False))),
    of(
        "by a function in a checkpoint",
        beside(lambda s, x: within(Plus.apply, s, x, use_reentrant=False)),
    ),
]
