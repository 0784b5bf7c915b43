"""What is made again before which phases of a step, and what that takes: bytes and seconds.

A map may be let go, and made again before any phase of backward: an event. Whoever reads it later
reads what was made last. So any set of events makes a step (`repeating.py`), in which each version
of a map lives from its making to its last reader. Inputs, which are on the host as well, come back
from there instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.remaking import compared, is_repeatable
from ooc_cudnn.network.repeating import Again, makers_of
from ooc_cudnn.network.residency import results_of, uses_of

#: Smaller tensors, as a share of the room, live from their first use to their last.
SMALL = 2**-12


class Item(NamedTuple):
    """What can be had again.

    Attributes
    ----------
    is_made : bool
        By phases of forward; else it comes from the host.
    parents, beside : tuple of str
        What those phases read; and what they write beside it, which nobody reads.
    seconds : float
        That computing takes.
    lead : float
        Seconds before its reader at which a copy must begin.
    working : float
        Bytes that those phases take beside tensors.
    """

    is_made: bool
    parents: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    seconds: float = 0.0
    lead: float = 0.0
    working: float = 0.0


class Version(NamedTuple):
    """A tensor from the slot in which it is made, or comes, to that of its last reader."""

    first: int
    last: int


class Makings:
    """A step and the events in it.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    seconds_of : callable
        Of a phase.
    room_bytes : float
    copy_seconds : callable
        Of so many bytes from the host.
    always : collection of str
        Tensors that are there all the time, and no part of what is counted.
    working : sequence of float
        Bytes that each phase takes beside tensors; none when left out.

    Attributes
    ----------
    items : dict
        By name; in the order in which they can be made.
    events : set of Again
    versions : dict
        Of each tensor that events may change the versions of, in order.
    """

    def __init__(
        self,
        step: Step,
        seconds_of: Callable[[Phase], float],
        room_bytes: float,
        copy_seconds: Callable[[int], float],
        always: Collection[str] = (),
        working: Sequence[float] = (),
    ) -> None:
        self.step, self.room = step, room_bytes
        self.uses = {base: used for base, used in uses_of(step).items() if base not in always}
        self.nbytes = {base: aligned(step.tensors[base].nbytes) for base in self.uses}
        self._working = np.array(working if len(working) else np.zeros(len(step.phases)))
        self._ends = list(accumulate(seconds_of(phase) for phase in step.phases))
        self.items = {
            base: item
            for base in self.uses
            if self.nbytes[base] >= SMALL * room_bytes
            and (item := self._item(base, seconds_of, copy_seconds)) is not None
        }
        last_maker = {
            base: max((at for at in makers_of(step, base)), default=-1) for base in self.items
        }
        self._rank = {
            base: rank for rank, base in enumerate(sorted(self.items, key=last_maker.__getitem__))
        }
        self._width = len(self.items) + 1
        self.children = defaultdict[str, list[str]](list)
        for base, item in self.items.items():
            for parent in item.parents:
                self.children[parent].append(base)
        self.events = set[Again]()
        self._before = defaultdict[str, set[int]](set)
        large = {base for base, nbytes in self.nbytes.items() if nbytes >= SMALL * room_bytes}
        changing = [
            base for base in self.uses if base in large & (self.items | self.children).keys()
        ]
        self.accesses: dict[str, list[tuple[int, bool]]] = {}
        self.versions: dict[str, list[Version]] = {}
        self._follow(changing)
        fixed = [
            (self.slot(used.phases[0]), self.slot(used.phases[-1]), self.nbytes[base])
            for base, used in self.uses.items()
            if base not in self.versions
        ]
        self._fixed = np.array(fixed, np.int64).reshape(-1, 3)
        self._phase_slots = np.array([self.slot(at) for at in range(len(step.phases))])

    def _item(
        self,
        base: str,
        seconds_of: Callable[[Phase], float],
        copy_seconds: Callable[[int], float],
    ) -> Item | None:
        """How a tensor can be had again; None if it cannot."""
        step, tensor = self.step, self.step.tensors[base]
        if tensor.kind == "input" and not self.uses[base].written:
            return Item(is_made=False, lead=copy_seconds(tensor.nbytes))
        results = results_of(step) | set(step.seeds.values())
        if tensor.kind != "map" or base in results | _compared(step):
            return None
        made_by = makers_of(step, base)
        makers = [step.phases[at] for at in made_by]
        written = {at for at in self.uses[base].written if step.phases[at].is_backward}
        if not makers or written or not all(is_repeatable(step, phase) for phase in makers):
            return None
        reads = _bases(step, (name for phase in makers for name in phase.reads))
        writes = _bases(step, (name for phase in makers for name in phase.writes))
        return Item(
            is_made=True,
            parents=tuple(each for each in reads if each != base),
            beside=tuple(each for each in writes if each != base),
            seconds=sum(map(seconds_of, makers)),
            working=max(self._working[at] for at in made_by),
        )

    # Slots --------------------------------------------------------------------------------------

    def slot(self, phase: int, name: str | None = None) -> int:
        """The slot of a phase; or of what is made just before it."""
        return phase * self._width + (self._width - 1 if name is None else self._rank[name])

    def phase_of(self, slot: int) -> int:
        """The phase of a slot, or before which something is made in it."""
        return slot // self._width

    def start_of(self, event: Again) -> int:
        """The slot from which on an event takes memory."""
        item = self.items[event.name]
        if item.is_made:
            return self.slot(event.before, event.name)
        begins = self._ends[event.before - 1] - item.lead
        at = int(np.searchsorted(self._ends, begins, side="right"))
        return self.slot(min(at, event.before), event.name)

    # Events -------------------------------------------------------------------------------------

    def event(self, phase: int, name: str) -> Again:
        """The event that has a tensor again before a phase."""
        return Again(phase, name, self.items[name].is_made)

    def change(self, add: Iterable[Again] = (), remove: Iterable[Again] = ()) -> None:
        """Add events, and take some out."""
        touched = dict[str, None]()
        for events, is_new in ((add, True), (remove, False)):
            for event in events:
                if is_new:
                    self.events.add(event)
                    self._before[event.name].add(event.before)
                else:
                    self.events.discard(event)
                    self._before[event.name].discard(event.before)
                touched |= dict.fromkeys((event.name, *self.items[event.name].parents))
        self._follow(name for name in touched if name in self.versions)

    def _follow(self, names: Iterable[str]) -> None:
        """Work out the versions of tensors."""
        for name in names:
            found = [(self.slot(at), False) for at in self.uses[name].phases]
            for child in self.children.get(name, ()):
                found += [(self.slot(at, child), False) for at in self._before[child]]
            if name in self.items:
                again = (self.event(at, name) for at in self._before[name])
                found += [(self.start_of(event), True) for event in again]
            found.sort()
            self.accesses[name] = found
            self.versions[name] = list(_versions(found))

    def unread(self) -> list[Again]:
        """Events whose tensor nobody reads."""
        ends = {
            name: {version.first: version.last for version in self.versions[name]}
            for name in {event.name for event in self.events}
        }
        return [
            event
            for event in self.events
            if ends[event.name].get(start := self.start_of(event), start) == start
        ]

    def is_there(self, name: str, slot: int) -> bool:
        """Whether some version of a tensor lives in a slot."""
        return any(first <= slot <= last for first, last in self.versions[name])

    # What it takes ------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """That making again takes."""
        return sum(self.items[event.name].seconds for event in self.events)

    def held(self) -> tuple[Any, Any]:
        """The slots in which something happens, and the bytes that are held in each."""
        starts = {event: self.start_of(event) for event in self.events}
        slots = np.unique(
            np.concatenate([self._phase_slots, np.fromiter(starts.values(), np.int64)])
        )
        lives = [
            (first, last, self.nbytes[name])
            for name, versions in self.versions.items()
            for first, last in versions
        ]
        lives += [
            (at, at, self.nbytes[name])
            for event, at in starts.items()
            for name in self.items[event.name].beside
        ]
        first, last, nbytes = np.concatenate(
            [np.array(lives, np.int64).reshape(-1, 3), self._fixed]
        ).T
        come = np.bincount(np.searchsorted(slots, first), nbytes, len(slots) + 1)
        gone = np.bincount(np.searchsorted(slots, last) + 1, nbytes, len(slots) + 1)
        held = np.cumsum(come - gone)[:-1]
        held[np.searchsorted(slots, self._phase_slots)] += self._working
        for event, at in starts.items():
            held[np.searchsorted(slots, at)] += self.items[event.name].working
        return slots, held

    def in_order(self) -> tuple[Again, ...]:
        """The events, in the order of their slots."""
        return tuple(sorted(self.events, key=self.start_of))


def _bases(step: Step, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.place(name).base for name in names))


def _compared(step: Step) -> set[str]:
    return {step.place(name).base for name in compared(step)}


def _versions(accesses: Iterable[tuple[int, bool]]) -> Iterator[Version]:
    """The versions of a tensor that is touched in some slots, and is new in some of them."""
    first = last = -1
    for slot, is_new in accesses:
        if is_new and first >= 0:
            yield Version(first, last)
        if is_new or first < 0:
            first = slot
        last = slot
    yield Version(first, last)
