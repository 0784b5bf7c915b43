"""Idioms of what is like what was there before, and another: types, objects, order, the largest."""

from __future__ import annotations

import collections
import operator

import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL, EQUAL_SINCE_2_13, REFUSED, Idiom
from tests.torch.idioms.models import conv, held, model, train


def in_turn(*changes):
    """Steps that train, change the model, and train again."""

    def steps(run):
        train(run)
        for change in changes:
            change(run.model)
            train(run)

    return steps


def to(name, make):
    return lambda q: setattr(q, name, make())


def typed(name, first, *others, of=lambda s: s.t[0], expected=REFUSED):
    """A factor that depends on the type of a number."""

    def forward(s, x):
        number = of(s)
        factor = 3 if isinstance(number, bool) else 5 if isinstance(number, float) else 2
        return s.c(x) * factor

    made = model(forward, c=conv(), t=held(first))
    steps = in_turn(*(to("t", held(each)) for each in (*others, first)))
    return Idiom(f"a type within a tuple: {name}", made, steps, expected)


def into(q):
    q.t[0][0] = 1.0


def in_place(q):
    q.t.clear()
    q.t.add(1.0)


Pair = collections.namedtuple("Pair", "a b")

TYPES = [
    typed("int, float, bool", (1, 2), (1.0, 2), (True, 2)),
    typed("nested", (1, (2, 3)), (1, (2.0, 3)), of=lambda s: s.t[1][0]),
    typed("in a list", [(1, 2)], [(1.0, 2)], of=lambda s: s.t[0][0]),
    typed("in a dict", {"a": (1, 2)}, {"a": (1.0, 2)}, of=lambda s: s.t["a"][0]),
    typed("a list within", ([1], 2), ([1.0], 2), of=lambda s: s.t[0][0]),
    typed("a namedtuple", Pair(1, 2), Pair(1.0, 2), of=lambda s: s.t.a, expected=EQUAL),
    typed("a frozenset", frozenset([1]), frozenset([True]), of=lambda s: next(iter(s.t))),
    Idiom(
        "a type within a tuple: a set that is changed in place",
        model(lambda s, x: s.c(x) * (5 if isinstance(next(iter(s.t)), float) else 2), c=conv(),
              t=lambda: {1}),
        in_turn(in_place),
        REFUSED,
    ),
    Idiom(
        "a type within a tuple: a list within is written to",
        model(lambda s, x: s.c(x) * (5 if isinstance(s.t[0][0], float) else 2), c=conv(),
              t=lambda: ([1], 2)),
        in_turn(into),
        REFUSED,
    ),
    Idiom(
        "a type within a tuple: a size",
        model(lambda s, x: s.c(x) * (5 if isinstance(s.t[0], torch.Size) else 2), c=conv(),
              t=lambda: ((2, 3),)),
        in_turn(to("t", lambda: (torch.Size([2, 3]),)), to("t", lambda: ((2, 3),))),
        REFUSED,
    ),
]  # fmt: skip


class Thing:
    """An object without `__eq__`."""


OBJECTS = {
    "a list": lambda: [1],
    "a dict": dict,
    "a set": lambda: {1},
    "an object": Thing,
    "a function": lambda: lambda x: x,
    "a module": nn.Identity,
    "a parameter": lambda: nn.Parameter(torch.ones(2)),
}
ASKED = {
    "is": lambda s: s.a is s.b,
    "is not": lambda s: s.a is not s.b,
    "operator.is_": lambda s: operator.is_(s.a, s.b),
    "in a tuple": lambda s: any(s.a is each for each in (s.b, None)),
}
#: Of what has no `==` of its own, and may be a key.
BY_EQUALITY = {
    "==": lambda s: s.a == s.b,
    "in a list": lambda s: s.a in [s.b],
    "index": lambda s: [s.b, s.a].index(s.a) == 0,
    "count": lambda s: [s.b, s.a].count(s.a) == 2,
    "in lists that are compared": lambda s: [1, s.a] == [1, s.b],
}
AS_KEYS = {
    "a key": lambda s: {s.a: True}.get(s.b, False),
    "a set": lambda s: len({s.a, s.b}) == 1,
}


def one_or_two(how, ask, what, make, *, was_looked_at=False):
    """Two attributes become one object, and two again."""

    def forward(s, x):
        if was_looked_at:
            x = x * (1 if callable(s.a) else 2) * (1 if callable(s.b) else 2)
        return s.c(x) * (2 if ask(s) else 3)

    steps = in_turn(lambda q: setattr(q, "b", q.a), to("b", make), lambda q: setattr(q, "a", q.b))
    name = f"{what} that becomes another: {how}" + (", looked at before" if was_looked_at else "")
    return Idiom(name, model(forward, c=conv(), a=make, b=make), steps, REFUSED)


IDENTITIES = [
    *(one_or_two(*ask, *each) for ask in ASKED.items() for each in OBJECTS.items()),
    *(
        one_or_two(*ask, what, OBJECTS[what])
        for ask in BY_EQUALITY.items()
        for what in ("an object", "a function", "a module")
    ),
    *(
        one_or_two(*ask, what, OBJECTS[what])
        for ask in AS_KEYS.items()
        for what in ("an object", "a function", "a module", "a parameter")
    ),
    *(
        one_or_two(how, {**ASKED, **BY_EQUALITY}[how], what, OBJECTS[what], was_looked_at=True)
        for how in ("is", "==")
        for what in ("an object", "a function", "a module")
    ),
]


class Levels(nn.Module):
    """Parts that are asked for which of them they are."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))
        self.first, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = self.first

    def forward(self, x):
        for part in self.parts:
            x = part(x) * (2 if part is self.parts[-1] else 3) if part is not self.other else x
        return x * (7 if self.other is self.head else 1) * (11 if self.first in self.parts else 1)


LEVELS = Idiom(
    "parts that are one or two",
    Levels,
    in_turn(
        lambda q: q.parts.__setitem__(2, q.parts[0]),
        lambda q: setattr(q, "other", q.head),
        lambda q: q.parts.__setitem__(1, q.first),
        lambda q: setattr(q, "other", q.parts[0]),
        lambda q: setattr(q, "other", nn.Conv2d(4, 4, 1)),
    ),
    REFUSED,
)


def in_order(s, x):
    for key, value in s.t.items():
        x = x * value if key == "a" else x + value
    return s.c(x)


def ordered():
    return collections.OrderedDict(a=2.0, b=3.0)


def reversed_order():
    made = ordered()
    made.move_to_end("a")
    return made


def hooked():
    made = conv()()
    made.register_forward_hook(lambda module, args, y: y * 2)
    made.register_forward_hook(lambda module, args, y: y + 1)
    return made


def hooks_in_turn(q):
    hooks = q.c._forward_hooks
    hooks.move_to_end(next(iter(hooks)))


ORDERS = [
    Idiom(
        "move_to_end between calls",
        model(in_order, c=conv(), t=ordered),
        in_turn(lambda q: q.t.move_to_end("a"), lambda q: q.t.move_to_end("a"),
                lambda q: q.t.move_to_end("b", last=False), to("t", ordered),
                to("t", reversed_order)),
        REFUSED,
    ),
    Idiom(
        "move_to_end of hooks",
        model(lambda s, x: s.c(x), c=hooked),
        in_turn(hooks_in_turn, hooks_in_turn),
        REFUSED,
    ),
]  # fmt: skip


def moves(last):
    def forward(s, x):
        s.t.move_to_end("a", last=last)
        return in_order(s, x)

    return forward


def least_recently_used(s, x):
    s.t.move_to_end("a")
    s.t["z"] = s.t.get("z", 0) + 1
    while len(s.t) > 2:
        s.t.popitem(last=False)
    return in_order(s, x)


def moves_each(s, x):
    s.t.move_to_end(next(iter(s.t)))
    return in_order(s, x)


def moves_in_a_hook(s, x):
    y = s.c(x)

    def hook(gradient):
        s.t.move_to_end("a")
        return gradient * 2

    y.register_hook(hook)
    return y * 1


def seen(*changes):
    """Train, between changes; note the order in the dictionary, which is the same one."""

    def steps(run):
        kept = run.model.t
        for change in (lambda q: None, *changes):
            change(run.model)
            train(run)
            run.note([list(kept.items()), kept is run.model.t])

    return steps


MOVES = [
    Idiom("move_to_end in forward", model(moves(True), c=conv(), t=ordered),
          seen(lambda q: q.t.move_to_end("b")), REFUSED),
    Idiom("move_to_end to the front in forward", model(moves(False), c=conv(), t=reversed_order),
          seen(lambda q: q.t.move_to_end("b", last=False)), REFUSED),
    Idiom("move_to_end of the first in forward", model(moves_each, c=conv(), t=ordered), seen(),
          REFUSED),
    Idiom("the least recently used are dropped in forward",
          model(least_recently_used, c=conv(), t=ordered), seen(lambda q: q.t.update(b=3.0))),
]  # fmt: skip


def largest(name, f, *changes, t, expected=REFUSED):
    steps = in_turn(*changes)
    return Idiom(f"by a key: {name}", model(lambda s, x: s.c(x) * f(s.t), c=conv(), t=t), steps,
                 expected)  # fmt: skip


def more(q):
    q.t["zz"] = 9


def less(q):
    q.t["a"] = 0


def two():
    return {"bb": 1, "c": 2}


LARGEST = [
    largest("max of a dict by its values", lambda t: t[max(t, key=t.get)], more, less, t=two),
    largest("min of a dict by its values", lambda t: 1 + t[min(t, key=t.get)], more, less, t=two),
    largest("max of items", lambda t: max(t.items(), key=lambda e: e[1])[1], more, less, t=two),
    largest("max of arguments", lambda t: t[max("bb", "c", key=t.get)],
            lambda q: q.t.update(bb=7), t=two, expected=EQUAL),
    largest("the first of two that are largest", lambda t: len(max(t, key=len)) + t.index(
            max(t, key=len)), lambda q: q.t.insert(0, "dd"), t=lambda: ["a", "bb", "cc"],
            expected=EQUAL),
    largest("max of none", lambda t: max(t, key=abs, default=3), lambda q: q.t.append(-5), t=list,
            expected=EQUAL),
    largest("max without one", lambda t: max(t, key=None), lambda q: q.t.append(5), t=lambda: [1],
            expected=EQUAL),
]  # fmt: skip


def by_a_stored_method():
    made = model(lambda s, x: s.c(x) * len(max("bb", "c", key=s.get)), c=conv(), t=two)()
    made.get = made.t.get
    return made


#: Refused before PyTorch 2.13, as a call of the method is.
BY_A_STORED_METHOD = Idiom(
    "by a key: a method of a dict that the model keeps",
    by_a_stored_method,
    in_turn(lambda q: q.t.update(bb=7)),
    EQUAL_SINCE_2_13,
)
#: Refused, as all that a hook writes to.
MOVED_LATE = Idiom(
    "move_to_end in a hook", model(moves_in_a_hook, c=conv(), t=ordered), seen(), REFUSED
)

CASES = [*TYPES, *IDENTITIES, LEVELS, *ORDERS, *MOVES, *LARGEST, BY_A_STORED_METHOD, MOVED_LATE]
