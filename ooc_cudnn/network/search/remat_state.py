"""State of the rematerialization search: versions, live bytes and cost under a set of events.

A map may be let go, and made again before any phase of backward, or come back from the host: an
event. Whoever reads it later reads what was had last. So any set of events makes a step
(`insert_remat_events.py`), in which each version of a map lives from its making to its last
reader. What is given, inputs and weights, is on the host as well, and may come back from there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import accumulate, chain
from math import fsum
from typing import Any, NamedTuple, Self

import numpy as np

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.cost.copy_timeline import Copy, copy_of, offload_ends, prefetch_starts
from ooc_cudnn.network.ir.step import Phase, RematEvent, Step
from ooc_cudnn.network.ir.tensor import GIVEN
from ooc_cudnn.network.passes.insert_remat_events import producers_of
from ooc_cudnn.network.passes.remat_for_backward import compared_maps, is_repeatable
from ooc_cudnn.network.search.live_bytes import LiveBytes, Version, versions_of
from perfmodel import MachineModel

#: Smaller tensors, as a share of the room, live from their first use to their last.
SMALL = 2**-12
#: What changes with the events.
_CHANGING = "_starts", "_seconds", "_of", "accesses", "versions", "_unread", "_live"


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


class Way(NamedTuple):
    """An event that has a tensor again: the slot from which on it takes memory, and its seconds.

    Of a copy the slot is that if nothing else were copied.
    """

    event: RematEvent
    start: int
    seconds: float


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
    is_backward : list of bool
        Of each phase.
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
        self.is_backward = [phase.is_backward for phase in step.phases]
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
        #: The slots from which on events take memory, and their seconds.
        self._starts = dict[RematEvent, int]()
        self._seconds = dict[RematEvent, float]()
        self._of = dict[str, frozenset[RematEvent]]()
        self._known_ways = dict[tuple[int, str], list[Way]]()
        #: When copies begin, and by when what is copied back has left.
        self._begun: dict[RematEvent, int] = {}
        self._left: dict[str, int] = {}
        large = {base for base, nbytes in self.nbytes.items() if nbytes >= SMALL * room_bytes}
        large &= self.items.keys() | {
            parent for item in self.items.values() for parent in item.parents
        }
        changing = [base for base in self.uses if base in large]
        #: The slots in which each of them is read, or new, in order; and what comes of them.
        self.accesses = {
            base: [(self.slot(at), False) for at in self.uses[base].phases] for base in changing
        }
        self.versions: dict[str, list[Version]] = {base: [] for base in changing}
        self._unread = dict[str, list[RematEvent]]()
        self._live = self._live_bytes(changing)
        self._follow(changing)

    def _live_bytes(self, changing: Sequence[str]) -> LiveBytes:
        """The bytes of tensors that events change nothing of, and those that phases work in."""
        come, gone = np.zeros((2, len(self.step.phases)), np.int64)
        for base in self.uses.keys() - set(changing):
            come[self.uses[base].phases[0]] += self.nbytes[base]
            gone[self.uses[base].phases[-1]] += self.nbytes[base]
        between = np.cumsum(come - gone) - (come - gone)
        phases = [self.slot(at) for at in range(len(self.step.phases))]
        nbytes = {base: self.nbytes[base] for base in changing}
        return LiveBytes(nbytes, phases, between + come, between, self._working)

    def copy(self) -> Self:
        """Return a copy to try events in: nothing changes here."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        for name in _CHANGING:
            setattr(other, name, getattr(self, name).copy())
        return other

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

    @property
    def events(self) -> Set[RematEvent]:
        """The events that are there."""
        return self._starts.keys()

    def ways(self, phase: int, name: str) -> list[Way]:
        """The ways to have a tensor again before a phase."""
        known = self._known_ways.get((phase, name))
        if known is None:
            item = self.items[name]
            events = [RematEvent(phase, name)] * bool(item.made_by)
            events += [RematEvent(phase, name, is_made=False)] * (item.copy is not None)
            known = [Way(each, self.may_begin(each), self.seconds_of(each)) for each in events]
            self._known_ways[phase, name] = known
        return known

    def change(self, add: Iterable[RematEvent] = (), remove: Iterable[RematEvent] = ()) -> None:
        """Add events, and take some out."""
        touched, copied = dict[str, None](), False
        for event in [*remove]:
            if event not in self._starts:
                continue
            self._of[event.name] -= {event}
            self._note(event, self._starts.pop(event), touched, is_new=False)
            del self._seconds[event]
            copied = copied or not event.is_made
        for event in [*add]:
            if event in self._starts:
                continue
            self._of[event.name] = self._of.get(event.name, frozenset()) | {event}
            self._seconds[event] = self.seconds_of(event)
            copied = copied or not event.is_made
            # where a copy begins is worked out with all others
            self._starts[event] = start = self.slot(event.before, event.name)
            self._note(event, start, touched, is_new=True)
        if copied:
            self._copies(touched)
        self._follow(touched)

    def _note(
        self, event: RematEvent, start: int, touched: dict[str, None], *, is_new: bool
    ) -> None:
        """Note that an event begins in a slot, or does no more; and which tensors it touches."""
        item = self.items[event.name]
        beside = (item.beside, item.working) if event.is_made else (0, 0.0)
        (self._live.begin if is_new else self._live.forget)(start, *beside)
        accesses = [(event.name, (start, True))]
        if event.is_made:  # it reads its parents in the slot in which it is made
            accesses += [(parent, (start, False)) for parent in item.parents]
        for name, access in accesses:
            if name not in self.accesses:
                continue
            if name not in touched:
                touched[name], self.accesses[name] = None, self.accesses[name].copy()
            if is_new:
                insort(self.accesses[name], access)
            else:
                self.accesses[name].remove(access)

    def _copies(self, touched: dict[str, None]) -> None:
        """Work out when copies begin and end."""
        left_before = self._left
        fetches, out = dict[RematEvent, tuple[int, float]](), dict[str, tuple[int, float]]()
        for event in sorted(each for each in self.events if not each.is_made):
            copy = self.items[event.name].copy
            assert copy is not None
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
            slot, before = self.start_of(event), self._starts[event]
            if slot != before:
                self._note(event, before, touched, is_new=False)
                self._note(event, slot, touched, is_new=True)
                self._starts[event] = slot
        touched |= dict.fromkeys(name for name, _ in left_before.items() ^ self._left.items())

    def _follow(self, names: Iterable[str]) -> None:
        """Work out the versions of tensors."""
        for name in names:
            first, *later = versions_of(self.accesses[name])
            if name in self._left:
                left = self.slot(self._left[name])
                last = min(left, later[0].first - 1) if later else left
                first = first._replace(last=max(first.last, last))
            versions = [first, *later]
            self._live.replace(name, self.versions[name], versions)
            self.versions[name] = versions
            ends = dict[int, int](versions)
            starts = ((event, self._starts[event]) for event in self._of.get(name, ()))
            unread = [event for event, start in starts if ends[start] == start]
            if unread:
                self._unread[name] = unread
            else:
                self._unread.pop(name, None)

    def unread(self) -> list[RematEvent]:
        """Events whose tensor nobody reads."""
        return [*chain.from_iterable(self._unread.values())]

    def held_through(self, slot: int) -> list[str]:
        """Tensors of which a version lives before a slot and after it."""
        return self._live.through(slot)

    # What it takes ------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds that events take, and that computing loses to copies."""
        return fsum(self._seconds.values())  # the same in any order

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

    @property
    def slots(self) -> list[int]:
        """The slots in which something happens, in order."""
        return self._live.slots

    def held(self) -> Any:
        """The bytes that are held in each of `slots`, an array of float64."""
        return self._live.held()

    def least_held(self) -> float:
        """Bytes that some phase holds at the least, whatever events there are.

        Before backward no tensor is made again, so it stays from its making to its last reader
        there. Where it may come from the host, for which copies may begin early, it is counted in
        the phases alone that touch it; so is what is made again in backward.
        """
        phases = range(len(self.step.phases))
        backward = next((at for at in phases if self.step.phases[at].is_backward), len(phases))
        least = np.zeros(len(phases) + 1, np.int64)
        for base, used in self.uses.items():
            spans = [(used.phases[0], used.phases[-1])]
            if base in self.items:
                early = bisect_left(used.phases, backward)
                if self.items[base].copy is not None:
                    early = 0
                spans = [(used.phases[0], used.phases[early - 1])] * (early > 0)
                spans += [(at, at) for at in used.phases[early:]]
            for first, last in spans:
                least[first] += self.nbytes[base]
                least[last + 1] -= self.nbytes[base]
        return float((np.cumsum(least)[:-1] + self._working).max())

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


def _bases(step: Step, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.base(name) for name in names))
