"""Idioms of what is read of classes, and of other rare places, and changes between calls."""

from __future__ import annotations

import enum

import torch
import torch.nn.functional as F
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import Model, changed, conv, image, loss_of, model


class Mode(enum.Enum):
    RELU = "relu"
    TANH = "tanh"


class OfSettings(type):
    floor = 1.0

    def least(cls):
        return 2


class Settings(metaclass=OfSettings):
    """What a repository keeps in one place; each idiom begins with its own values."""


class OfGains(type):
    """Has operators, which each idiom puts there."""


class Gains(metaclass=OfGains):
    """A class that is asked for its truth, its length and what is in it."""


class Block(nn.Module):
    expansion = 1

    def __init__(self):
        super().__init__()
        self.c = conv()()

    def forward(self, x):
        return self.c(x) * type(self).expansion

    @classmethod
    def scaled(cls, y):
        return y * cls.expansion


class Scope(dict):
    """Such as an EasyDict: entries, and attributes."""


def of_a_class(name, read, before, after, *, of=Settings, at="value", expected=EQUAL):
    """An idiom: what is read of a class is another value after a first call, and then the first."""

    def make():
        setattr(of, at, before)
        return Model(read, c=conv()(), settings=of, block=Block())

    def steps(run):
        for value in (before, after, after, before):
            setattr(of, at, value)
            run.backward(loss_of(run(image())))

    return Idiom(name, make, steps, expected)


def by_mode(s, x):
    return F.relu(s.c(x)) if Settings.value is Mode.RELU else torch.tanh(s.c(x))


def named(function, name):
    function.__name__ = name
    return function


def scope(gain):
    made = Scope()
    made.gain = gain
    return made


CASES = [
    of_a_class(
        "the truth of a class, by its metaclass",
        lambda s, x: s.c(x) * (2 if Gains else 3),
        lambda cls: True,
        lambda cls: False,
        of=OfGains,
        at="__bool__",
        expected=REFUSED,
    ),
    of_a_class(
        "the length of a class, by its metaclass",
        lambda s, x: s.c(x) * len(Gains),
        lambda cls: 2,
        lambda cls: 3,
        of=OfGains,
        at="__len__",
        expected=REFUSED,
    ),
    of_a_class(
        "what is in a class, by its metaclass",
        lambda s, x: s.c(x) * Gains["gain"],
        lambda cls, name: 2.0,
        lambda cls, name: 3.0,
        of=OfGains,
        at="__getitem__",
        expected=REFUSED,
    ),
    of_a_class("a number of a class", lambda s, x: s.c(x) * Settings.value, 2, 3),
    of_a_class("a float of a class", lambda s, x: s.c(x) * s.settings.value, 2.0, 3.0),
    of_a_class(
        "a flag of a class", lambda s, x: s.c(x) * (2 if Settings.value else 3), True, False
    ),
    of_a_class(
        "a word of a class", lambda s, x: getattr(F, Settings.value)(s.c(x)), "relu", "gelu"
    ),
    of_a_class("an enum of a class", by_mode, Mode.RELU, Mode.TANH),
    of_a_class("a list of a class", lambda s, x: s.c(x) * sum(Settings.value), [1, 2], [1, 2, 3]),
    of_a_class("a tuple of a class", lambda s, x: s.c(x) * Settings.value[1], (1, 2), (1, 3)),
    of_a_class(
        "None of a class becomes a number",
        lambda s, x: s.c(x) if Settings.value is None else s.c(x) * Settings.value,
        None,
        3,
    ),
    of_a_class(
        "a number of a metaclass",
        lambda s, x: s.c(x) * Settings.floor,
        2,
        3,
        of=OfSettings,
        at="floor",
        expected=REFUSED,
    ),
    of_a_class(
        "a dictionary of a metaclass",
        lambda s, x: s.c(x) * Settings.floor["a"],
        {"a": 2},
        {"a": 3},
        of=OfSettings,
        at="floor",
        expected=REFUSED,
    ),
    of_a_class(
        "a method of a metaclass",
        lambda s, x: s.c(x) * Settings.least(),
        lambda cls: 2,
        lambda cls: 3,
        of=OfSettings,
        at="least",
        expected=REFUSED,
    ),
    of_a_class(
        "a class is renamed",
        lambda s, x: s.c(x) * len(Settings.__name__),
        "Settings",
        "Others",
        at="__name__",
    ),
    of_a_class(
        "a number of the class of a part", lambda s, x: s.block(x), 2, 3, of=Block, at="expansion"
    ),
    of_a_class(
        "a number in a classmethod",
        lambda s, x: s.block.scaled(s.c(x)) + Block.scaled(s.c(x)),
        2,
        3,
        of=Block,
        at="expansion",
    ),
    Idiom(
        "an attribute of an empty dictionary",
        model(lambda s, x: s.c(x) * s.scope.gain, c=conv(), scope=lambda: scope(2.0)),
        changed(lambda q: setattr(q.scope, "gain", 3.0)),
        REFUSED,
    ),
    Idiom(
        "a function is renamed",
        model(
            lambda s, x: s.c(x) * len(s.act.__name__),
            c=conv(),
            act=lambda: named(lambda y: y, "act"),
        ),
        changed(lambda q: named(q.act, "action")),
    ),
]
