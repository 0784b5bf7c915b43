"""Idioms of tensors that backward reads and that change in place before it."""

from __future__ import annotations

import torch
from torch import nn

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.late_reads import by_a_checkpoint, by_a_hook
from tests.torch.idioms.models import conv, image, leaf, loss_of, model, train

LATE = "TorchDynamo's own backend runs it in backward"


class Kept(torch.autograd.Function):
    """Reads in backward what it was given, and did not save."""

    @staticmethod
    def forward(ctx, y, other):
        ctx.other = other
        return y * 1

    @staticmethod
    def backward(ctx, gradient):
        gain = ctx.other if isinstance(ctx.other, torch.Tensor) else ctx.other.gain
        return gradient * gain, None


class Mean(torch.autograd.Function):
    """Reads one of its results in backward, which it did not save."""

    @staticmethod
    def forward(ctx, y):
        ctx.mean = y.detach().mean((2, 3), keepdim=True)
        ctx.mark_non_differentiable(ctx.mean)
        return y * 2, ctx.mean

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.mean


def holding(f, **parts):
    return model(
        f,
        c=conv(padding=1),
        d=conv(padding=1),
        n=lambda: nn.Buffer(torch.ones(1)),
        k=lambda: nn.Buffer(torch.full((1,), 2.0)),
        t=lambda: None,
        **parts,
    )


def between(change, *, make=dict):
    """Steps that change something between forward and backward: the model, arguments, outputs."""

    def steps(run):
        others = make()
        made = run(leaf(image()), **others)
        change(run.model, others, made)
        run.backward(loss_of(made))
        run.model.zero_grad()

    return steps


def a_forward_between(run):
    first = run(leaf(image()))
    run(image(1))
    run.backward(loss_of(first))


def by_default(y, t):
    z = y * 1
    z.register_hook(lambda gradient, t=t: gradient * t)
    return z * 1


def returned(way):
    def forward(s, x):
        y, t = s.c(x), x.detach().mean()
        return way(y, t), t

    return forward


def needed_by_nobody(way):
    def forward(s, x):
        y, t = s.c(x), x.detach().mean()
        way(y * 2, t)
        return y, t

    return forward


def on_self(s, x):
    y, t = s.c(x), x.detach().mean()
    s.t = t
    return by_a_hook(y, lambda: t)


def a_view_returned(s, x):
    y = s.c(x)
    t = y.detach()
    return by_a_hook(y, lambda: t[:, :1]), t[0]


READ = {
    "the variable of a hook": lambda y, t: by_a_hook(y, lambda: t),
    "the default of a hook": by_default,
    "a Function": lambda y, t: Kept.apply(y, t),
    "the variable of a checkpoint": lambda y, t: by_a_checkpoint(y, lambda: t),
}


def doubled_at_the_start(way, name="n"):
    def forward(s, x):
        getattr(s, name).mul_(2)
        return way(s.c(x), getattr(s, name))

    return forward


def a_clone(s, x):
    s.n.mul_(2)
    return by_default(s.c(x), s.n.clone())


def double_the_buffer(m, others, made):
    m.n.mul_(2)


def double_the_last(m, others, made):
    made[-1].mul_(5)


def though(name):
    return "" if "checkpoint" in name else LATE


CASES = [
    *(
        Idiom(
            f"a tensor that forward returns changes in place: {name}",
            holding(returned(way)),
            between(double_the_last),
            REFUSED,
            though(name),
        )
        for name, way in READ.items()
    ),
    *(
        Idiom(
            f"a tensor that forward returns changes in place, read for what nobody needs: {name}",
            holding(needed_by_nobody(READ[name])),
            between(double_the_last),
        )
        for name in ("the variable of a hook", "the default of a hook", "a Function")
    ),
    *(
        Idiom(f"a tensor that forward returns: {name}", holding(returned(way)), train)
        for name, way in READ.items()
    ),
    Idiom(
        "a tensor that forward keeps changes in place",
        holding(on_self),
        between(lambda m, others, made: m.t.mul_(5)),
        REFUSED,
        LATE,
    ),
    Idiom(
        "a view that forward returns changes in place, and its base is read",
        holding(a_view_returned),
        between(double_the_last),
        REFUSED,
        LATE,
    ),
    Idiom(
        "a result that a Function reads changes in place",
        holding(lambda s, x: Mean.apply(s.c(x))),
        between(double_the_last),
        REFUSED,
        LATE,
    ),
    *(
        Idiom(
            f"a buffer that forward changes in place changes again: {name}",
            holding(doubled_at_the_start(way)),
            between(double_the_buffer),
            REFUSED,
            though(name),
        )
        for name, way in READ.items()
    ),
    *(
        Idiom(
            f"a buffer that the next forward changes in place: {name}",
            holding(doubled_at_the_start(way)),
            a_forward_between,
            REFUSED,
            though(name),
        )
        for name, way in READ.items()
    ),
    *(
        Idiom(
            f"a buffer that forward changes in place: {name}",
            holding(doubled_at_the_start(way)),
            train,
        )
        for name, way in READ.items()
    ),
    Idiom(
        "a clone of a buffer that forward changes in place is read",
        holding(a_clone),
        a_forward_between,
    ),
]
