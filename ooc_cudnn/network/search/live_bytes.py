"""Live bytes of the rematerialization search, slot by slot, kept up as events come and go."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np


class Version(NamedTuple):
    """A tensor from the slot in which it is made, or comes, to that of its last reader."""

    first: int
    last: int


def versions_of(accesses: Iterable[tuple[int, bool]]) -> Iterator[Version]:
    """The versions of a tensor that is touched in some slots, and is new in some of them."""
    first = last = -1
    for slot, is_new in accesses:
        if is_new and first >= 0:
            yield Version(first, last)
        if is_new or first < 0:
            first = slot
        last = slot
    yield Version(first, last)


class LiveBytes:
    """Bytes that live in each slot in which something happens: a phase, or an event that begins.

    Slots are numbered as `RematState.slot` does; so many as a phase has come before each phase.

    Parameters
    ----------
    nbytes : mapping of str to int
        Of tensors that events may change the versions of. They have none to begin with.
    phases : sequence of int
        The slot of each phase.
    in_phases, between : array of int64
        Bytes of all other tensors in each phase; and just before it, between two phases.
    working : array of float64
        Bytes that each phase takes beside tensors.

    Attributes
    ----------
    slots : list of int
        In order.
    """

    def __init__(
        self,
        nbytes: Mapping[str, int],
        phases: Sequence[int],
        in_phases: Any,
        between: Any,
        working: Any,
    ) -> None:
        self.slots, self._phase_slots, self._between = [*phases], phases, between
        #: Whole bytes: they are exact in any order.
        self._tensors, self._working = in_phases.astype(float), working.astype(float)
        self._begun = Counter[int]()
        self._names, self._nbytes = [*nbytes], np.array([*nbytes.values()], np.int64)
        self._rows = {name: row for row, name in enumerate(nbytes)}
        #: A row for each tensor, as long as the most versions; the rest holds no slot.
        self._first, self._last = np.zeros((len(nbytes), 1), int), np.full((len(nbytes), 1), -1)

    def copy(self) -> Self:
        """Return a copy that may change by itself."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        for name in ("slots", "_tensors", "_working", "_begun", "_first", "_last"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def held(self) -> Any:
        """Bytes that are held in each slot, an array of float64."""
        return self._tensors + self._working

    def begin(self, slot: int, beside: int, working: float) -> None:
        """Take in an event that begins in a slot, and takes bytes beside its tensor there."""
        at = bisect_left(self.slots, slot)
        if not self._begun[slot]:
            versions = ((self._first <= slot) & (slot <= self._last)).sum(axis=1)
            live = self._between[bisect_left(self._phase_slots, slot)] + versions @ self._nbytes
            self.slots.insert(at, slot)
            self._tensors = np.concatenate((self._tensors[:at], (live,), self._tensors[at:]))
            self._working = np.concatenate((self._working[:at], (0.0,), self._working[at:]))
        self._begun[slot] += 1
        self._tensors[at] += beside
        self._working[at] += working

    def forget(self, slot: int, beside: int, working: float) -> None:
        """Take out an event that begins in a slot."""
        at = bisect_left(self.slots, slot)
        self._begun[slot] -= 1
        self._tensors[at] -= beside
        self._working[at] -= working
        if not self._begun[slot]:
            del self.slots[at]
            self._tensors = np.concatenate((self._tensors[:at], self._tensors[at + 1 :]))
            self._working = np.concatenate((self._working[:at], self._working[at + 1 :]))

    def replace(self, name: str, before: Sequence[Version], versions: Sequence[Version]) -> None:
        """Take in the versions of a tensor, in place of those before."""
        row, count = self._rows[name], len(versions)
        nbytes = float(self._nbytes[row])
        same, fewest = 0, min(len(before), len(versions))
        while same < fewest and before[same] == versions[same]:
            same += 1
        for each, more in ((before[same:], -nbytes), (versions[same:], nbytes)):
            for first, last in each:
                begin, end = bisect_left(self.slots, first), bisect_right(self.slots, last)
                self._tensors[begin:end] += more
        if count > self._first.shape[1]:
            wider = (0, 0), (0, count)
            self._first = np.pad(self._first, wider)
            self._last = np.pad(self._last, wider, constant_values=-1)
        self._first[row, count:], self._last[row, count:] = 0, -1
        self._first[row, :count], self._last[row, :count] = zip(*versions, strict=True)

    def through(self, slot: int) -> list[str]:
        """Tensors of which a version begins before a slot and ends after it."""
        met = (self._first < slot) & (slot < self._last)
        return [self._names[row] for row in np.flatnonzero(met.any(axis=1))]
