"""Idioms of changes between calls: numbers, lists, configs, functions and tensors on the model."""

from __future__ import annotations

import dataclasses
import enum
import math
import types

import torch
import torch.nn.functional as F

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import changed, conv, held, model


@dataclasses.dataclass
class Config:
    gain: float = 1.0
    blocks: tuple = (1, 2)


class Mode(enum.Enum):
    RELU = "relu"
    TANH = "tanh"


def by_mode(s, x):
    return F.relu(s.c(x)) if s.mode is Mode.RELU else torch.tanh(s.c(x))


def by_name(s, x):
    return getattr(F, s.act)(s.c(x))


def from_a_table(s, x):
    return {"relu": F.relu, "gelu": F.gelu, None: lambda y: y}[s.act](s.c(x))


def named_levels(s, x):
    for name in s.names:
        x = getattr(s, name)(x)
    return x


def times(attribute, **parts):
    return model(lambda s, x: s.c(x) * attribute(s), c=conv(), **parts)


def set_on(name, value):
    return changed(lambda q: setattr(q, name, value() if callable(value) else value))


CASES = [
    Idiom(
        "a config object is changed",
        times(lambda s: s.cfg.a, cfg=lambda: types.SimpleNamespace(a=1.0)),
        changed(lambda q: setattr(q.cfg, "a", 5.0)),
    ),
    Idiom(
        "a config's list is changed",
        times(lambda s: sum(s.cfg.a), cfg=lambda: types.SimpleNamespace(a=[1.0, 2.0])),
        changed(lambda q: q.cfg.a.append(3.0)),
    ),
    Idiom(
        "a dataclass is changed",
        times(lambda s: s.cfg.gain * len(s.cfg.blocks), cfg=Config),
        changed(lambda q: setattr(q.cfg, "gain", 5.0)),
    ),
    Idiom(
        "a list is changed",
        times(lambda s: s.gains[0], gains=lambda: [1.0]),
        changed(lambda q: q.gains.__setitem__(0, 5.0)),
    ),
    Idiom(
        "a nested dict is changed",
        times(lambda s: s.options["loss"]["weight"], options=lambda: {"loss": {"weight": 1}}),
        changed(lambda q: q.options["loss"].update(weight=5)),
    ),
    Idiom("a number is replaced", times(lambda s: s.gain, gain=held(1.0)), set_on("gain", 5.0)),
    Idiom("a number becomes int", times(lambda s: s.gain, gain=held(2.0)), set_on("gain", 2)),
    Idiom("True becomes False", times(lambda s: s.on, on=held(True)), set_on("on", False)),
    Idiom("0.0 becomes nan", times(lambda s: s.gain, gain=held(0.0)), set_on("gain", math.nan)),
    Idiom(
        "a tensor attribute is replaced",
        times(lambda s: s.t, t=lambda: torch.tensor(1.0)),
        set_on("t", lambda: torch.tensor(5.0)),
    ),
    Idiom(
        "a tensor attribute is replaced by another shape",
        times(lambda s: s.t, t=lambda: torch.tensor(1.0)),
        set_on("t", lambda: torch.arange(1.0, 5.0).view(4, 1, 1)),
    ),
    Idiom(
        "a tensor attribute is written in place",
        times(lambda s: s.t, t=lambda: torch.tensor(1.0)),
        changed(lambda q: q.t.mul_(5)),
    ),
    Idiom(
        "a tensor in a list is replaced",
        times(lambda s: s.ts[0], ts=lambda: [torch.tensor(1.0)]),
        changed(lambda q: q.ts.__setitem__(0, torch.tensor(5.0))),
    ),
    Idiom(
        "an activation is replaced",
        model(lambda s, x: s.act(s.c(x)), c=conv(), act=held(F.relu)),
        changed(lambda q: setattr(q, "act", torch.tanh)),
    ),
    Idiom(
        "an enum is replaced",
        model(by_mode, c=conv(), mode=held(Mode.RELU)),
        set_on("mode", Mode.TANH),
    ),
    Idiom(
        "an activation by name", model(by_name, c=conv(), act=held("relu")), set_on("act", "gelu")
    ),
    Idiom(
        "an activation from a dict",
        model(from_a_table, c=conv(), act=held("relu")),
        set_on("act", None),
    ),
    Idiom(
        "getattr by names that change",
        model(named_levels, a=conv(padding=1), b=conv(padding=1), names=lambda: ["a"]),
        changed(lambda q: q.names.append("b")),
    ),
    Idiom(
        "a stride is changed",
        model(lambda s, x: s.c(x), c=conv()),
        changed(lambda q: setattr(q.c, "stride", (2, 2))),
    ),
]
