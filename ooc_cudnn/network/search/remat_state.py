"""State of the rematerialization search: versions, live bytes and cost under a set of events.

A map may be let go, and made again before any phase of backward, or come back from the host: an
event. Whoever reads it later reads what was had last. So any set of events makes a step
(`insert_remat_events.py`), in which each version of a map lives from its making to its last
reader. What is given, inputs and weights, is on the host as well, and may come back from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.cost.copy_timeline import Copy, copy_of, offload_ends, prefetch_starts
from ooc_cudnn.network.ir.step import Phase, RematEvent, Step
from ooc_cudnn.network.ir.tensor import GIVEN
from ooc_cudnn.network.passes.insert_remat_events import producers_of
from ooc_cudnn.network.passes.remat_for_backward import compared_maps, is_repeatable
from perfmodel import MachineModel

#: Smaller tensors, as a share of the room, live from their first use to their last.
SMALL = 2**-12


class Item(NamedTuple):
    """A tensor that can be recomputed or fetched again.

    Attributes
    ----------
    copy : Copy, optional
        What it takes over the link; None where it cannot come from there.
    made_by : tuple of int
        The phases of forward that make it and may run again; none where they may not.
    parents : tuple of str
        What those phases read.
    beside : int
        Bytes of what they write beside it, which nobody reads.
    seconds : float
        That they take.
    working : float
        Bytes that they take beside tensors.
    """

    copy: Copy | None
    made_by: tuple[int, ...] = ()
    parents: tuple[str, ...] = ()
    beside: int = 0
    seconds: float = 0.0
    working: float = 0.0


class Version(NamedTuple):
    """A tensor from the slot in which it is made, or comes, to that of its last reader."""

    first: int
    last: int


class RematState:
    """A step and the events in it.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    seconds_of : callable
        Of a phase.
    room_bytes : float
    machine : MachineModel
    copied : collection of str
        Kinds of tensors that may come from the host, and leave for it where they are not there.
    always : collection of str
        Tensors that are there all the time, and no part of what is counted.
    working : sequence of float
        Bytes that each phase takes beside tensors; none when left out.

    Attributes
    ----------
    items : dict
        By name; in the order in which they can be made.
    events : set of RematEvent
    versions : dict
        Of each tensor that events may change the versions of, in order.
    """

    def __init__(
        self,
        step: Step,
        seconds_of: Callable[[Phase], float],
        room_bytes: float,
        machine: MachineModel,
        always: Collection[str] = (),
        working: Sequence[float] = (),
        *,
        copied: Collection[str],
    ) -> None:
        self.step, self.room = step, room_bytes
        self._machine, self._copied = machine, copied
        self.uses = {base: used for base, used in step.uses.items() if base not in always}
        self.nbytes = {base: align(step.tensors[base].nbytes) for base in self.uses}
        self._working = np.array(working if len(working) else np.zeros(len(step.phases)))
        self._ends = list(accumulate(seconds_of(phase) for phase in step.phases))
        self._loss = machine.losses.get("copies", 0.0)
        live_ranges = step.results | set(step.seeds.values())
        live_ranges |= {step.base(name) for name in compared_maps(step)}
        self.items = {
            base: item
            for base in self.uses
            if self.nbytes[base] >= SMALL * room_bytes
            and base not in live_ranges
            and (item := self._item(base, seconds_of)) is not None
        }
        order = sorted(self.items, key=lambda base: max(self.items[base].made_by, default=-1))
        self._rank = {base: rank for rank, base in enumerate(order)}
        self._width = len(self.items) + 1
        self.children = defaultdict[str, list[str]](list)
        for base, item in self.items.items():
            for parent in item.parents:
                self.children[parent].append(base)
        self.events, self.times_counted = set[RematEvent](), 0
        self._of = defaultdict[str, set[RematEvent]](set)
        #: The slots from which on events take memory; and of what is made again beside that, the
        #: bytes written beside it, and those that its makers work in.
        self._starts = dict[RematEvent, int]()
        self._made = dict[RematEvent, tuple[int, int, float]]()
        #: When copies begin, and by when what is copied back has left.
        self._begun: dict[RematEvent, int] = {}
        self._left: dict[str, int] = {}
        large = {base for base, nbytes in self.nbytes.items() if nbytes >= SMALL * room_bytes}
        large &= self.items.keys() | self.children.keys()
        changing = [base for base in self.uses if base in large]
        #: What phases of the step itself read or write, by the slots.
        self._by_phases = {
            base: [(self.slot(at), False) for at in self.uses[base].phases] for base in changing
        }
        self.accesses: dict[str, list[tuple[int, bool]]] = {}
        self.versions: dict[str, list[Version]] = {}
        self._unread: dict[str, list[RematEvent]] = {}
        self._lives = _Lives([(base, self.nbytes[base]) for base in changing])
        self._follow(changing)
        #: Of what events change nothing of: the bytes that come in a phase, and go after it.
        self._come, self._gone = np.zeros((2, len(step.phases)), np.int64)
        for base in self.uses.keys() - self.versions.keys():
            self._come[self.uses[base].phases[0]] += self.nbytes[base]
            self._gone[self.uses[base].phases[-1]] += self.nbytes[base]
        self._phase_slots = np.array([self.slot(at) for at in range(len(step.phases))])

    def _item(self, base: str, seconds_of: Callable[[Phase], float]) -> Item | None:
        """The ways in which a tensor can be had again; None if it cannot."""
        step, tensor = self.step, self.step.tensors[base]
        backward = [at for at in self.uses[base].phases if step.phases[at].is_backward]
        if (not backward and tensor.kind != "map") or self._is_changed(base):
            return None
        copy = None
        if tensor.kind in self._copied:
            copy = copy_of(tensor.nbytes, self._machine, leaves=tensor.kind == "map")
        made_by = producers_of(step, base) if tensor.kind == "map" else ()
        makers = [step.phases[at] for at in made_by]
        if not makers or not all(is_repeatable(step, phase) for phase in makers):
            return None if copy is None else Item(copy)
        reads = _bases(step, (name for phase in makers for name in phase.reads))
        # of what parts of the batch share, a part makes its images again
        beside = {
            step.base(name): self.nbytes.get(step.base(name), align(step.tensors[name].nbytes))
            for phase in makers
            for name in phase.writes
            if step.base(name) != base
        }
        return Item(
            copy,
            made_by,
            tuple(each for each in reads if each != base),
            sum(beside.values()),
            sum(map(seconds_of, makers)),
            max(self._working[at] for at in made_by),
        )

    def _is_changed(self, base: str) -> bool:
        """True if a tensor is no map or given one, or is written where it may be had again."""
        kind, written = self.step.tensors[base].kind, self.uses[base].written
        if kind != "map":
            return kind not in GIVEN or bool(written)
        return any(self.step.phases[at].is_backward for at in written)

    # Slots --------------------------------------------------------------------------------------

    def slot(self, phase: int, name: str | None = None) -> int:
        """The slot of a phase; or of what is made just before it."""
        return phase * self._width + (self._width - 1 if name is None else self._rank[name])

    def phase_of(self, slot: int) -> int:
        """The phase of a slot, or before which something is made in it."""
        return slot // self._width

    def start_of(self, event: RematEvent) -> int:
        """The slot from which on an event takes memory."""
        return self.slot(event.before if event.is_made else self._begun[event], event.name)

    def may_begin(self, event: RematEvent) -> int:
        """The slot in which that would be, if nothing else were copied."""
        copy = self.items[event.name].copy
        if event.is_made or copy is None:
            return self.slot(event.before, event.name)
        (begins,) = prefetch_starts([(event.before, copy.back)], self._ends)
        return self.slot(begins, event.name)

    # Events -------------------------------------------------------------------------------------

    def ways(self, phase: int, name: str) -> list[RematEvent]:
        """The events that have a tensor again before a phase."""
        item = self.items[name]
        found = [RematEvent(phase, name)] if item.made_by else []
        return found + [RematEvent(phase, name, is_made=False)] * (item.copy is not None)

    def change(self, add: Iterable[RematEvent] = (), remove: Iterable[RematEvent] = ()) -> None:
        """Add events, and take some out."""
        touched, copied = dict[str, None](), False
        for events, is_new in ((add, True), (remove, False)):
            for event in events:
                change = set.add if is_new else set.discard
                change(self.events, event)
                change(self._of[event.name], event)
                self._place(event, is_new=is_new)
                parents = self.items[event.name].parents if event.is_made else ()
                touched |= dict.fromkeys((event.name, *parents))
                copied = copied or not event.is_made
        if copied:
            touched |= dict.fromkeys(event.name for event in self._begun)
            self._copies()
            self._starts |= {event: self.start_of(event) for event in self._begun}
            touched |= dict.fromkeys(event.name for event in self._begun)
        self._follow(name for name in touched if name in self.versions)

    def _place(self, event: RematEvent, *, is_new: bool) -> None:
        """Note where an event of a making takes memory, or forget any event."""
        if not is_new:
            self._starts.pop(event, None)
            self._made.pop(event, None)
        elif event.is_made:
            item, start = self.items[event.name], self.start_of(event)
            self._starts[event], self._made[event] = start, (start, item.beside, item.working)

    def _copies(self) -> None:
        """Work out when copies begin and end."""
        fetches, out = dict[RematEvent, tuple[int, float]](), dict[str, tuple[int, float]]()
        for event in sorted(self.events):
            copy = self.items[event.name].copy
            if event.is_made or copy is None:
                continue
            fetches[event] = event.before, copy.back
            if copy.out:
                out[event.name] = self.uses[event.name].written[-1], copy.out
        begun, left = (
            prefetch_starts([*fetches.values()], self._ends),
            offload_ends([*out.values()], self._ends),
        )
        self._begun, self._left = (
            dict(zip(fetches, begun, strict=True)),
            dict(zip(out, left, strict=True)),
        )
        for event, start in self._begun.items():  # what has not left yet cannot come
            first = self._left.get(event.name, self.uses[event.name].phases[0]) + 1
            self._begun[event] = min(max(start, first), event.before)

    def _follow(self, names: Iterable[str]) -> None:
        """Work out the versions of tensors."""
        for name in names:
            slots, own = self._by_phases[name].copy(), self._of.get(name, ())
            for child in self.children.get(name, ()):
                for event in self._of.get(child, ()):
                    if event.is_made:  # it reads its parents in the slot in which it is made
                        slots.append((self._starts[event], False))
            slots += [(self._starts[event], True) for event in own]
            slots.sort()
            self.accesses[name] = slots
            first, *later = _versions(slots)
            if name in self._left:
                left = self.slot(self._left[name])
                last = min(left, later[0].first - 1) if later else left
                first = first._replace(last=max(first.last, last))
            self.versions[name] = [first, *later]
            ends = dict[int, int](self.versions[name])
            self._unread[name] = [
                event for event in own if ends.get(start := self._starts[event], start) == start
            ]
            self._lives.note(name, self.versions[name])

    def unread(self) -> list[RematEvent]:
        """Events whose tensor nobody reads."""
        return [*chain.from_iterable(self._unread.values())]

    def is_there(self, name: str, slot: int) -> bool:
        """True if some version of a tensor lives in a slot."""
        return any(first <= slot <= last for first, last in self.versions[name])

    def held_through(self, slot: int) -> list[str]:
        """Tensors of which a version lives before a slot and after it."""
        return self._lives.through(slot)

    # What it takes ------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """That making again takes, and that computing loses to copies."""
        return fsum(map(self.seconds_of, self.events))  # in any order: events are a set

    def seconds_of(self, event: RematEvent) -> float:
        """Return the seconds of an event."""
        item = self.items[event.name]
        if event.is_made or item.copy is None:
            return item.seconds
        return self._loss * (item.copy.back + item.copy.out)

    @property
    def saved_by_copies(self) -> float:
        """Return seconds saved if tensors that take longer to recompute came from the host.

        As a share of what all phases take.
        """
        copied = (event._replace(is_made=False) for event in self.events if event.is_made)
        saved = (
            self.seconds_of(event._replace(is_made=True)) - self.seconds_of(event)
            for event in copied
            if self.items[event.name].copy is not None
        )
        return fsum(max(each, 0.0) for each in saved) / self._ends[-1]

    def held(self) -> tuple[Any, Any]:
        """The slots in which something happens, and the bytes that are held in each."""
        self.times_counted += 1
        starts = np.fromiter(self._starts.values(), np.int64, len(self._starts))
        slots = np.sort(np.append(self._phase_slots, starts))
        slots = slots[np.append(True, slots[1:] > slots[:-1])]
        first, last, nbytes = self._lives.all()
        come = np.bincount(slots.searchsorted(first), nbytes, len(slots) + 1)
        gone = np.bincount(slots.searchsorted(last) + 1, nbytes, len(slots) + 1)
        phases = slots.searchsorted(self._phase_slots)
        come[phases] += self._come
        gone[phases + 1] += self._gone
        held = np.cumsum(come - gone, dtype=float)[:-1]
        held[phases] += self._working
        runs, beside, working = zip(*self._made.values(), strict=True) if self._made else ((),) * 3
        indices = slots.searchsorted(runs)
        held += np.bincount(indices, beside, len(slots))
        return slots, held + np.bincount(indices, working, len(slots))

    def in_order(self) -> tuple[RematEvent, ...]:
        """The events, in the order in which they happen."""
        return tuple(sorted(self.events, key=lambda each: (each.before, self.start_of(each))))

    def begins(self, event: RematEvent) -> int:
        """The phase before which a copy from the host begins."""
        return self._begun[event]

    @property
    def left(self) -> Mapping[str, int]:
        """The phase by which each map that comes back has left."""
        return self._left


class _Lives:
    """The versions of tensors, as arrays: a row for each tensor, as long as the most versions."""

    def __init__(self, nbytes: Sequence[tuple[str, int]]) -> None:
        self._names = [name for name, _ in nbytes]
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._nbytes = np.array([each for _, each in nbytes], np.int64)
        self._first, self._last = np.zeros((2, len(nbytes), 1), np.int64)
        self._counts = np.zeros(len(nbytes), np.int64)

    def note(self, name: str, versions: Sequence[Version]) -> None:
        """Take in the versions of a tensor."""
        row, count = self._rows[name], len(versions)
        if count > self._first.shape[1]:
            wider = (0, 0), (0, count)
            self._first, self._last = np.pad(self._first, wider), np.pad(self._last, wider)
        self._first[row, :count], self._last[row, :count] = zip(*versions, strict=True)
        self._counts[row] = count

    def through(self, slot: int) -> list[str]:
        """Tensors of which a version begins before a slot and ends after it."""
        there = np.arange(self._first.shape[1]) < self._counts[:, None]
        met = there & (self._first < slot) & (slot < self._last)
        return [self._names[row] for row in np.flatnonzero(met.any(axis=1))]

    def all(self) -> tuple[Any, Any, Any]:
        """The first slot, the last slot and the bytes of every version."""
        there = np.arange(self._first.shape[1]) < self._counts[:, None]
        return self._first[there], self._last[there], self._nbytes.repeat(self._counts)


def _bases(step: Step, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.base(name) for name in names))


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
