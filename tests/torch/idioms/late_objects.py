"""Idioms of what backward reads by objects: arguments, what forward makes, tensors in place."""

from __future__ import annotations

import dataclasses

import torch
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.late_reads import by_a_checkpoint, by_a_hook
from tests.torch.idioms.late_tensors import LATE, Kept, a_forward_between, between
from tests.torch.idioms.late_tensors import holding as holding_tensors
from tests.torch.idioms.models import image, leaf, loss_of, train


class Box:
    """Holds a number."""

    def __init__(self):
        self.gain = 2.0


@dataclasses.dataclass
class Output:
    """What a model returns beside its map."""

    gain: float


def holding(f):
    return holding_tensors(f, box=lambda: None, table=lambda: {"a": 2.0}, boxes=lambda: [Box()])


def nothing(m, others, made):
    pass


# Arguments ----------------------------------------------------------------------------------------


def nested():
    return {"cfg": {"a": {"b": [2.0]}}}


ARGUMENTS = {
    "a dict": (
        lambda: {"cfg": {"a": 2.0}},
        lambda cfg: cfg["a"],
        lambda cfg: cfg.update(a=5.0),
    ),
    "a list": (lambda: {"cfg": [2.0]}, lambda cfg: sum(cfg), lambda cfg: cfg.append(5.0)),
    "a set": (
        lambda: {"cfg": {1.0}},
        lambda cfg: float(len(cfg)),
        lambda cfg: cfg.add(5.0),
    ),
    "an object": (
        lambda: {"cfg": Box()},
        lambda cfg: cfg.gain,
        lambda cfg: setattr(cfg, "gain", 5.0),
    ),
    "a dict in a dict": (
        nested,
        lambda cfg: cfg["a"]["b"][0],
        lambda cfg: cfg["a"]["b"].insert(0, 5.0),
    ),
    "a dict of tensors": (
        lambda: {"cfg": {"t": torch.ones(1)}},
        lambda cfg: cfg["t"],
        lambda cfg: cfg.update(t=torch.full((1,), 5.0)),
    ),
    "a tensor": (lambda: {"cfg": torch.ones(1)}, lambda cfg: cfg, lambda cfg: cfg.mul_(5)),
}
WAYS = {"a hook": by_a_hook, "a checkpoint": by_a_checkpoint}


def of_an_argument(way, kind, *, changed):
    make, read, change = ARGUMENTS[kind]
    whether = "changed" if changed else "left alone"
    return Idiom(
        f"{way} reads {kind} that is an argument, {whether} before backward",
        holding(lambda s, x, cfg: WAYS[way](s.c(x), lambda: read(cfg))),
        between((lambda m, others, made: change(others["cfg"])) if changed else nothing, make=make),
        REFUSED if changed else EQUAL,
        LATE if changed and kind == "a tensor" else "",
    )


def another_entry(s, x, cfg):
    return by_a_hook(s.c(x), lambda: cfg["a"])


def counted_argument(s, x, cfg):
    cfg["a"] = cfg["a"] + 1
    return by_a_hook(s.c(x), lambda: cfg["a"])


def a_step_and_its_next(run):
    cfg = {"a": 1.0}
    first = run(leaf(image()), cfg)
    run(image(1), cfg)
    run.backward(loss_of(first))


# Flags and gradients of parameters ----------------------------------------------------------------


def by_a_flag(s, x):
    return by_a_hook(s.c(x), lambda: 2.0 if s.d.weight.requires_grad else 1.0)


def by_whether_there_is_a_gradient(s, x):
    return by_a_hook(s.c(x), lambda: 1.0 if s.d.weight.grad is None else 2.0)


def by_a_gradient(s, x):
    return by_a_hook(s.c(x), lambda: s.d.weight.grad.mean())


def by_its_own_gradient(s, x):
    made = by_a_hook(s.c(x), lambda: 1.0 if s.d.weight.grad is None else 2.0)
    return s.d(made)


def frozen(m, others, made):
    m.d.requires_grad_(False)


def with_a_gradient(m, others, made):
    m.d.weight.grad = torch.ones_like(m.d.weight)


def doubled_gradient(run):
    run.model.d.weight.grad = torch.ones_like(run.model.d.weight)
    made = run(leaf(image()))
    run.model.d.weight.grad.mul_(2)
    run.backward(loss_of(made))


# Questions, and defaults of functions ------------------------------------------------------------


def scaled_by_default(gradient, gain=2.0):
    return gradient * gain


def scaled_by_keyword(gradient, *, gain=2.0):
    return gradient * gain


class Scaling:
    """Has a method with a default."""

    def scaled(self, gradient, gain=2.0):
        return gradient * gain


def by_a_function(function):
    def forward(s, x):
        y = s.c(x) * 1
        y.register_hook(lambda gradient: function(gradient))
        return y * 1

    return forward


def with_another_default(function, name, value):
    """Steps with another default between forward and backward, which is put back then."""

    def steps(run):
        made, was = run(leaf(image())), getattr(function, name)
        setattr(function, name, value)
        try:
            run.backward(loss_of(made))
        finally:
            setattr(function, name, was)

    return steps


def by_hasattr(s, x):
    return by_a_hook(s.c(x), lambda: 2.0 if hasattr(s, "seen") else 1.0)


def by_its_dictionary(s, x):
    return by_a_hook(s.c(x), lambda: 2.0 if "seen" in s.__dict__ else 1.0)


def set_seen(m, others, made):
    m.seen = 1


def set_seen_again(run):
    run.model.seen = 1
    made = run(leaf(image()))
    run.model.seen = 2
    run.backward(loss_of(made))


# What forward makes -------------------------------------------------------------------------------


def an_object_on_self(s, x):
    s.box = Box()
    return by_a_hook(s.c(x), lambda: s.box.gain)


def an_object_by_a_variable(s, x):
    box = Box()
    s.box = box
    return by_a_hook(s.c(x), lambda: box.gain)


def an_object_of_a_function(s, x):
    s.box = Box()
    return Kept.apply(s.c(x), s.box)


def an_object_in_a_list(s, x):
    box = Box()
    s.boxes[0] = box
    return by_a_checkpoint(s.c(x), lambda: box.gain)


def a_dict_on_self(s, x):
    table = {"a": 2.0}
    s.table = table
    return by_a_hook(s.c(x), lambda: table["a"])


def a_list_returned(s, x):
    gains = [2.0]
    return by_a_hook(s.c(x), lambda: gains[0]), gains


def a_dataclass_returned(s, x):
    made = Output(2.0)
    return by_a_hook(s.c(x), lambda: made.gain), made


def an_object_under_a_type(s, x):
    box = Box()
    s.table = {Box: box}
    return by_a_hook(s.c(x), lambda: box.gain)


def an_object_in_a_dict(s, x):
    box = Box()
    s.table[1, 2] = box
    return by_a_hook(s.c(x), lambda: box.gain)


def counted_object(s, x):
    if s.box is None:
        s.box = Box()
    s.box.gain = s.box.gain + 1
    return by_a_hook(s.c(x), lambda: s.box.gain)


def set_gain(m, others, made):
    m.box.gain = 5.0


MADE = {
    "an object on self": (an_object_on_self, set_gain),
    "an object on self by a variable": (an_object_by_a_variable, set_gain),
    "an object on self by its Function": (an_object_of_a_function, set_gain),
    "an object in a list": (
        an_object_in_a_list,
        lambda m, others, made: setattr(m.boxes[0], "gain", 5.0),
    ),
    "a dict on self": (a_dict_on_self, lambda m, others, made: m.table.update(a=5.0)),
    "a list that it returns": (
        a_list_returned,
        lambda m, others, made: made[1].__setitem__(0, 5.0),
    ),
    "a dataclass that it returns": (
        a_dataclass_returned,
        lambda m, others, made: setattr(made[1], "gain", 5.0),
    ),
}


def features(s, x):
    """A dict that forward fills and returns; checkpoints are given tensors of it, and read one."""
    made = {"first": s.c(x)}
    made["second"] = checkpoint(lambda y: s.d(y).sin(), made["first"], use_reentrant=False)
    made["third"] = checkpoint(
        lambda y: y * made["first"].detach(), made["second"], use_reentrant=False
    )
    return made


def with_a_loss(m, others, made):
    made["loss"] = made["third"].square().sum()


def of_several_objects(s, x):
    """Objects that nobody has after forward."""
    box, gains = Box(), [1.0]
    y = by_a_hook(s.c(x), lambda: box.gain + gains[0])
    return by_a_checkpoint(y, lambda: box.gain) * Output(3.0).gain


CASES = [
    *(of_an_argument("a hook", kind, changed=True) for kind in ARGUMENTS),
    *(of_an_argument("a hook", kind, changed=False) for kind in ARGUMENTS),
    of_an_argument("a checkpoint", "a dict", changed=True),
    of_an_argument("a checkpoint", "an object", changed=True),
    Idiom(
        "a hook reads an entry of an argument, and another one changes",
        holding(another_entry),
        between(
            lambda m, others, made: others["cfg"].update(b=5.0), make=lambda: {"cfg": {"a": 2.0}}
        ),
    ),
    Idiom(
        "a hook reads an argument in which each forward counts",
        holding(counted_argument),
        a_step_and_its_next,
        REFUSED,
    ),
    Idiom(
        "a Function reads an object that is an argument, changed before backward",
        holding(lambda s, x, cfg: Kept.apply(s.c(x), cfg)),
        between(
            lambda m, others, made: setattr(others["cfg"], "gain", 5.0),
            make=lambda: {"cfg": Box()},
        ),
        REFUSED,
    ),
    Idiom(
        "a hook reads requires_grad, which changes", holding(by_a_flag), between(frozen), REFUSED
    ),
    Idiom("a hook reads requires_grad", holding(by_a_flag), train),
    Idiom(
        "a hook reads whether there is a gradient, which comes before backward",
        holding(by_whether_there_is_a_gradient),
        between(with_a_gradient),
        REFUSED,
    ),
    Idiom(
        "a hook reads whether there is a gradient", holding(by_whether_there_is_a_gradient), train
    ),
    Idiom(
        "a hook reads a gradient that changes",
        holding(by_a_gradient),
        doubled_gradient,
        REFUSED,
        LATE,
    ),
    Idiom(
        "a hook reads a gradient that backward makes", holding(by_its_own_gradient), train, REFUSED
    ),
    Idiom("a hook asks for a name that comes", holding(by_hasattr), between(set_seen), REFUSED),
    Idiom("a hook asks a dictionary", holding(by_its_dictionary), between(set_seen), REFUSED),
    Idiom("a hook asks for a name that is set again", holding(by_hasattr), set_seen_again),
    Idiom(
        "a hook calls a function, and its default changes",
        holding(by_a_function(scaled_by_default)),
        with_another_default(scaled_by_default, "__defaults__", (5.0,)),
        REFUSED,
    ),
    Idiom(
        "a hook calls a function, and its keyword's default changes",
        holding(by_a_function(scaled_by_keyword)),
        with_another_default(scaled_by_keyword, "__kwdefaults__", {"gain": 5.0}),
        REFUSED,
    ),
    Idiom(
        "a hook calls a method, and its default changes",
        holding(by_a_function(Scaling().scaled)),
        with_another_default(Scaling.scaled, "__defaults__", (5.0,)),
        REFUSED,
    ),
    Idiom("a hook calls a function", holding(by_a_function(scaled_by_default)), train),
    *(
        Idiom(
            f"backward reads what forward makes, and it changes: {name}",
            holding(f),
            between(change),
            REFUSED,
        )
        for name, (f, change) in MADE.items()
    ),
    *(
        Idiom(f"backward reads what forward makes: {name}", holding(f), train)
        for name, (f, _) in MADE.items()
    ),
    Idiom(
        "a hook reads what forward makes and keeps under a type",
        holding(an_object_under_a_type),
        train,
        REFUSED,
        LATE,
    ),
    Idiom(
        "a hook reads what forward makes and keeps under a tuple",
        holding(an_object_in_a_dict),
        train,
        REFUSED,
        LATE,
    ),
    Idiom("a hook reads an object of the first forward, counted", holding(counted_object), train),
    Idiom(
        "a hook reads an object of the first forward, counted in the next",
        holding(counted_object),
        a_forward_between,
        REFUSED,
    ),
    Idiom("features in a dict, to which a loss is added", holding(features), between(with_a_loss)),
    Idiom(
        "backward reads objects that forward makes for itself", holding(of_several_objects), train
    ),
]
