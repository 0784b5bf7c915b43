"""How an array lies in memory: drawn, and told by the index of every element in a flat buffer.

A layout permutes the axes, takes every second or third element, runs backwards, broadcasts, leaves
room around the array, and starts at any element. The same few steps make a view of a flat NumPy,
CuPy or PyTorch buffer, and of the numbers 0, 1, 2...: so the test knows which elements belong to
the array, and which lie around it and must stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Axes from the outermost to the innermost in memory; step 0 is broadcast, below 0 backwards.

    `before` and `after` are elements left free on each axis, `offset` those before all of it.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    offset: int = 0

    @classmethod
    def packed(cls, axes):
        return cls(tuple(range(axes)), (1,) * axes, (0,) * axes, (0,) * axes)

    def __str__(self):
        axes = len(self.order)
        said = []
        if self.order != tuple(range(axes)):
            said.append("order " + "".join(map(str, self.order)))
        if set(self.steps) != {1}:
            said.append("steps " + ",".join(map(str, self.steps)))
        if any(self.before + self.after):
            rooms = zip(self.before, self.after, strict=True)
            said.append("room " + ",".join(f"{before}+{after}" for before, after in rooms))
        if self.offset:
            said.append(f"offset {self.offset}")
        return " ".join(said) or "packed"

    def room(self, shape):
        """Elements that each axis takes in memory."""
        return tuple(
            before + ((extent - 1) * abs(step) + 1 if step else 1) + after
            for extent, step, before, after in zip(
                shape, self.steps, self.before, self.after, strict=True
            )
        )

    def count(self, shape):
        """Elements of the flat buffer; some are left free after the last one."""
        return self.offset + math.prod(self.room(shape)) + 8

    def view(self, flat, shape):
        """A view of `shape` of a flat buffer of any framework."""
        room = self.room(shape)
        made = flat[self.offset : self.offset + math.prod(room)]
        made = made.reshape([room[axis] for axis in self.order])
        back = [self.order.index(axis) for axis in range(len(shape))]
        made = made.permute(back) if hasattr(made, "permute") else made.transpose(back)
        forth = []
        for extent, step, before in zip(shape, self.steps, self.before, strict=True):
            forth.append(slice(before, before + (extent - 1) * abs(step) + 1, abs(step) or 1))
        made = made[tuple(forth)]
        if min(self.steps) < 0:
            made = made[tuple(slice(None, None, -1 if step < 0 else 1) for step in self.steps)]
        if 0 in self.steps:
            made = _broadcast(made, shape)
        return made

    def index(self, shape):
        """Of every element of the array, its place in the flat buffer."""
        return self.view(np.arange(self.count(shape)), shape)

    def forwards(self):
        """The same without negative steps, which PyTorch has not."""
        return replace(self, steps=tuple(abs(step) for step in self.steps))

    def varied(self, values):
        """Values that are the same along the axes that are broadcast."""
        if 0 not in self.steps:
            return values
        first = tuple(slice(0, 1) if step == 0 else slice(None) for step in self.steps)
        return np.ascontiguousarray(np.broadcast_to(values[first], values.shape))


def _broadcast(array, shape):
    if hasattr(array, "expand"):
        return array.expand(*shape)
    if isinstance(array, np.ndarray):
        return np.broadcast_to(array, shape, subok=True)
    import cupy

    return cupy.broadcast_to(array, shape)


KINDS = {"packed": 35, "last": 15, "permuted": 10, "rows": 10, "strided": 10, "any": 20}


def draw_layout(stream, shape, *, may_broadcast):
    """One of the ways that users' arrays lie, often a simple one."""
    axes = len(shape)
    kind = stream.weighted(KINDS)
    made = Layout.packed(axes)
    order = list(range(axes))
    if kind == "last" and axes > 2:
        made = replace(made, order=(0, *range(2, axes), 1))
    elif kind in ("permuted", "any"):
        stream.shuffle(order)
        made = replace(made, order=tuple(order))
    if kind in ("rows", "any"):
        axis = stream.randrange(axes)
        before, after = [0] * axes, [0] * axes
        before[axis], after[axis] = stream.randrange(4), stream.randrange(4)
        if kind == "rows" and axes > 3 and stream.chance(0.5):
            made = replace(made, order=(0, *range(2, axes), 1))
        made = replace(made, before=tuple(before), after=tuple(after))
    if kind in ("strided", "any"):
        steps = [stream.choice((1, 1, 1, 2, 3, -1, -2)) for _ in range(axes)]
        if may_broadcast and stream.chance(0.3):
            steps[stream.randrange(axes)] = 0
        if math.prod(abs(step) or 1 for step in steps) <= 36:
            made = replace(made, steps=tuple(steps))
    if stream.chance(0.25):
        made = replace(made, offset=stream.randrange(1, 9))
    return made
