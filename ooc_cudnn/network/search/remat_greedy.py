"""Greedy search for remat events (recompute or refetch): fit, trim, improve.

An *event* (`RematEvent`) is that a map is made again before a phase, or back from the host.

- Where most is held, the event that frees most a second is added, until all fits (`fit`), and with
  it those that take little longer a byte (`ALIKE`): of repeated blocks they are alike. Then events
  are taken out without which all still fits (`trim`).
- That is done twice, for there are too many events to try all. By the first measure, those are
  tried that take the fewest seconds a byte of their map, whatever else must be made for them; by
  the second, the fewest with that, a byte that is too much meanwhile. The second time the batch
  slices of a map go together, for there may be many.
- Then one event after the other is forbidden, and others take its place where that is faster
  (`improve`).

Nothing here depends on a clock: what ends a search is how often the bytes of all phases were
counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, nsmallest
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.search.remat_state import RematState
from ooc_cudnn.network.search.search_budget import BEGUN, UNLIMITED, SearchBudget

#: How many candidates are tried at a slot, the best by the measure: while all is made to fit, by
#: each of the two measures, and when an event is to be replaced.
FIRST, LATER = (10, 4), 4
#: Events that take at most so many times as long a byte as the best are added with it. One by one,
#: NAFNet at a quarter (500 events) is not done when all counts are spent.
ALIKE = 1.25
#: What takes so many times as long as others is not taken, however its seconds are summed.
LONGER = 1 + 1e-9
#: Events that may replace one; and how often all are gone through.
MOST_INSTEAD, MOST_ROUNDS = 12, 4
#: How often the bytes of all slots may be counted, times tensors: until all fits, by each measure,
#: and to take less.
MOST_TO_FIT, MOST_TO_IMPROVE = (2**19, 2**20), 2**18


def search(state: RematState, budget: SearchBudget | None = None) -> RematState | None:
    """Return a state with events that take few seconds, with which all fits; None if none is found.

    Those that are there already are where it begins; `state` itself stays as it is. A budget takes
    account of what is counted.
    """
    budget = budget or UNLIMITED
    budget.lower(BEGUN * len(state.step.phases))
    if state.least_held() > state.room:
        return None
    solutions = list[tuple[float, int, RematState]]()
    for measure, tried in enumerate(FIRST):
        search = _Search(state, budget, measure, MOST_TO_FIT[measure], together=measure > 0)
        if search.fit(tried):
            search.trim()
            solutions.append((search.state.seconds, measure, search.state))
        if solutions and state.events:
            break
    if not solutions:
        return None
    _, measure, found = min(solutions, key=lambda each: each[:2])
    search = _Search(found, budget, measure, MOST_TO_IMPROVE)
    search.improve()
    return search.state


def fits(state: RematState, budget: SearchBudget | None = None) -> bool:
    """True if a search finds events with which all fits, whatever they take."""
    budget = budget or UNLIMITED
    return state.least_held() <= state.room and any(
        _Search(state, budget, measure, MOST_TO_FIT[measure], together=measure > 0).fit(tried)
        for measure, tried in enumerate(FIRST)
    )


class _Candidate(NamedTuple):
    """Events, what they take, the bytes that they free, and these times slots with too many."""

    name: str
    events: tuple[RematEvent, ...]
    seconds: float
    nbytes: float
    meanwhile: float

    def by(self, measure: int) -> tuple[float, str, tuple[RematEvent, ...]]:
        """The cost of a byte, or of a byte that is too much meanwhile; equals by their names."""
        return self.seconds / (self.meanwhile if measure else self.nbytes), self.name, self.events


def _together(slices: Sequence[_Candidate]) -> _Candidate:
    """The candidate of all batch slices of a map."""
    name, events, *figures = zip(*slices, strict=True)
    return _Candidate(
        name[0], tuple(dict.fromkeys(chain.from_iterable(events))), *map(sum, figures)
    )


class _Pressure(NamedTuple):
    """The bytes that are held in each slot; and in how many before it too many are."""

    held: Any
    over: Sequence[int]


def _changed(
    state: RematState, add: Iterable[RematEvent] = (), remove: Iterable[RematEvent] = ()
) -> RematState:
    """Return a state with other events, without those of which nobody reads anything."""
    changed = state.copy()
    changed.change(add=add, remove=remove)
    while unread := changed.unread():
        changed.change(remove=unread)
    return changed


class _Search:
    """A search from a state on, by a measure. No state changes: `state` becomes another one.

    `most` is how often bytes may be counted, times tensors. The batch slices of a map may go
    together, which takes fewer counts; else each goes by itself.
    """

    def __init__(
        self,
        state: RematState,
        budget: SearchBudget,
        measure: int,
        most: int,
        *,
        together: bool = False,
    ) -> None:
        self.state, self.measure, self.together, self._budget = state, measure, together, budget
        self.states = most // (len(state.versions) or 1)

    def fit(
        self,
        tried: int,
        *,
        forbidden: Collection[RematEvent] = (),
        most_events: int | None = None,
        seconds: float = np.inf,
    ) -> bool:
        """Add events while they take fewer seconds than that; whether all fits in the end."""
        added = 0
        while most_events is None or added <= most_events:
            held = self._held(self.state)
            over = np.maximum(held - self.state.room, 0)
            if not over.any():
                return True
            if self.state.seconds >= seconds or self.states < 0 or self._budget.gives_up:
                return False
            best = self._best(held, over, tried, forbidden)
            if best is None:
                return False
            self.state = best
            added += 1
        return False

    def _held(self, state: RematState) -> Any:
        self.states -= 1
        self._budget.count(1, len(state.versions))
        return state.held()

    def _best(
        self, held: Any, over: Any, tried: int, forbidden: Collection[RematEvent]
    ) -> RematState | None:
        """State with the events that free most bytes a second, beginning where most is held."""
        total, before = over.sum(), self.state.seconds
        pressure = _Pressure(held, np.append(0, np.cumsum(over > 0)).tolist())
        copied, recomputed = self._candidates(pressure, int(over.argmax()), forbidden)
        found = list[tuple[float, int, tuple[RematEvent, ...], RematState]]()
        for candidate in chain(
            self._cheapest(tried, copied, pressure), self._cheapest(tried, recomputed, pressure)
        ):
            events = self._with_parents(candidate.events, pressure)
            if any(each in forbidden for each in events):
                continue
            trial = _changed(self.state, add=events)
            left = self._over(trial)
            if left < total:
                rate = (trial.seconds - before) / (total - left)
                found.append((rate, len(found), events, trial))
        if not found:
            return None
        least, _, _, best = min(found)
        alike = [events for rate, _, events, _ in found if rate <= ALIKE * least]
        if len(alike) > 1:
            trial = _changed(self.state, add=dict.fromkeys(chain.from_iterable(alike)))
            left = self._over(trial)
            if left < total and trial.seconds - before <= ALIKE * least * (total - left):
                return trial
        return best

    def _over(self, state: RematState) -> Any:
        """The bytes that are too many, summed over all slots."""
        return np.maximum(self._held(state) - state.room, 0).sum()

    def _candidates(
        self, pressure: _Pressure, peak: int, forbidden: Collection[RematEvent]
    ) -> tuple[list[_Candidate], list[_Candidate]]:
        """Tensors live across a slot but unused in it, each with the event that re-creates it.

        First those that are copied, then those that are recomputed. This is most of the search:
        nothing is worked out for a tensor that its measure does not want.
        """
        state, slots, over = self.state, self.state.slots, pressure.over
        slot, present, ways, accesses_of = slots[peak], state.events, state.ways, state.accesses
        found = defaultdict[Any, list[_Candidate]](list), defaultdict[Any, list[_Candidate]](list)
        before = meanwhile = 0
        for name in state.held_through(slot):
            if name not in state.items:
                continue
            accesses = accesses_of[name]
            next_one = bisect_left(accesses, (slot,))
            reader, nbytes = accesses[next_one][0], state.nbytes[name]
            phase = state.phase_of(reader)
            if reader == slot or not state.is_backward[phase]:
                continue
            if self.measure:
                before = over[bisect_right(slots, accesses[next_one - 1][0])]
            for event, start, seconds in ways(phase, name):
                if start <= slot or event in present or event in forbidden:
                    continue
                if self.measure:
                    meanwhile = nbytes * (over[bisect_left(slots, start)] - before)
                group = state.step.tensors[name].source if self.together else event
                candidate = _Candidate(name, (event,), seconds, nbytes, meanwhile)
                found[event.is_made][group].append(candidate)
        copied, recomputed = (
            [slices[0] if len(slices) == 1 else _together(slices) for slices in groups.values()]
            for groups in found
        )
        return copied, recomputed

    def _cheapest(
        self, tried: int, candidates: Sequence[_Candidate], pressure: _Pressure
    ) -> list[_Candidate]:
        """The best candidates by the measure; the second counts what else must be made for them."""
        ranked = [(each.by(self.measure), each) for each in candidates]
        if not self.measure:
            return [candidate for _, candidate in nsmallest(tried, ranked)]
        heapify(ranked)  # few are looked at
        counted = list[tuple[Any, _Candidate]]()
        while ranked:
            alone, candidate = heappop(ranked)
            worst = counted[tried - 1][0][0] if len(counted) >= tried else np.inf
            if alone[0] > worst:  # with its parents none takes less
                break
            most = worst * candidate.meanwhile
            whole = candidate._replace(
                seconds=sum(
                    sum(map(self.state.seconds_of, self._with_parents([event], pressure, most)))
                    for event in candidate.events
                )
            )
            insort(counted, (whole.by(self.measure), whole))
        return [candidate for _, candidate in counted[:tried]]

    def _with_parents(
        self, wanted: Sequence[RematEvent], pressure: _Pressure, most_seconds: float = np.inf
    ) -> tuple[RematEvent, ...]:
        """Events, and those of parents that are not held so far and would not fit.

        No more of them than take longer than `most_seconds`.
        """
        events, looked_at, seconds = dict[RematEvent, None](), [*reversed(wanted)], 0.0
        present = self.state.events
        while looked_at and seconds <= most_seconds * LONGER:
            event = looked_at.pop()
            if event in events or event in present:
                continue
            events[event] = None
            seconds += self.state.seconds_of(event)
            if event.is_made:
                looked_at += self._missing_parents(event, pressure)
        return tuple(events)

    def _missing_parents(self, event: RematEvent, pressure: _Pressure) -> list[RematEvent]:
        """Events of parents of what is made again, that are not held so far and would not fit."""
        state, slots, over = self.state, self.state.slots, pressure.over
        missing, slot, stop = list[RematEvent](), state.slot(event.before, event.name), -1
        for parent in state.items[event.name].parents:
            if parent not in state.items:
                continue
            for version in reversed(state.versions[parent]):  # the last that began before
                if version.first <= slot:
                    break
            if version.last >= slot:
                continue
            stop = bisect_left(slots, slot) if stop < 0 else stop
            first = bisect_left(slots, version.last + 1)
            if first == stop:
                continue
            if (
                over[stop + 1] > over[first]
                or pressure.held[first : stop + 1].max() + state.nbytes[parent] > state.room
            ):
                missing.append(state.ways(event.before, parent)[0].event)
        return missing

    def trim(self) -> None:
        """Take out the events that all fits without, the longest first."""
        for event in self._longest_first(self.state.events):
            if event in self.state.events:
                trial = _changed(self.state, remove=[event])
                if self._held(trial).max() <= trial.room:
                    self.state = trial

    def improve(self) -> None:
        """Replace events, one after the other, by others that take less."""
        best = self.state
        for _ in range(MOST_ROUNDS):
            before = best
            for event in self._longest_first(best.events):
                if event not in best.events or self.states < 0 or self._budget.is_spent:
                    continue
                self.state, least = _changed(best, remove=[event]), best.seconds
                if self.fit(LATER, forbidden={event}, most_events=MOST_INSTEAD, seconds=least):
                    self.trim()
                    if self.state.seconds < least:
                        best = self.state
            if best is before:
                break
        self.state = best

    def _longest_first(self, events: Collection[RematEvent]) -> list[RematEvent]:
        return sorted(events, key=lambda each: (-self.state.seconds_of(each), each))
