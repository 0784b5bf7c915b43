"""Windows whose place or size varies from output to output, along one axis, and their weights.

Interpolation, adaptive pooling, padding and cropping differ in nothing else: each element of y is
made of a run of neighbours in x along every axis. Where the run begins and ends never decreases
from one output to the next, so the outputs that see one element of x are a run, too: a gradient is
gathered by the same arithmetic turned round.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.ranges import Cycle, Range

#: Ranges whose elements or outputs are kept: a piece is asked for its own many times over.
REMEMBERED = 4096
#: An index, or an array of them.
Index = Any


@dataclass(frozen=True, slots=True)
class Nearest:
    """The element at ``floor(o * scale)``, the product rounded to float32 as PyTorch has it.

    For scales of which that matters; others are `Windows` of one element.
    """

    extent: int  #: of x
    count: int  #: of y
    scale: float

    cycle: ClassVar[Cycle | None] = None
    unclipped: ClassVar[Range] = (0, 0)
    longest: ClassVar[int] = 1

    def bounds(self, o: Index) -> tuple[Array, Array]:
        """Bounds in x of the runs of outputs `o`."""
        product = np.asarray(o).astype(np.float32) * np.float32(self.scale)
        start = np.minimum(np.floor(product).astype(np.int64), self.extent - 1)
        return start, start + 1

    def weights(self, o: Index, i: Index) -> Array:
        """Weights of elements `i` in outputs `o` whose runs they are in."""
        return np.ones(np.shape(i))


@dataclass(frozen=True, slots=True)
class Linear:
    """Two neighbours of the place ``(o + half / 2) * step / per - half / 2``, by their distance.

    `half` is 1, or 0 where the centres of the corners are aligned. Places are exact: integers. An
    axis that stays as it is (`step` is `per`) is copied: the right neighbour is not looked at.
    """

    extent: int
    count: int
    step: int
    per: int
    half: int

    longest: ClassVar[int] = 2  #: elements of a run, at most

    @property
    def is_copied(self) -> bool:
        """True if output o is element o."""
        return self.step == self.per

    def _place(self, o: Index) -> tuple[Array, Array]:
        """The left neighbour, and how far beyond it the place is."""
        whole = 2 * self.per
        place = (2 * np.asarray(o, np.int64) + self.half) * self.step - self.half * self.per
        place = np.maximum(place, 0)
        left = np.minimum(place // whole, self.extent - 1)
        return left, np.minimum((place - left * whole) / whole, 1.0)

    def bounds(self, o: Index) -> tuple[Array, Array]:
        """Bounds in x of the runs of outputs `o`."""
        left, _ = self._place(o)
        return left, np.minimum(left + (1 if self.is_copied else 2), self.extent)

    def weights(self, o: Index, i: Index) -> Array:
        """Weights of elements `i` in outputs `o` whose runs they are in."""
        left, beyond = self._place(o)
        alone = (left + 1 == self.extent) | self.is_copied
        return np.where(np.asarray(i) == left, np.where(alone, 1.0, 1.0 - beyond), beyond)

    @property
    def cycle(self) -> Cycle | None:
        """Period after which runs are the same again."""
        return _cycle(self.step, self.per)

    @property
    def unclipped(self) -> Range:
        """The outputs that no border of x changes."""
        if not self.step:
            return 0, 0
        first = -(-self.half * (self.per - self.step) // (2 * self.step))
        room = 2 * (self.extent - 1) * self.per - 1 + self.half * (self.per - self.step)
        return _within(self.count, first, room // (2 * self.step) + 1)


@dataclass(frozen=True, slots=True)
class Windows:
    """All from ``floor(o * step / per) - before`` to ``ceil((o * step + reach) / per) - before``.

    Clipped to x. Each counts one part in as many as the window has, `after` elements of padding
    behind x and all before it among them.
    """

    extent: int
    count: int
    step: int
    per: int = 1
    reach: int = 1
    before: int = 0
    after: int = 0

    def _unclipped(self, o: Index) -> tuple[Array, Array]:
        at = np.asarray(o, np.int64) * self.step
        return at // self.per - self.before, -(-(at + self.reach) // self.per) - self.before

    def bounds(self, o: Index) -> tuple[Array, Array]:
        """Bounds in x of the runs of outputs `o`."""
        start, stop = self._unclipped(o)
        return np.clip(start, 0, self.extent), np.clip(stop, 0, self.extent)

    def weights(self, o: Index, i: Index) -> Array:
        """Weights of elements `i` in outputs `o` whose runs they are in."""
        start, stop = self._unclipped(o)
        return 1.0 / (np.minimum(stop, self.extent + self.after) - start)

    @property
    def cycle(self) -> Cycle | None:
        """Period after which runs are the same again."""
        return _cycle(self.step, self.per)

    @property
    def longest(self) -> int:
        """Elements of a run, at most."""
        return (self.reach + self.per - 2) // self.per + 1

    @property
    def unclipped(self) -> Range:
        """The outputs that no border of x changes."""
        first = -(-self.before * self.per // self.step)
        room = (self.extent + self.before) * self.per - self.reach
        return _within(self.count, first, room // self.step + 1)


def _cycle(step: int, per: int) -> Cycle | None:
    common = math.gcd(step, per)
    return Cycle(per // common, step // common) if step else None


def _within(count: int, first: int, stop: int) -> Range:
    first = min(max(first, 0), count)
    return first, max(first, min(stop, count))


AxisWindows = Nearest | Linear | Windows


@lru_cache(maxsize=REMEMBERED)
def seen_range(windows: AxisWindows, outputs: Range) -> Range:
    """The elements of x that a range of outputs sees.

    >>> seen_range(Linear(4, 8, 1, 2, 1), (2, 4)), seen_range(Windows(5, 3, 5, 3, 5), (1, 2))
    ((0, 3), (1, 4))
    """
    start = int(windows.bounds(outputs[0])[0])
    if outputs[0] == outputs[1]:
        return start, start
    return start, max(start, int(windows.bounds(outputs[1] - 1)[1]))


@lru_cache(maxsize=REMEMBERED)
def outputs_reaching(windows: AxisWindows, elements: Range) -> Range:
    """The outputs that see a range of elements of x.

    >>> outputs_reaching(Linear(4, 8, 1, 2, 1), (0, 1))
    (0, 3)
    >>> outputs_reaching(Windows(5, 3, 5, 3, 5), (1, 2))
    (0, 2)
    """
    every = range(windows.count)
    first = bisect_right(every, elements[0], key=lambda o: int(windows.bounds(o)[1]))
    if elements[0] == elements[1]:
        return first, first
    stop = bisect_right(every, elements[1] - 1, key=lambda o: int(windows.bounds(o)[0]))
    return first, max(first, stop)


def cycles(windows: AxisWindows, outputs: Range, margin: int = 0) -> int:
    """Number of cycles further up at which a range of outputs looks at x in the same way.

    0 where a border clips a run of it, or of the `margin` outputs beside it.

    >>> cycles(Windows(12, 6, step=2, reach=2), (4, 6)), cycles(Linear(5, 10, 1, 2, 1), (7, 9))
    (4, 3)
    """
    first, stop = windows.unclipped
    if windows.cycle is None or not first + margin <= outputs[0] < outputs[1] <= stop - margin:
        return 0
    return (outputs[0] - first - margin) // windows.cycle.outputs


def is_clipped(windows: AxisWindows, outputs: Range, margin: int = 0) -> bool:
    """True if a border changes what a range of outputs, or the `margin` beside it, sees."""
    first, stop = windows.unclipped
    return not first + margin <= outputs[0] < outputs[1] <= stop - margin


def shift_range(part: Range, by: int) -> Range:
    """A range, so much further on."""
    return part[0] + by, part[1] + by


class Runs(NamedTuple):
    """Run that each element is made of, and the weights of its elements.

    `weights` has one number for every element of every run, one run after the other.
    """

    starts: Array
    stops: Array
    weights: Array

    @property
    def elements(self) -> Array:
        """Every element of every run, one run after the other."""
        lengths = self.stops - self.starts
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        elements: Array = within + np.repeat(self.starts, lengths)
        return elements


def runs(windows: AxisWindows, made: Range, *, gradient: bool) -> Runs:
    """Return the runs of x that outputs `made` take; for a gradient, runs of outputs."""
    places = np.arange(*made)
    if gradient:
        outputs = np.arange(*outputs_reaching(windows, made))
        begin, end = windows.bounds(outputs)
        first = outputs[0] if len(outputs) else 0
        starts = first + np.searchsorted(end, places, "right")
        stops = np.maximum(starts, first + np.searchsorted(begin, places, "right"))
    else:
        starts, stops = windows.bounds(places)
    taps = Runs(starts, np.maximum(starts, stops), np.empty(0))
    of, elements = np.repeat(places, taps.stops - starts), taps.elements
    return taps._replace(
        weights=windows.weights(elements, of) if gradient else windows.weights(of, elements)
    )
