"""Idioms of hooks on views that forward changes in place: autograd drops the hook of a view then.

To autograd the changed view is another one, of a changed base. What has read it before keeps the
hook, and so does a tensor that is no view.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.judge import EQUAL, EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import conv, model, train


def doubled(y):
    """Double the gradient of y."""
    y.register_hook(lambda gradient: gradient * 2)
    return y


def a_view(s, x):
    y = s.c(x)
    v = doubled(y[:, :2])
    v.mul_(3)
    return y * 1


def tokens(s, x):
    y = doubled(s.c(x).flatten(2).transpose(1, 2))
    y += s.n
    return y.sin()


def a_part(s, x):
    y = doubled(s.c(x).flatten(2))
    y[:, 0] = s.n
    return y * 1


def a_view_that_was_read(s, x):
    y = s.c(x)
    v = y[:, :2]
    early = v * 3
    doubled(v)
    v.mul_(2)
    return y * 1, early


def a_part_of_a_view(s, x):
    y = s.c(x)
    v = y[:, :2]
    w = v[:, :1]
    doubled(v)
    w *= 3
    return y * 1, v.sin(), w.cos()


def hooked_again(s, x):
    y = s.c(x)
    v = doubled(y[:, :2])
    v.mul_(3)
    late = v.sin()
    v.register_hook(lambda gradient: gradient * 5)
    return y * 1, v * 2, late


def without_gradients(s, x):
    y = s.c(x)
    v = doubled(y[:, :2])
    with torch.no_grad():
        v.mul_(3)
    return y * 1, v * 2


def by_vmap(s, x):
    y = s.c(x) * 1
    v = doubled(y[:, :2])
    torch.vmap(lambda z: z.mul_(2))(v)
    return y * 1, v + 2


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def by_a_function(s, x):
    y = s.c(x) * 1
    v = doubled(y[:, :2])
    Dirty.apply(v)
    return y * 1, v + 2


def its_base(s, x):
    y = s.c(x)
    v = doubled(y[:, :2])
    y.mul_(3)
    return y * 1, v.sin()


def a_base_behind_a_view(s, x):
    y = s.c(x)
    v = y[:, :2]
    v.mul_(2)
    doubled(y)
    return y * 1, v.sin()


def a_base_behind_what_reads_a_view(s, x):
    y = s.c(x)
    v = y[:, :2]
    v.mul_(2)
    early = v.sin()
    doubled(y)
    return y * 1, early


def a_base_whose_part_was_changed(s, x):
    y = s.c(x)
    y[:, :1] *= 2
    doubled(y)
    return y.sin()


def no_view(s, x):
    y = doubled(s.c(x))
    y.mul_(3)
    return y * 1


def of_another_shape_in_place(s, x):
    y = s.c(x) * 1
    y.unsqueeze_(0)
    doubled(y)
    y.mul_(2)
    return y * 1


def by_a_list(s, x):
    y = s.c(x) * 1
    v = doubled(y[:, :2])
    torch._foreach_mul_([v], 2.0)
    return y * 1


class HandsOn(torch.autograd.Function):
    """Hands its input on, or a view of it, and changes the gradient."""

    @staticmethod
    def forward(ctx, y, is_view):
        return y.view_as(y) if is_view else y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def beside_functions(s, x):
    """Functions that look as a hook does to TorchDynamo before PyTorch 2.13."""
    y = s.c(x)
    z, w = HandsOn.apply(y, True), HandsOn.apply(y, False)
    z.register_hook(lambda gradient: gradient + 1)
    return z * y + y.sin() + w.cos()


def reads_its_view(s, x):
    y = s.c(x)[:, 1:]
    y.register_hook(lambda gradient: gradient * s.n - y)
    return y.flatten(1)


def read_others(s, x):
    """What its hooks read has another order than what forward makes."""
    a, b = x.mean() * 2, s.n * 5
    y = s.c(x)
    y.register_hook(lambda gradient: (gradient * s.n - a) / b + y * a)
    y.register_hook(lambda gradient: gradient + a)
    return y * b


def changed_around(s, x):
    """TorchDynamo before PyTorch 2.13 would change the buffer where the tensor is made."""
    s.n.mul_(3)
    y = s.c(x) + s.n
    s.n.mul_(2)
    z = s.n.add_(1)
    y.register_hook(lambda gradient: gradient * z)
    return y * z.detach().clone()


def in_a_checkpoint(s, x):
    def f(y):
        z = y.sin()
        z.register_hook(lambda gradient: gradient * s.n * 3 + z)
        z.register_hook(lambda gradient: gradient + s.n)
        return z * 2

    return checkpoint(f, s.c(x), use_reentrant=False)


def of(name, f, expected=EQUAL, though=""):
    parts = {"c": conv(), "n": lambda: nn.Buffer(torch.ones(1))}
    return Idiom(name, model(f, **parts), train, expected, though)


CASES = [
    of("a hook on a view that is changed in place", a_view),
    of("a hook on tokens, to which a position is added in place", tokens),
    of("a hook on tokens, one of which is put in place", a_part),
    of("a hook on a view that was read, and is changed in place", a_view_that_was_read),
    of("a hook on a view whose part is changed in place", a_part_of_a_view),
    of("a hook on a view, and one behind its change", hooked_again),
    of("a hook on a view that is changed without gradients", without_gradients),
    of("a hook on a view that vmap changes", by_vmap),
    of("a hook on a view that a Function marks dirty", by_a_function, EQUAL_SINCE_2_13),
    of("a hook on a view whose base is changed in place", its_base),
    of("a hook on a tensor behind the change of its view", a_base_behind_a_view),
    of("a hook on a tensor whose part was changed in place", a_base_whose_part_was_changed),
    of("a hook on a map that is changed in place", no_view),
    of("a hook on a map that has another shape, in place", of_another_shape_in_place),
    of("a hook beside functions that hand their input on", beside_functions),
    of("a hook on a view that it reads", reads_its_view),
    of("hooks that read several tensors", read_others),
    of("a hook reads what forward changes before and behind its tensor", changed_around),
    of("two hooks in a checkpoint, which read its tensor", in_a_checkpoint),
    of(
        "a hook on a tensor behind what has read its changed view",
        a_base_behind_what_reads_a_view,
        REFUSED,
        "what reads the view would have to read it of its base",
    ),
    of(
        "a hook on a view that is changed in a list",
        by_a_list,
        REFUSED,
        "each of a list is copied to",
    ),
]
