"""Idioms of entries of dictionaries, and attributes of tensors, that backward reads."""

from __future__ import annotations

import enum
import types

import torch

from tests.torch.idioms.judge import REFUSED, Idiom
from tests.torch.idioms.late_objects import Box
from tests.torch.idioms.late_reads import by_a_checkpoint, by_a_hook
from tests.torch.idioms.late_tensors import between, holding
from tests.torch.idioms.models import train


class Kind(enum.Enum):
    """Keys of a dictionary."""

    ONE = 1
    TWO = 2


def with_a_rate(m):
    m.c.weight.rate = 2.0


def of_numbers(m):
    m.t = {"a": 2.0, "step": 0}


def of_dictionaries(m):
    m.t = {"x": {"a": 2.0, "step": 0}, "y": {"a": 2.0}}


def of_a_row(m):
    m.t = [2.0, 3.0]


def shown(m):
    m.held = {"a": 2.0, "step": 0}
    m.t = types.MappingProxyType(m.held)


def under(*keys):
    def put(m):
        m.t = {key: Box() for key in keys}

    return put


def by_a_variable(m):
    key = "a"
    return m.t[key]


#: What is put into the model, what is read, and what changes it.
READ = {
    "an attribute of a parameter": (
        with_a_rate,
        lambda m: m.c.weight.rate,
        lambda m: setattr(m.c.weight, "rate", 5.0),
    ),
    "whether a parameter has an attribute": (
        lambda m: None,
        lambda m: 2.0 if hasattr(m.c.weight, "rate") else 1.0,
        lambda m: setattr(m.c.weight, "rate", 5.0),
    ),
    "an object under a dtype": (
        under(torch.float32, torch.float64),
        lambda m: m.t[torch.float32].gain,
        lambda m: setattr(m.t[torch.float32], "gain", 5.0),
    ),
    "an object under a device": (
        under(torch.device("cpu")),
        lambda m: m.t[torch.device("cpu")].gain,
        lambda m: setattr(m.t[torch.device("cpu")], "gain", 5.0),
    ),
    "an object under an enum": (
        under(Kind.ONE, Kind.TWO),
        lambda m: m.t[Kind.TWO].gain,
        lambda m: setattr(m.t[Kind.TWO], "gain", 5.0),
    ),
    "an entry of a view of a dictionary": (
        shown,
        lambda m: m.t["a"],
        lambda m: m.held.update(a=5.0),
    ),
    "an entry by a variable": (of_numbers, by_a_variable, lambda m: m.t.update(a=5.0)),
    "an entry of an entry": (
        of_dictionaries,
        lambda m: m.t["x"]["a"],
        lambda m: m.t["x"].update(a=5.0),
    ),
    "an entry of a dictionary that is another one": (
        of_numbers,
        lambda m: m.t["a"],
        lambda m: setattr(m, "t", {"a": 5.0}),
    ),
    "how many hooks a layer has": (
        lambda m: None,
        lambda m: 1.0 + len(m.d._forward_hooks),
        lambda m: m.d.register_forward_hook(lambda layer, given, made: None),
    ),
    "the sum of a list": (of_a_row, lambda m: sum(m.t), lambda m: m.t.append(5.0)),
}
#: What changes that is not read.
OTHERS = {
    "another entry": (of_numbers, lambda m: m.t["a"], lambda m: m.t.update(step=5)),
    "another one than by a variable": (of_numbers, by_a_variable, lambda m: m.t.update(step=5)),
    "another one of an entry": (
        of_dictionaries,
        lambda m: m.t["x"]["a"],
        lambda m: (m.t["x"].update(step=5), m.t["y"].update(a=5.0)),
    ),
    "a last one": (of_a_row, lambda m: m.t[0], lambda m: m.t.append(5.0)),
    "another entry of a view": (shown, lambda m: m.t["a"], lambda m: m.held.update(step=5)),
    "the dictionary, for one that is alike": (
        of_numbers,
        lambda m: m.t["a"],
        lambda m: setattr(m, "t", dict(m.t)),
    ),
}
WAYS = {"a hook": by_a_hook, "a checkpoint": by_a_checkpoint}


def made(way, put, read):
    make = holding(lambda s, x: WAYS[way](s.c(x), lambda: read(s)))

    def held():
        m = make()
        put(m)
        return m

    return held


def of(way, what, put, read, change):
    steps = between(lambda m, others, outputs: change(m))
    return Idiom(f"{way} reads {what}, which changes", made(way, put, read), steps, REFUSED)


CASES = [
    *(of(way, name, *how) for way in WAYS for name, how in READ.items()),
    *(
        Idiom(f"{way} reads {name}", made(way, put, read), train)
        for way in WAYS
        for name, (put, read, _) in READ.items()
    ),
    *(
        Idiom(
            f"{way} reads an entry, and what changes is {name}",
            made(way, put, read),
            between(lambda m, others, outputs, change=change: change(m)),
        )
        for way in WAYS
        for name, (put, read, change) in OTHERS.items()
    ),
]
