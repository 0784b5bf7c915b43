"""Idioms of objects that say by `bool` or `len` which way forward goes."""

from __future__ import annotations

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import conv, image, loss_of, model


class Schedule:
    """On or off by a number, as its class says."""

    def __init__(self, step):
        self.step = step


class Since(Schedule):
    def __bool__(self):
        return self.step > 1


class Queue(Schedule):
    def __len__(self):
        return self.step


def of_a_truth(name, read, kind, steps):
    """An idiom: what an object says by `bool` or `len` is of a number that changes."""

    def run_steps(run):
        for step in steps:
            run.model.schedule.step = step
            run.backward(loss_of(run(image())))

    return Idiom(name, model(read, c=conv(), schedule=lambda: kind(steps[0])), run_steps)


def if_on(s, x):
    return s.c(x) * 2 if s.schedule else s.c(x) * 3


def if_not_on(s, x):
    y = s.c(x)
    if not s.schedule:
        y = y * 3
    return y * 2 if s.schedule and s.schedule.step else y


CASES = [
    of_a_truth("an object is true by a number", if_on, Since, (1, 3, 4, 0)),
    of_a_truth("an object is true by a number, and is not", if_not_on, Since, (5, 6, 7, 1)),
    of_a_truth("an object is true by its length", if_on, Queue, (0, 2, 3, 0)),
    of_a_truth("an object is true by its length, and is not", if_not_on, Queue, (1, 2, 0, 3)),
]
