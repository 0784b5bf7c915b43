"""Solutions of the remat search with which a step fits, the fastest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges, keep_all
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.ir.tensor import GIVEN
from ooc_cudnn.network.lowering.lower import working_bytes
from ooc_cudnn.network.passes.insert_remat_events import producers_of
from ooc_cudnn.network.passes.microbatch import parts_of
from ooc_cudnn.network.search.remat_greedy import fits, search
from ooc_cudnn.network.search.remat_state import RematState
from ooc_cudnn.network.search.search_budget import WORKING, SearchBudget

#: Of the room what may be filled, for addresses want the rest; and of the bytes that phases would
#: take beside tensors what is left to them: they may do with less.
WAYS = ((1.0, 1.0), (0.99, 1.0), (0.97, 1.0), (0.97, 0.3), (0.97, 0.0), (0.92, 0.0))
NO_WAY = 0.0, 0.0
#: Where nothing fits by the first way, nor by this one, the others are not tried.
EASIEST = 0.97, 0.0
#: What phases take beside tensors, where that does not count.
NOTHING = np.zeros(0)
#: Bytes of results that stay to the end, for they leave in turn: behind a map, which takes long.
#: No more than such a share of the room, for there are many.
LITTLE, LITTLE_OF_ROOM = 2**16, 2**-12
#: Of the room, the most that is left to a phase's pieces: more would only make them larger.
MOST_FOR_PIECES = 0.25
#: As a share of the room, bytes to work in that change nothing of what a search finds.
SAME = 1 / 256
#: As a share of what all phases take, what copies in place of making again must save.
WORTH_COPYING = 0.003


#: Kinds of tensors that may come from the host: inputs, which are there; and all others, too.
INPUTS: tuple[str, ...] = ("input",)
ALL: tuple[str, ...] = (*GIVEN, "map")


class RematSolution(NamedTuple):
    """Solution of a search for a step.

    Attributes
    ----------
    again : tuple of RematEvent
        As `insert_remat_events` wants them.
    back : tuple of Refetch
        What comes from the host.
    left : mapping
        Of maps that do, the phase by which they have left.
    seconds : float
        That they take.
    events : frozenset of RematEvent
        What was searched for: begin with it.
    """

    again: tuple[RematEvent, ...]
    back: tuple[Refetch, ...]
    left: Mapping[str, int]
    seconds: float
    events: frozenset[RematEvent] = frozenset()

    @classmethod
    def of(cls, state: RematState, phases: Sequence[int] = ()) -> Self:
        """Build a solution from the search state; `phases` numbers those of a micro-batch."""
        events = state.in_order()
        again = tuple(each for each in events if state.step.tensors[each.name].kind == "map")
        if phases:
            again = tuple(
                RematEvent(phases[each.before], state.step.tensors[each.name].source, each.is_made)
                for each in again
            )
        refetches = (Refetch(state.begins(e), e.before, e.name) for e in events if not e.is_made)
        event_set = frozenset(state.events)
        return cls(again, tuple(refetches), state.left, state.seconds, event_set)


class Refetch(NamedTuple):
    """A tensor comes back for a phase; the copy begins before another one."""

    begins: int
    before: int
    name: str


def find_remat_solutions(
    step: Step,
    constraints: PlanConstraints,
    micro_batches: int,
    *,
    copied: Collection[str] = INPUTS,
    before: frozenset[RematEvent] = frozenset(),
    looks_first: bool = False,
    budget: SearchBudget | None = None,
) -> Iterator[RematSolution]:
    """Yield what to make again so that a step fits, the fastest first; nothing if none was found.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    copied : collection of str
        Kinds of tensors that may leave and come back; of micro-batches only inputs.
    before : frozenset of RematEvent
        The events to begin with, those of a plan in which less may be copied. Nothing is yielded
        where more copies can hardly save anything of what these take.
    looks_first : bool
        Whether to look first if anything fits: where that is in doubt, for it takes as long as a
        search that finds nothing.
    budget : SearchBudget, optional
        Takes account of what the search counts.
    """
    machine, room = constraints.target.machine, constraints.target.room_bytes
    always = constraints.on_device
    phases: Sequence[int] = ()
    part = step
    if micro_batches > 1:
        parts = parts_of(step, micro_batches)
        part, phases = parts.part, parts.of
        room -= sum(step.tensors[name].nbytes for name in parts.shared - always)
        always |= parts.shared
    if room <= 0 or not part.phases:  # of one image no phase is a part
        return
    seconds_of = phase_seconds(machine)

    def begun(share: float, left: float = 0.0, working: Any = NOTHING) -> RematState:
        room_bytes, taken = share * room, left * working
        state = RematState(part, seconds_of, room_bytes, machine, always, taken, copied=copied)
        state.change(add=before)
        return state

    if before and begun(1.0).saved_by_copies < WORTH_COPYING:
        return

    if begun(1.0).least_held() > room or (looks_first and not fits(begun(*EASIEST), budget)):
        return  # planning what phases work in takes longer than that
    if budget is not None:
        budget.lower(WORKING * len(part.phases))
    working = working_bytes(part, keep_all(part), constraints)
    working = np.minimum(working, MOST_FOR_PIECES * room)
    most, fitted, failed = working.max(), NO_WAY, NO_WAY
    for share, left in WAYS:
        # with as much to work in as then, or next to as much
        if share == fitted[0] and (fitted[1] - left) * most < SAME * room:
            continue
        if share <= failed[0] and (failed[1] - left) * most < SAME * room:
            continue
        found = search(begun(share, left, working), budget)
        if found is not None:
            before, fitted = frozenset(found.events), (share, left)
            yield RematSolution.of(found, phases)
            continue
        is_first = failed == NO_WAY and fitted == NO_WAY and not looks_first
        if is_first and not fits(begun(*EASIEST, working), budget):
            return  # a search that finds nothing takes longest
        failed = share, left


def refetch_live_ranges(
    step: Step, rewritten: Step, made: RematSolution, room_bytes: int
) -> LiveRanges:
    """Live ranges of a rewritten step: all is kept, but for tensors that are fetched again."""
    little = min(LITTLE, LITTLE_OF_ROOM * room_bytes)
    put_in = [0] * len(step.phases)
    for event in made.again:
        put_in[event.before] += len(producers_of(step, event.name)) * event.is_made
    #: Of each phase, how many are put in before it, those just before it among them.
    put_in = list(accumulate(put_in))
    uses = rewritten.uses
    live_ranges = dict(keep_all(rewritten))
    for name, (live_range,) in live_ranges.items() if made.back else ():
        if live_range.leaves is not None and rewritten.tensors[name].nbytes <= little:
            live_ranges[name] = (live_range._replace(last=len(rewritten.phases) - 1),)
    for name in dict.fromkeys(each.name for each in made.back):
        (live_range,), used = live_ranges[name], uses[name]
        ranges, end = list[LiveRange](), len(rewritten.phases)
        for refetch in sorted((each for each in made.back if each.name == name), reverse=True):
            begins = refetch.begins + (put_in[refetch.begins - 1] if refetch.begins else 0)
            reads = [at for at in used.phases if begins <= at < end]
            if reads:
                ranges.append(LiveRange(begins, reads[-1], fetched=True))
            end = begins
        last = max(at for at in used.phases if at < end)
        leaves = None
        if name in made.left:
            left = made.left[name]
            leaves = used.written[-1]
            last = min(max(last, left + put_in[left]), end - 1)
        live_ranges[name] = (
            LiveRange(live_range.first, last, live_range.fetched, leaves),
            *reversed(ranges),
        )
    return live_ranges
