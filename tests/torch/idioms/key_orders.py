"""Idioms of dictionaries whose keys come in another order, or are of another type, in a later call.

Each goes through values, and what it computes depends on their order.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import changed, conv, image, leaf, loss_of, model

OTHERS = {"z": 0.5}


def gains():
    return {"a": 0.5, "b": 1.0, "c": 2.0}


def ordered_gains():
    return OrderedDict(gains())


def steps_of(values, x):
    for gain in values:
        x = x * gain + 1
    return x


def as_keywords(**held):
    return held.values()


def updated(d):
    made = {}
    made.update(d)
    return made.values()


def joined_in_place(d):
    made = dict(OTHERS)
    made |= d
    return made.values()


def turned(d):
    """Put a dictionary's keys in the opposite order."""
    items = list(d.items())
    d.clear()
    d.update(items[::-1])


#: Ways to read all of a dictionary.
READS = {
    "copied by **": lambda d: {**d}.values(),
    "copied by copy()": lambda d: d.copy().values(),
    "copied by dict()": lambda d: dict(d).values(),
    "copied by OrderedDict()": lambda d: OrderedDict(d).values(),
    "joined to another": lambda d: (d | OTHERS).values(),
    "joined behind another": lambda d: (OTHERS | d).values(),
    "joined in place": joined_in_place,
    "put into another": updated,
    "given as keywords": lambda d: as_keywords(**d),
    "read from behind": lambda d: [d[key] for key in reversed(d)],
    "compared as a list": lambda d: [2.0, 1.0] if list(d) == ["a", "b", "c"] else [1.0, 2.0],
    "read as a tuple": lambda d: [d[key] for key in tuple(d)],
    "joined as a string": lambda d: [2.0, 1.0] if "".join(d) == "abc" else [1.0, 2.0],
    "printed into a string": lambda d: [2.0, 1.0] if str(d).find("a") < 4 else [1.0, 2.0],
}
#: Of these, those whose order TorchDynamo compares by itself.
COMPARED = ("copied by dict()", "copied by OrderedDict()", "read from behind")


def of_an_argument(run):
    held = gains()
    for seed in range(3):
        run.backward(loss_of(run(leaf(image(seed)), dict(held))))
        turned(held)


def with_keys(*keys):
    """Calls with each of the keys in turn."""

    def steps(run):
        for key in keys:
            run.model.d = {key: 2.0}
            run.backward(loss_of(run(leaf(image()))))

    return steps


def by_type(s, x):
    y = s.c(x)
    for key, gain in {**s.d}.items():
        number = key[0] if isinstance(key, tuple) else key
        y = y * gain + (1 if type(number) is int else 2)
    return y


class Cases(dict):
    """A dictionary of a class of the user's."""


class Gains:
    def __init__(self):
        self.a, self.b, self.c = 0.5, 1.0, 2.0


CASES = [
    *(
        Idiom(
            f"a dictionary is {how}, and then its keys are turned",
            model(lambda s, x, read=read: steps_of(read(s.d), s.c(x)), c=conv(), d=gains),
            changed(lambda q: turned(q.d)),
            EQUAL if how in COMPARED else REFUSED,
        )
        for how, read in READS.items()
    ),
    Idiom(
        "an OrderedDict is copied, and then its keys are turned",
        model(lambda s, x: steps_of(s.d.copy().values(), s.c(x)), c=conv(), d=ordered_gains),
        changed(lambda q: q.d.move_to_end("a")),
        REFUSED,
    ),
    Idiom(
        "a dictionary is copied, and then replaced by one with its keys turned",
        model(lambda s, x: steps_of({**s.d}.values(), s.c(x)), c=conv(), d=gains),
        changed(lambda q: setattr(q, "d", dict(reversed(q.d.items())))),
        REFUSED,
    ),
    Idiom(
        "a dictionary is copied into an attribute, and then its keys are turned",
        model(lambda s, x: setattr(s, "kept", {**s.d}) or s.c(x), c=conv(), d=gains),
        changed(lambda q: turned(q.d)),
        REFUSED,
    ),
    Idiom(
        "an argument is copied, and its keys come in another order",
        model(lambda s, x, d: steps_of({**d}.values(), s.c(x)), c=conv()),
        of_an_argument,
        REFUSED,
    ),
    Idiom(
        "attributes of an object are copied, and then come in another order",
        model(
            lambda s, x: steps_of({**vars(s.o)}.values(), s.c(x)),
            c=conv(),
            o=Gains,
        ),
        changed(lambda q: turned(vars(q.o))),
        REFUSED,
    ),
    Idiom(
        "a key is of another type: 1, True, 1.0",
        model(by_type, c=conv()),
        with_keys(1, True, 1.0, 1),
        REFUSED,
    ),
    Idiom(
        "a number in a key is of another type: (1,), (True,), (1.0,)",
        model(by_type, c=conv()),
        with_keys((1,), (True,), (1.0,), (1,)),
        REFUSED,
    ),
    *(
        Idiom(
            f"{kind.__name__} is copied by copy.{how.__name__}",
            model(
                lambda s, x, how=how: steps_of(how(s.d).values(), s.c(x)),
                c=conv(),
                d=lambda kind=kind: kind(gains()),
            ),
            changed(lambda q: turned(q.d)),
            REFUSED,
        )
        for kind in (Cases, OrderedDict)
        for how in (copy.copy, copy.deepcopy)
    ),
]
