"""Idioms of lists, dictionaries and sets that an operator changes in place, or a look-up does."""

from __future__ import annotations

import collections
import operator

import torch

from tests.torch.idioms.judge import EQUAL, EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import conv, model, train


class Row(list):
    """A list of a class of its own."""


class Own(list):
    """A list that says itself what `+=` does."""

    def __iadd__(self, other):
        self.append(other)
        return self


class Names(set):
    """A set of a class of its own."""


class WritesBehind(torch.autograd.Function):
    """Writes to a container in backward."""

    @staticmethod
    def forward(ctx, y, container, write):
        ctx.container, ctx.write = container, write
        return y * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.write(ctx.container)
        return gradient * 2, None, None


def plus(t):
    t += [1]


def times(t):
    t *= 2


def either(t):
    t |= {"b": 2}


def one_more(t):
    t |= {9}


def one_less(t):
    t -= {1}


def missed(t):
    t["more"]  # which a defaultdict makes


WRITES = {
    "+= of a list": (lambda: [1], plus),
    "*= of a list": (lambda: [1, 2], times),
    "operator.iadd of a list": (lambda: [1], lambda t: operator.iadd(t, [1])),
    "+= of a deque": (lambda: collections.deque([1]), plus),
    "+= of a class of lists": (lambda: Row([1]), plus),
    "+= of a class of lists, by its method": (lambda: Row([1]), lambda t: t.__iadd__([1])),
    "+= of a class of lists with its own": (lambda: Own([1]), plus),
    "|= of a dictionary": (lambda: {"a": 1}, either),
    "|= of a set": (lambda: {1}, one_more),
    "-= of a set": (lambda: {1, 2}, one_less),
    "-= of a class of sets": (lambda: Names([1, 2]), one_less),
    "a look-up of a defaultdict": (lambda: collections.defaultdict(list), missed),
}


def seen(run):
    """Train; note what is in the container, which is the same one."""
    kept = run.model.t
    train(run)
    run.note([sorted(kept, key=str), kept is run.model.t])


#: What TorchDynamo does not follow in forward, or not with each PyTorch; it follows the others.
FOLLOWED = {
    "+= of a class of lists": REFUSED,
    "+= of a class of lists, by its method": REFUSED,
    "-= of a set": REFUSED,
    "-= of a class of sets": REFUSED,
    "+= of a deque": EQUAL_SINCE_2_13,
}


def in_forward(name):
    make, write = WRITES[name]

    def forward(s, x):
        write(s.t)
        return s.c(x) * len(s.t)

    return Idiom(
        f"forward writes: {name}", model(forward, c=conv(), t=make), seen, FOLLOWED.get(name, EQUAL)
    )


def in_a_hook(name):
    make, write = WRITES[name]

    def forward(s, x):
        y = s.c(x)

        def hook(gradient):
            write(s.t)
            return gradient * 2

        y.register_hook(hook)
        return y * 1

    return Idiom(f"a hook writes: {name}", model(forward, c=conv(), t=make), seen, REFUSED)


def in_backward(name):
    make, write = WRITES[name]
    forward = model(lambda s, x: WritesBehind.apply(s.c(x), s.t, write), c=conv(), t=make)
    return Idiom(f"Function's backward writes: {name}", forward, seen, REFUSED)


CASES = [way(name) for name in WRITES for way in (in_forward, in_a_hook, in_backward)]
