"""Idioms of state: what forward keeps on the model, and classes, globals and closures it reads."""

from __future__ import annotations

import collections
import functools

import torch
from torch import nn

from tests.torch.idioms.judge import DIFFERENT, EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import changed, conv, drawn, held, image, leaf, loss_of, model, train

GAIN = 1.0
SETTINGS = {"gain": 1.0}


def aux(s, x):
    y = s.c(x)
    s.aux = y.pow(2).mean()
    return y


def with_aux(run):
    for seed in range(2):
        y = run(leaf(image(seed)))
        run.backward(loss_of(y) + run.model.aux)


def listed(s, x):
    y = s.c(x)
    s.losses.append(y.mean())
    return y


def with_losses(run):
    for seed in range(2):
        y = run(leaf(image(seed)))
        run.backward(loss_of(y) + sum(run.model.losses))
        run.model.losses.clear()


def in_a_dict(s, x):
    s.seen["features"] = s.c(x)
    s.seen["calls"] = s.seen.get("calls", 0) + 1
    return s.d(s.seen["features"])


def in_a_deque(s, x):
    y = s.c(x)
    s.recent.append(y.detach().mean())
    return y * (1 + len(s.recent))


def counted(s, x):
    s.calls += 1
    return s.c(x) * s.calls


def stepped(s, x):
    s.step.add_(1)
    return s.c(x) * s.step


def warmed_up(s, x):
    s.calls += 1
    return s.c(x) if s.calls < 3 else s.d(x)


def annealed(s, x):
    s.temperature = max(s.temperature * 0.5, 0.1)
    return s.c(x) / s.temperature


class Relative(nn.Module):
    """A bias of relative positions, kept for each shape that was seen."""

    def __init__(self):
        super().__init__()
        self.c, self.table, self.kept = conv()(), nn.Parameter(drawn(13)), {}

    def forward(self, x):
        y = self.c(x)
        shape = tuple(y.shape[-2:])
        if shape not in self.kept:
            at = torch.arange(shape[0])[:, None] - torch.arange(shape[1])[None, :]
            self.kept[shape] = at + 6
        return y + self.table[self.kept[shape]]


class Grid(nn.Module):
    """A grid of coordinates that is made at the first call, and again for another shape."""

    def __init__(self):
        super().__init__()
        self.c, self.grid = conv(6, 4)(), None

    def forward(self, x):
        if self.grid is None or self.grid.shape[-2:] != x.shape[-2:]:
            axes = [torch.linspace(-1, 1, extent, dtype=x.dtype) for extent in x.shape[-2:]]
            self.grid = torch.stack(torch.meshgrid(*axes, indexing="ij"))
        return self.c(torch.cat([x, self.grid.expand(len(x), -1, -1, -1)], 1))


class LazyBuffer(nn.Module):
    """A buffer that has its values from the first batch (an ActNorm)."""

    def __init__(self):
        super().__init__()
        self.c = conv()()
        self.register_buffer("shift", None)

    def forward(self, x):
        y = self.c(x)
        if self.shift is None:
            self.shift = y.detach().mean((0, 2, 3), keepdim=True)
        return y - self.shift


class Initialised(nn.Module):
    """A parameter that has its values from the first batch, and a flag in Python."""

    def __init__(self):
        super().__init__()
        self.c, self.scale, self.ready = conv()(), nn.Parameter(torch.ones(1, 4, 1, 1)), False

    def forward(self, x):
        y = self.c(x)
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / y.std((0, 2, 3), keepdim=True))
            self.ready = True
        return y * self.scale


def two_shapes(run):
    for shape in ((2, 4, 7, 6), (1, 4, 6, 6), (2, 4, 7, 6)):
        x = leaf(drawn(*shape))
        run.backward(loss_of(run(x)))


def with_class_attribute():
    class Scaled(nn.Module):
        gain = 1.0

        def __init__(self):
            super().__init__()
            self.c = conv()()

        def forward(self, x):
            return self.c(x) * self.gain

    return Scaled()


def counted_by_the_class():
    class Counted(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.c = conv()()

        def forward(self, x):
            type(self).calls += 1
            return self.c(x)

    return Counted()


def count_of_the_class(run):
    train(run)
    run.note(type(run.model).calls)


class Holder:
    """A plain object of the user's."""


def counted_by(where, known):
    """A count of calls, by a name that is not there before the first."""

    def forward(s, x):
        item = where(s)
        item.calls = known(item) + 1
        return s.c(x) * item.calls

    return forward


#: How forward asks if a name is there, but for `getattr` and `hasattr`.
KNOWN = {
    "__dict__.get": lambda item: item.__dict__.get("calls", 0),
    "vars().get": lambda item: vars(item).get("calls", 0),
    "in __dict__": lambda item: item.calls if "calls" in item.__dict__ else 0,
}


class WithSetter(nn.Module):
    """A property that forward sets, and reads again."""

    def __init__(self):
        super().__init__()
        self.c, self.half = conv()(), 1.0

    @property
    def gain(self):
        return self.half * 2

    @gain.setter
    def gain(self, value):
        self.half = value / 2 + 1

    def forward(self, x):
        self.gain = self.gain + 1
        return self.c(x) * self.gain


class WithProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.level = conv()(), 2

    @property
    def gain(self):
        return 1 / self.level

    @staticmethod
    def shifted(x):
        return x + 1

    @classmethod
    def halved(cls, x):
        return x / 2

    def forward(self, x):
        return self.halved(self.shifted(self.c(x)) * self.gain)


class WithCachedProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = conv()()

    @functools.cached_property
    def width(self):
        return self.c.out_channels

    def forward(self, x):
        return self.c(x) + self.width


def of_a_global(s, x):
    return s.c(x) * GAIN


def change_the_global(run):
    global GAIN
    try:
        train(run)
        GAIN = 5.0
        train(run)
    finally:
        GAIN = 1.0


def of_a_global_dict(s, x):
    return s.c(x) * SETTINGS["gain"]


def change_the_global_dict(run):
    try:
        train(run)
        SETTINGS["gain"] = 5.0
        train(run)
    finally:
        SETTINGS["gain"] = 1.0


def closure():
    gains = [1.0]

    def f(s, x):
        return s.c(x) * gains[0]

    made = model(f, c=conv())()
    made.set_gain = functools.partial(gains.__setitem__, 0)
    return made


def with_default(s, x, gain=2.0, *, bias=None):
    return s.c(x) * gain if bias is None else s.c(x) * gain + bias


def call_with_defaults(run):
    for how in ({}, {"gain": 3.0}, {"bias": torch.ones(4, 1, 1)}, {"gain": 0.0, "bias": 1}):
        run.backward(loss_of(run(leaf(image()), **how)))


def hooked(y):
    """A gradient doubled by a hook."""
    y.register_hook(lambda gradient: gradient * 2)
    return y


def noted_behind_a_hook(s, x):
    s.calls += 1
    y = hooked(s.c(x))
    s.last = "seen"
    return y


def read_again_behind_a_hook(s, x):
    s.calls = s.calls * 2
    y = hooked(s.c(x))
    s.calls = s.calls + 1
    return y * s.calls


def shared_block_with_a_hook(s, x):
    for _ in range(2):
        s.calls += 1
        x = hooked(s.c(x))
        s.aux = x.detach().mean()
    return x * s.aux


def object_behind_a_hook(s, x):
    s.box.calls += 1
    y = hooked(s.c(x))
    s.box.t = y.sin()
    s.box.calls += 2
    return s.box.t * s.box.calls


def training_behind_a_hook(s, x):
    s.c.train(False)
    y = hooked(s.c(x))
    s.c.train(True)
    return y


class Box:
    """Something that is no module."""

    def __init__(self):
        self.calls = 1


CASES = [
    Idiom(
        "a note on self, before and behind a hook",
        model(noted_behind_a_hook, c=conv(), calls=held(0), last=held(None)),
        train,
        beyond=DIFFERENT,
    ),
    Idiom(
        "a number on self that is read behind a hook",
        model(read_again_behind_a_hook, c=conv(), calls=held(1)),
        train,
        beyond=DIFFERENT,
    ),
    Idiom(
        "a block with a hook that is used twice, and counts",
        model(shared_block_with_a_hook, c=conv(padding=1), calls=held(0), aux=held(None)),
        train,
        beyond=REFUSED,
    ),
    Idiom(
        "an object that is written before and behind a hook",
        model(object_behind_a_hook, c=conv(), box=Box),
        train,
        beyond=REFUSED,
    ),
    Idiom(
        "a layer set to eval and back around a hook",
        model(training_behind_a_hook, c=conv()),
        train,
        beyond=DIFFERENT,
    ),
    Idiom("a loss kept on self, a number before", model(aux, c=conv(), aux=held(0.0)), with_aux),
    Idiom(
        "a loss kept on self, a tensor before",
        model(aux, c=conv(), aux=lambda: torch.zeros(())),
        with_aux,
    ),
    Idiom("a loss kept on self, nothing before", model(aux, c=conv()), with_aux),
    Idiom("losses appended to a list", model(listed, c=conv(), losses=list), with_losses),
    Idiom("features kept in a dict", model(in_a_dict, c=conv(), d=conv(), seen=dict), train),
    Idiom(
        "means kept in a deque",
        model(in_a_deque, c=conv(), recent=lambda: collections.deque()),
        train,
    ),
    Idiom("self.calls += 1", model(counted, c=conv(), calls=held(0)), train),
    Idiom(
        "self.step.add_(1)",
        model(stepped, c=conv(), step=lambda: nn.Buffer(torch.tensor(0))),
        train,
    ),
    Idiom(
        "another branch after a count",
        model(warmed_up, c=conv(), d=conv(), calls=held(0)),
        lambda run: train(run, calls=4),
    ),
    Idiom("a temperature that anneals", model(annealed, c=conv(), temperature=held(1.0)), train),
    Idiom("relative positions kept by shape", Relative, two_shapes),
    Idiom("a grid made at the first call", Grid, two_shapes),
    Idiom("a buffer made from the first batch", LazyBuffer, train),
    Idiom("a parameter set by the first batch", Initialised, train),
    Idiom(
        "a class attribute changes",
        with_class_attribute,
        changed(lambda q: setattr(type(q), "gain", 5.0)),
    ),
    Idiom("a count on the class", counted_by_the_class, count_of_the_class, EQUAL_SINCE_2_13),
    Idiom(
        "property, static and class methods",
        WithProperty,
        changed(lambda q: setattr(q, "level", 4)),
    ),
    Idiom("a cached property", WithCachedProperty, train, REFUSED),
    *(
        Idiom(
            f"a name that forward makes in {of}, by {name}",
            model(counted_by(where, known), c=conv(), item=Holder),
            lambda run: train(run, calls=3),
            beyond=DIFFERENT,
        )
        for of, where in {"a module": lambda s: s, "an object": lambda s: s.item}.items()
        for name, known in KNOWN.items()
    ),
    Idiom("a property that forward sets", WithSetter, train, EQUAL_SINCE_2_13),
    Idiom("a global number changes", model(of_a_global, c=conv()), change_the_global),
    Idiom("a global dict changes", model(of_a_global_dict, c=conv()), change_the_global_dict),
    Idiom("what a closure holds changes", closure, changed(lambda q: q.set_gain(5.0))),
    Idiom("default and keyword arguments", model(with_default, c=conv()), call_with_defaults),
    Idiom(
        "a tensor's item on self",
        model(lambda s, x: (setattr(s, "level", s.c(x).mean().item()), s.c(x))[1], c=conv()),
        train,
        REFUSED,
        though="a number that depends on data",
    ),
]
