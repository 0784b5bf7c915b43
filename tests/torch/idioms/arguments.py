"""Idioms of arguments that forward changes in place, and that others have made: parts of a model.

A part that begins with `nn.ReLU(inplace=True)` changes what the part before has made. Autograd goes
on from what is there then.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, image, leaf, loss_of, model


def part_of(made):
    """Steps on a part: what is before it makes its argument, and what is behind it reads that."""

    def steps(run):
        for seed in range(2):
            x = leaf(image(seed))
            given = made(x)
            outputs = run(given)
            run.note([given, given.grad_fn is None])
            run.backward(loss_of([outputs, given]))
            run.note(x.grad)

    return steps


train_a_part = part_of(lambda x: x * 1.5)


def evaluated(run):
    run.model.eval()
    train_a_part(run)
    with torch.no_grad():
        run(image())


def over_two_calls(run):
    xs = [leaf(image(seed)) for seed in range(2)]
    given = [x * 2 for x in xs]
    outputs = [run(each) for each in given]
    run.backward(loss_of([outputs, given]), retain_graph=True)
    run.backward(loss_of(outputs))
    run.note([x.grad for x in xs])


def what_sigmoid_keeps(run):
    """PyTorch's sigmoid reads what it has made, which is another thing then."""
    outputs = run(leaf(image()).sigmoid())
    run.fails(loss_of(outputs).backward)


def then_a_leaf(run):
    train_a_part(run)
    run.fails(lambda: run.model(leaf(image())))


def a_part_of_a_split(run):
    one, *_ = leaf(torch.cat([image()] * 2, 1)).split(4, 1)
    run.fails(lambda: run.model(one))


def hooked_before(run):
    """The hook was there before, and sees the gradient of what was there."""
    seen, x = [], leaf(image())
    given = x * 1.5
    given.register_hook(lambda gradient: seen.append(gradient.clone()))
    outputs = run(given)
    run.backward(loss_of([outputs, given]))
    run.note([*seen, x.grad])


def relu(s, x):
    return s.c(F.relu(x, inplace=True))


def one_part(s, x):
    x[:, 1:].mul_(2)
    return s.c(x)


def without_gradients(s, x):
    with torch.no_grad():
        x.mul_(2)
    return s.c(x)


def of(name, f, steps=train_a_part, expected=EQUAL, **parts):
    return Idiom(name, model(f, **(parts or {"c": conv()})), steps, expected)


CASES = [
    of("a part that begins with relu in place", relu),
    of("a part that begins with relu in place, evaluated", relu, evaluated),
    of("the same of two calls, backward twice", relu, over_two_calls),
    of("the same of what sigmoid keeps", relu, what_sigmoid_keeps),
    of("the same, and then of a leaf", relu, then_a_leaf),
    of("the same of a part of a split", relu, a_part_of_a_split, REFUSED),
    of("the same of a transposed map", relu, part_of(lambda x: (x * 2).mT.clone().mT)),
    of("the same of a slice", relu, part_of(lambda x: torch.cat([x, x], 1)[:, 2:6])),
    of("a part of relu in place alone", lambda s, x: s.r(x), r=lambda: nn.ReLU(inplace=True)),
    of("the same, with a hook before", lambda s, x: s.r(x), hooked_before,
       r=lambda: nn.ReLU(inplace=True)),
    of("a part of elu and a normalization", lambda s, x: s.n(F.elu_(x)),
       n=lambda: nn.BatchNorm2d(4)),
    of("a part that changes channels of its argument", one_part),
    of("a part that changes its argument without gradients", without_gradients),
    of("a part that gives its argument back beside", lambda s, x: (s.c(x.relu_()), x)),
]  # fmt: skip
