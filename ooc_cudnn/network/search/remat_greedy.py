"""Greedy search for remat events (recompute or refetch): fit, trim, improve.

An *event* (`RematEvent`) is that a map is made again before a phase, or back from the host.

- Where most is held, the event that frees most a second is added, until all fits (`fit`). Then
  events are taken out without which all still fits (`trim`).
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

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.search.remat_state import RematState

#: How many candidates are tried at a slot, the best by the measure: while all is made to fit, by
#: each of the two measures, and when an event is to be replaced.
FIRST, LATER = (10, 4), 4
#: Events that may replace one; and how often all are gone through.
MOST_INSTEAD, MOST_ROUNDS = 12, 4
#: How often the bytes of all slots may be counted, times tensors: until all fits, by each measure,
#: and to take less.
MOST_TO_FIT, MOST_TO_IMPROVE = (2**19, 2**20), 2**18


def search(state: RematState) -> bool:
    """Add events that take few seconds to those that are there, until all fits; whether it does."""
    search, before = _Search(state), frozenset(state.events)
    solutions = list[tuple[float, int, frozenset[RematEvent]]]()
    for measure, tried in enumerate(FIRST):
        search.begin(measure, MOST_TO_FIT[measure], together=measure > 0)
        if search.fit(tried):
            search.trim()
            solutions.append((state.seconds, measure, frozenset(state.events)))
        state.change(add=before, remove=state.events - before)
        if solutions and before:
            break
    if not solutions:
        return False
    _, measure, events = min(solutions, key=lambda each: each[:2])
    search.begin(measure, MOST_TO_IMPROVE)
    state.change(add=events, remove=before - events)
    search.improve()
    return True


def fits(state: RematState) -> bool:
    """True if a search finds events with which all fits, whatever they take."""
    search, before = _Search(state), frozenset(state.events)
    for measure, tried in enumerate(FIRST):
        search.begin(measure, MOST_TO_FIT[measure], together=measure > 0)
        if search.fit(tried):
            return True
        state.change(add=before, remove=state.events - before)
    return False


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


class _Search:
    def __init__(self, state: RematState) -> None:
        self.state, self.measure, self.states, self.together = state, 0, 0, False

    def begin(self, measure: int, most: int, *, together: bool = False) -> None:
        """Begin anew, by a measure; `most` is how often bytes may be counted, times tensors.

        The batch slices of a map may go together, which takes fewer states; else each goes by
        itself.
        """
        self.measure, self.states = measure, most // (len(self.state.versions) or 1)
        self.together = together

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
            slots, held = self._held()
            over = np.maximum(held - self.state.room, 0)
            if not over.any():
                return True
            if self.state.seconds >= seconds or self.states < 0:
                return False
            best = self._best(slots, held, over, tried, forbidden)
            if best is None:
                return False
            self.state.change(add=best)
            self._prune()
            added += 1
        return False

    def _held(self) -> tuple[Any, Any]:
        self.states -= 1
        return self.state.held()

    def _best(
        self, slots: Any, held: Any, over: Any, tried: int, forbidden: Collection[RematEvent]
    ) -> tuple[RematEvent, ...] | None:
        """The events that free most a second of what is too much, beginning where most is held."""
        total, before = over.sum(), self.state.seconds
        peak, least, best = int(over.argmax()), np.inf, None
        candidates = self._candidates(slots, held, over, peak, forbidden)
        candidates.sort(key=lambda each: each.by(self.measure))
        recomputed = [each for each in candidates if each.events[0].is_made]
        copied = [each for each in candidates if not each.events[0].is_made]
        among = slots.tolist()
        for candidate in (*copied[:tried], *recomputed[:tried]):
            events = self._with_parents(candidate.events, among, held)
            if any(each in forbidden for each in events):
                continue
            self.state.change(add=events)
            gone = self._prune()
            left = np.maximum(self._held()[1] - self.state.room, 0).sum()
            more = self.state.seconds - before
            self.state.change(add=gone)
            self.state.change(remove=events)
            if left < total and more / (total - left) < least:
                least, best = more / (total - left), events
        return best

    def _candidates(
        self, slots: Any, held: Any, over: Any, peak: int, forbidden: Collection[RematEvent]
    ) -> list[_Candidate]:
        """Tensors live across `slot` but unused in it, each with the event that re-creates it."""
        groups, slot = defaultdict[Any, list[_Candidate]](list), int(slots[peak])
        among, too_much = slots.tolist(), [0, *accumulate((over > 0).tolist())]
        for name in self.state.held_through(slot):
            if name not in self.state.items:
                continue
            accesses = [each for each, _ in self.state.accesses[name]]
            next_one = bisect_left(accesses, slot)
            reader, nbytes = accesses[next_one], self.state.nbytes[name]
            phase = self.state.phase_of(reader)
            if reader == slot or not self.state.step.phases[phase].is_backward:
                continue
            before = too_much[bisect_right(among, accesses[next_one - 1])]
            for event in self.state.ways(phase, name):
                start = self.state.may_begin(event)
                if start <= slot or event in self.state.events or event in forbidden:
                    continue
                meanwhile = nbytes * (too_much[bisect_left(among, start)] - before)
                counted = self._with_parents([event], among, held) if self.measure else [event]
                seconds = sum(map(self.state.seconds_of, counted))
                source = self.state.step.tensors[name].source
                group = (source, event.is_made) if self.together else event
                groups[group].append(_Candidate(name, (event,), seconds, nbytes, meanwhile))
        return [*map(_together, groups.values())]

    def _with_parents(
        self, wanted: Sequence[RematEvent], among: Sequence[int], held: Any
    ) -> tuple[RematEvent, ...]:
        """Events, and those of parents that are not held so far and would not fit."""
        events, looked_at = dict[RematEvent, None](), [*reversed(wanted)]
        while looked_at:
            event = looked_at.pop()
            if event in events or event in self.state.events:
                continue
            events[event] = None
            slot = self.state.slot(event.before, event.name)
            for parent in self.state.items[event.name].parents if event.is_made else ():
                if parent not in self.state.items or self.state.is_there(parent, slot):
                    continue
                last = max(v.last for v in self.state.versions[parent] if v.last < slot)
                first, stop = bisect_left(among, last + 1), bisect_left(among, slot)
                if first == stop:
                    continue
                needed = held[first : stop + 1].max() + self.state.nbytes[parent]
                if needed > self.state.room:
                    looked_at += self.state.ways(event.before, parent)[:1]
        return tuple(events)

    def _prune(self) -> list[RematEvent]:
        """Take out events of which nobody reads anything."""
        gone = list[RematEvent]()
        while unread := self.state.unread():
            self.state.change(remove=unread)
            gone += unread
        return gone

    def trim(self) -> None:
        """Take out the events that all fits without, the longest first."""
        for event in self._longest_first(self.state.events):
            if event in self.state.events:
                self.state.change(remove=[event])
                gone = self._prune()
                if self._held()[1].max() > self.state.room:
                    self.state.change(add=[event, *gone])

    def improve(self) -> None:
        """Replace events, one after the other, by others that take less."""
        best, least = frozenset(self.state.events), self.state.seconds
        for _ in range(MOST_ROUNDS):
            before = least
            for event in self._longest_first(best):
                if event not in self.state.events or self.states < 0:
                    continue
                self.state.change(remove=[event])
                self._prune()
                if self.fit(LATER, forbidden={event}, most_events=MOST_INSTEAD, seconds=least):
                    self.trim()
                    if self.state.seconds < least:
                        best, least = frozenset(self.state.events), self.state.seconds
                        continue
                self.state.change(add=best - self.state.events, remove=self.state.events - best)
            if least == before:
                break

    def _longest_first(self, events: Collection[RematEvent]) -> list[RematEvent]:
        return sorted(events, key=lambda each: (-self.state.seconds_of(each), each))
