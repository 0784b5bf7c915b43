"""Idioms of what reads in backward what forward replaces: hooks, functions, checkpoints."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.judge import DIFFERENT, EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, image, leaf, loss_of, model, train

FACTOR = 1.0


def by_a_hook(y, read):
    """Scale the gradient of y in a hook, by what it reads then."""
    z = y * 1
    z.register_hook(lambda gradient: gradient * read())
    return z * 1


class Box:
    """Holds a tensor, and its class a number."""

    gain = 1.5

    def __init__(self):
        self.t = torch.ones(1)


class Slots:
    """Holds a number in a slot."""

    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 1.5


def with_a_variable():
    """A function that reads its variable, and one that sets it."""
    gain = 1.0

    def set_gain(value):
        nonlocal gain
        gain = value

    return lambda: gain, set_gain


gain_of_a_closure, set_gain_of_a_closure = with_a_variable()


class Late(torch.autograd.Function):
    """Reads in backward."""

    @staticmethod
    def forward(ctx, y, read):
        ctx.read = read
        return y * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.read(), None


class Early(torch.autograd.Function):
    """Reads in forward, what it keeps."""

    @staticmethod
    def forward(ctx, y, factor):
        ctx.factor = factor
        return y * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def by_a_checkpoint(y, read):
    """The square of what it reads, which is computed again in backward."""
    return checkpoint(lambda z: (z * read()).sin(), y, use_reentrant=False)


def by_a_reentrant_checkpoint(y, read):
    return checkpoint(lambda z: (z * read()).sin(), y, use_reentrant=True)


WAYS = {
    "a hook": by_a_hook,
    "Function": lambda y, read: Late.apply(y, read),
    "a checkpoint": by_a_checkpoint,
    "a reentrant checkpoint": by_a_reentrant_checkpoint,
}


def doubled_buffer(s):
    s.n = s.n * 2


def doubled_in_place(s):
    s.n.mul_(2)


def doubled_number(s):
    s.k = s.k * 2


def doubled_attribute(s):
    s.box.t = s.box.t * 2


def doubled_entry(s):
    s.d["a"] = s.d["a"] * 2


def another_dictionary(s):
    s.d = {"a": s.d["a"] * 2}


def another_last(s):
    s.few.append(s.few[-1] * 2)


def doubled_global(s):
    global FACTOR
    FACTOR = FACTOR * 2


def another_part(s):
    s.part, s.other = s.other, s.part


#: What is read in backward, and replaced by forward.
REPLACED = {
    "a buffer": (lambda s: s.n, doubled_buffer),
    "a number": (lambda s: s.k, doubled_number),
    "an attribute of an object": (lambda s: s.box.t, doubled_attribute),
    "an entry of a dictionary": (lambda s: s.d["a"], doubled_entry),
    "a dictionary": (lambda s: s.d["a"], another_dictionary),
    "the last of a list": (lambda s: s.few[-1], another_last),
    "a global": (lambda s: FACTOR, doubled_global),
    "a part": (lambda s: s.part.weight.detach().mean(), another_part),
}


def doubled_slot(s):
    s.slots.gain = s.slots.gain * 2


def another_number_of_a_class(s):
    Box.gain = 3.0


def one_more_in_a_set(s):
    s.names.add("more")


def doubled_array(s):
    s.array *= 2


#: What is read in backward, and changed between it and forward.
READ_OTHERWISE = {
    "a number by getattr": (lambda s: getattr(s, "k"), doubled_number),  # noqa: B009
    "a number by __dict__": (lambda s: s.__dict__["k"], doubled_number),
    "a number by vars": (lambda s: vars(s)["k"], doubled_number),
    "a variable of a function": (
        lambda s: gain_of_a_closure(),
        lambda s: set_gain_of_a_closure(2.0),
    ),
    "a number of a class": (lambda s: type(s.box).gain, another_number_of_a_class),
    "a slot": (lambda s: s.slots.gain, doubled_slot),
    "a set": (lambda s: len(s.names), one_more_in_a_set),
    "a set by its entry": (lambda s: 3.0 if "more" in s.names else 1.0, one_more_in_a_set),
    "an array": (lambda s: torch.as_tensor(s.array), doubled_array),
}


def all_but_a_buffer(s):
    doubled_number(s)
    doubled_attribute(s)
    doubled_entry(s)
    another_last(s)
    s.seen = s.n + 1


def holding(f):
    """A function that makes a model with something of each kind."""
    return model(
        f,
        c=conv(),
        n=lambda: nn.Buffer(torch.ones(1)),
        seen=lambda: nn.Buffer(torch.ones(1)),
        k=lambda: 1.5,
        box=Box,
        d=lambda: {"a": torch.ones(1)},
        few=lambda: [torch.ones(1)],
        part=conv(size=1),
        other=conv(size=1),
        slots=Slots,
        names=lambda: {"one"},
        array=lambda: np.ones(1, "float32"),
    )


def trained(run):
    """Train; leave the global as it was."""
    global FACTOR
    try:
        train(run)
        run.note(FACTOR)
    finally:
        FACTOR = 1.0


def replaced_behind(way, read, replace):
    def forward(s, x):
        made = WAYS[way](s.c(x), lambda: read(s))
        replace(s)
        return made

    return Idiom(
        f"{way} reads what forward replaces behind it: {name_of(read)}",
        holding(forward),
        trained,
        REFUSED,
    )


def replaced_before(way, read, replace):
    def forward(s, x):
        y = s.c(x)
        replace(s)
        return WAYS[way](y, lambda: read(s))

    return Idiom(
        f"{way} reads what forward has replaced before it: {name_of(read)}",
        holding(forward),
        trained,
    )


def changed_between(change):
    """Steps that change something between forward and backward, and train then."""

    def steps(run):
        global FACTOR
        try:
            outputs = run(leaf(image()))
            change(run.model)
            run.backward(loss_of(outputs))
            train(run)
        finally:
            FACTOR = 1.0
            set_gain_of_a_closure(1.0)
            Box.gain = 1.5

    return steps


def replaced_between(way, read, replace, though=""):
    return Idiom(
        f"{way} reads what is replaced between forward and backward: {name_of(read)}",
        holding(lambda s, x: WAYS[way](s.c(x), lambda: read(s))),
        changed_between(replace),
        REFUSED,
        though,
    )


def others_replaced_between(way):
    return Idiom(
        f"{way} reads a buffer, and all else is replaced between forward and backward",
        holding(lambda s, x: WAYS[way](s.c(x), lambda: s.n)),
        changed_between(all_but_a_buffer),
    )


def two_forwards(run):
    first, second = run(leaf(image())), run(leaf(image(1)))
    run.backward(loss_of(first) + loss_of(second))


def a_forward_between(run):
    first = run(leaf(image()))
    run(image(1))
    run.backward(loss_of(first))


def with_autocast(run):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = run(leaf(image()))
    run.backward(loss_of(outputs))


def asks_for_autocast(s):
    return 3.0 if torch.is_autocast_enabled("cpu") else 1.0


def number_of(way, read):
    return lambda s, x: WAYS[way](s.c(x), lambda: read(s))


def anomalies_detected(run):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly():
            outputs = run(leaf(image()))
            run.backward(loss_of(outputs))
            broken = run(leaf(image(1) * torch.inf))
            run.fails(lambda: run.backward(loss_of(broken)))


def counted_and_read(s, x):
    s.n.add_(1)
    return by_a_hook(s.c(x), lambda: s.n)


def normalized_in_a_checkpoint(s, x):
    return checkpoint(lambda y: s.bn(y).sin(), s.c(x), use_reentrant=False)


def name_of(read):
    return next(name for name, (each, _) in (REPLACED | READ_OTHERWISE).items() if each is read)


def variables_of_loops(s, x):
    y, made = s.c(x), 0
    for i in range(3):
        z = y * 1
        z.register_hook(lambda gradient: gradient * i)  # noqa: B023
        made = made + z
    return made


def bound_variables_of_loops(s, x):
    y, made = s.c(x), 0
    for i in range(3):
        z = y * 1
        z.register_hook(lambda gradient, i=i: gradient * i)
        made = made + z
    return made


def a_variable(s, x):
    factor = 1.0
    z = s.c(x) * 1
    z.register_hook(lambda gradient: gradient * factor)
    factor = 5.0
    return z * factor


def a_nonlocal_variable(s, x):
    factor = 1.0

    def set_factor():
        nonlocal factor
        factor = 5.0

    made = by_a_hook(s.c(x), lambda: factor)
    set_factor()
    return made


def scaled(s, gradient):
    return gradient * s.n


def in_a_partial(s, x):
    y = s.c(x) * 1
    y.register_hook(functools.partial(scaled, s))
    doubled_buffer(s)
    return y * 1


def within_a_checkpoint(s, x):
    def body(y):
        made = by_a_hook(y, lambda: s.n)
        return made.sin()

    made = checkpoint(body, s.c(x), use_reentrant=False)
    doubled_buffer(s)
    return made


def a_variable_of_a_checkpoint(s, x):
    def body(y):
        factor = 1.0
        made = by_a_hook(y, lambda: factor)
        factor = 3.0
        return made.sin() * factor

    return checkpoint(body, s.c(x), use_reentrant=False)


def of_the_input(s, x):
    x.register_hook(lambda gradient: gradient * s.n)
    doubled_buffer(s)
    return s.c(x)


def by_grad_mode(s, x):
    return by_a_hook(s.c(x), lambda: 2.0 if torch.is_grad_enabled() else 3.0)


def others_behind_a_hook(s, x):
    made = by_a_hook(s.c(x), lambda: s.n)
    all_but_a_buffer(s)
    return made


def others_behind_a_function(s, x):
    made = Late.apply(s.c(x), lambda: s.n)
    all_but_a_buffer(s)
    return made


def others_behind_a_checkpoint(s, x):
    made = by_a_checkpoint(s.c(x), lambda: s.n)
    all_but_a_buffer(s)
    return made


def the_same_again(s, x):
    made = by_a_hook(s.c(x), lambda: s.n * s.k)
    s.n, s.k = s.n, s.k * 1
    return made


def a_tensor_hooked_later(s, x):
    y = s.c(x) * 1
    z = y * 2
    z.register_hook(lambda gradient: gradient * y)
    y.register_hook(lambda gradient: gradient * 3)
    s.seen = s.seen + 1
    return z * 1


def in_place_behind_a_checkpoint(s, x):
    made = by_a_checkpoint(s.c(x), lambda: s.n)
    doubled_in_place(s)
    return made


def a_map_behind_a_checkpoint(s, x):
    y = s.c(x)
    made = by_a_checkpoint(s.c(x + 1), lambda: y.detach())
    y.mul_(3)
    return made + y


def a_part_behind_a_checkpoint(s, x):
    y = s.c(x)
    made = by_a_checkpoint(s.c(x + 1), lambda: y[:, :1])
    y.mul_(3)
    return made + y


def in_place_before_a_checkpoint(s, x):
    y = s.c(x)
    doubled_in_place(s)
    return by_a_checkpoint(y, lambda: s.n)


def in_place_beside_a_checkpoint(s, x):
    made = by_a_checkpoint(s.c(x), lambda: s.n)
    s.seen.add_(1)
    return made


class Saving(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def a_saved_tensor_hooked_later(s, x):
    y = s.c(x)
    made = [Saving.apply(y)]
    y.register_hook(lambda gradient: gradient * 2)
    s.k = s.k * 2
    return made[0]


def its_own_tensor(s, x):
    y = s.c(x)
    z = y * 2
    y.register_hook(lambda gradient: gradient * y + (y > 0))
    s.seen = s.seen + 1
    return z + y


def in_a_local(s, x):
    n = s.n
    made = by_a_hook(s.c(x), lambda: n)
    doubled_buffer(s)
    return made


def kept_in_forward(s, x):
    made = Early.apply(s.c(x), s.n)
    doubled_buffer(s)
    return made


def an_argument_of_a_checkpoint(s, x):
    made = checkpoint(lambda y, n: (y * n).sin(), s.c(x), s.n, use_reentrant=False)
    doubled_buffer(s)
    return made


BY_DATA = "a number that depends on data"

CASES = [
    *(
        replaced_between(way, *pair, "a plan has it as forward left it" * (kind == "an array"))
        for way in ("a hook", "a checkpoint")
        for kind, pair in (REPLACED | READ_OTHERWISE).items()
    ),
    replaced_between("Function", *REPLACED["a buffer"]),
    replaced_between("a reentrant checkpoint", *REPLACED["a number"]),
    *map(others_replaced_between, WAYS),
    *(
        Idiom(
            f"{way} asks for autocast, and backward runs outside of its block",
            holding(number_of(way, asks_for_autocast)),
            with_autocast,
            EQUAL if "checkpoint" in way else REFUSED,
            computed_in=torch.bfloat16,
        )
        for way in WAYS
    ),
    *(
        Idiom(
            f"{way} makes a number of {kind}",
            holding(number_of(way, read)),
            train,
            REFUSED,
            BY_DATA,
        )
        for way in WAYS
        for kind, read in {
            "a buffer": lambda s: float(s.n),
            "an array": lambda s: float(s.array[0]),
        }.items()
    ),
    *(
        Idiom(
            f"{way} runs where anomalies are detected",
            holding(lambda s, x, way=way: WAYS[way](s.c(x), lambda: s.n)),
            anomalies_detected,
        )
        for way in WAYS
    ),
    Idiom(
        "a hook reads a buffer that is changed in place between forward and backward",
        holding(lambda s, x: by_a_hook(s.c(x), lambda: s.n)),
        changed_between(doubled_in_place),
        REFUSED,
        "TorchDynamo traces it with forward",
    ),
    Idiom(
        "a hook reads a buffer that the next forward changes in place",
        holding(counted_and_read),
        a_forward_between,
        REFUSED,
        "TorchDynamo traces it with forward",
    ),
    Idiom("a hook reads a buffer that its own forward changes", holding(counted_and_read), train),
    Idiom(
        "a checkpoint normalizes two batches before one backward",
        model(
            normalized_in_a_checkpoint,
            c=conv(),
            bn=lambda: nn.BatchNorm2d(4, track_running_stats=False),
        ),
        two_forwards,
    ),
    *(replaced_behind(way, *pair) for way in WAYS for pair in REPLACED.values()),
    *(replaced_before(way, *pair) for way in WAYS for pair in REPLACED.values()),
    *(
        Idiom(name, holding(f), trained, REFUSED)
        for name, f in {
            "a hook reads the variable of a loop": variables_of_loops,
            "a hook reads a variable that is set behind it": a_variable,
            "a hook reads a variable that another function sets": a_nonlocal_variable,
            "a hook in a partial reads a buffer that is replaced": in_a_partial,
            "a hook within a checkpoint reads a buffer that is replaced": within_a_checkpoint,
            "a hook within a checkpoint reads a variable of it": a_variable_of_a_checkpoint,
            "a hook reads a buffer, and forward replaces all else": others_behind_a_hook,
            "a checkpoint reads what forward changes in place": in_place_behind_a_checkpoint,
            "a checkpoint reads a map that is changed in place": a_map_behind_a_checkpoint,
            "a checkpoint reads a part of a map, changed in place": a_part_behind_a_checkpoint,
        }.items()
    ),
    *(
        Idiom(name, holding(f), trained)
        for name, f in {
            "a hook of the input reads a buffer that is replaced": of_the_input,
            "a hook has the variable of a loop as a default": bound_variables_of_loops,
            "a Function reads a buffer, and forward replaces all else": others_behind_a_function,
            "a checkpoint reads a buffer, and forward replaces all else": (
                others_behind_a_checkpoint
            ),
            "a hook reads what forward sets to what it was": the_same_again,
            "a hook reads a tensor that is hooked later": a_tensor_hooked_later,
            "a Function saves a tensor that is hooked later": a_saved_tensor_hooked_later,
            "a checkpoint reads what was changed in place": in_place_before_a_checkpoint,
            "a checkpoint reads a buffer, and another changes": in_place_beside_a_checkpoint,
            "a hook reads its own tensor": its_own_tensor,
            "a hook reads a local, whose buffer forward replaces": in_a_local,
            "a Function keeps a buffer, which forward replaces": kept_in_forward,
            "a checkpoint has a buffer as its argument": an_argument_of_a_checkpoint,
        }.items()
    ),
    Idiom(
        "a hook asks whether gradients are followed",
        holding(by_grad_mode),
        trained,
        beyond=DIFFERENT,
    ),
]
