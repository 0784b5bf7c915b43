"""Lower a step: assign offsets, plan each task in the memory left to it, emit copies.

Tensors on the device get their addresses first. Each task then works in the largest range of the
block that is free while it runs, and its plan is made for that. Where a phase finds too little, or
what lives at once does not fit, the largest tensor there goes to the host, and whoever uses it
streams it: so there is a program for every limit that admits each call by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.engines.choose import choose_engines, seconds_by_engines, slowness_of
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.alignment import ALIGNMENT, align
from ooc_cudnn.memory.offset_assignment import NEAR, LiveBuffer, assign_offsets
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges, is_live, live_bytes
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.lowering.bindings import Bindings
from ooc_cudnn.network.lowering.call_plans import CallKind, kind_of_call
from ooc_cudnn.network.lowering.host_arena import assign_pinned_offsets
from ooc_cudnn.network.lowering.spill_belady import spill_one
from ooc_cudnn.network.lowering.spill_milp import minimize_copies
from ooc_cudnn.pipeline.program import (
    COPY_IN,
    COPY_OUT,
    Item,
    Move,
    Program,
    Synchronisation,
    Task,
)

#: A phase has too little memory where it is cut into more pieces than this, and takes more than so
#: many times as long as with all memory to itself. Then a tensor beside it goes to the host. So it
#: does where the engine that there is room for takes so many times the seconds of the fastest, and
#: these seconds more.
MANY_PIECES, MUCH_SLOWER, MATTERS = 64, 4.0, 1e-3
#: A call that is cut takes as long to plan as so many more that are not.
CUT = 4
#: And what spills in a step, as so many times its phases.
SPILLED = 1
#: Offsets that are not found are as much work as planning such a share of all phases; and where
#: buffers were moved up again and again.
OFFSETS, OFFSETS_MOVED = 0.05, 0.6
#: Of so many phases before a task it is known who used which memory. What was used longer ago is
#: free for its first copies at once.
LOOK_BACK = 128


class LoweredProgram(NamedTuple):
    """A step as a program, and the live ranges that it was made with in the end."""

    program: Program
    live_ranges: LiveRanges


class LoweredStep(NamedTuple):
    """A plan, and what it runs: the rewritten step and its program."""

    plan: NetworkPlan
    step: Step
    lowered: LoweredProgram


#: Whether live ranges of a step are worth a plan.
Worth = Callable[[Step, LiveRanges], bool]
#: Is told how many phases were planned.
Count = Callable[[int], None]


def accept_any(step: Step, live_ranges: LiveRanges) -> bool:
    """Accept any live ranges."""
    return True


def count_nothing(phases: int) -> None:
    """Count no phases."""


def lower_step(
    name: str,
    step: Step,
    live_ranges: LiveRanges,
    constraints: PlanConstraints,
    *,
    may_stream: bool = True,
    spill: bool = False,
    share: float = 1.0,
    reserved: Mapping[int, int] = MappingProxyType({}),
    most_seconds: float = math.inf,
    is_worth: Worth = accept_any,
    count: Count = count_nothing,
) -> LoweredProgram | None:
    """Make the program of a step, with more tensors on the host where memory is short.

    Either for all of the step, and streamed by all who use them; or for a while (`spill`), so that
    little is copied. Without `may_stream` it must fit as it is: None where it does not. Where bytes
    are `reserved` for a phase, it finds so many in one range, beside tensors. None, too, where
    live ranges are not worth it (`is_worth`), or the tasks take more than `most_seconds` however
    they are replayed. Each time `count` is told how many phases were planned, and offsets that were
    not found are some of them, too.

    Raises
    ------
    PlanInfeasibleError
        If some phase does not fit by itself, with the least limit for which all do.
    """
    there = {base for base, spec in constraints.given.items() if spec.placement == "device"}
    live_ranges = {
        base: found for base, found in live_ranges.items() if found and base not in there
    }
    uses, results = step.uses, step.results
    room = constraints.target.room_bytes
    if spill:
        count(SPILLED * len(step.phases))
        beside = _Lowering(name, step, live_ranges, constraints).working()
        spilled = minimize_copies(step, live_ranges, beside, int(share * room))
        live_ranges = {base: found for base, found in spilled.items() if found}
    while is_worth(step, live_ranges):
        worst, before = _overflow(step, live_ranges, share * room), live_ranges
        short: Sequence[int] = [] if worst is None else [worst]
        if worst is None:
            try:
                lowering = _Lowering(name, step, live_ranges, constraints, reserved)
                lowered = lowering.lower(find_all=spill, most_seconds=most_seconds)
                count(
                    len(step.phases) + CUT * sum(t.plan.pieces > 1 for t in lowered.program.tasks)
                )
                return lowered
            except _TooLongError as error:
                count(error.planned)
                return None
            except _TooLittleError as error:
                short = error.phases
                count(error.planned)
        if not may_stream:
            return None
        for phase in short:
            if _is_relieved(before, live_ranges, phase):
                continue
            fewer = (
                spill_one(step, uses, results, live_ranges, phase)
                if spill
                else _without_largest(step, live_ranges, phase)
            )
            if fewer is None:
                raise _infeasible(name, step, constraints, phase)
            live_ranges = fewer
    return None


def _infeasible(
    name: str, step: Step, constraints: PlanConstraints, phase: int
) -> PlanInfeasibleError:
    """Return the error of a phase that does not fit by itself, with the least limit for all."""
    least, setting = _least(name, step, constraints)
    return PlanInfeasibleError(
        function=f"{name}: {setting or step.phases[phase].name}",
        limit_bytes=constraints.target.limit_bytes,
        smallest_bytes=least,
        beside_bytes=constraints.target.beside_bytes,
    )


def _is_relieved(before: LiveRanges, live_ranges: LiveRanges, phase: int) -> bool:
    """True if something that was on the device in a phase is there no more."""
    return any(
        is_live(found, phase) and not is_live(live_ranges.get(base, ()), phase)
        for base, found in before.items()
        if live_ranges.get(base) is not found
    )


def _without_largest(step: Step, live_ranges: LiveRanges, phase: int) -> LiveRanges | None:
    largest = _largest(step, live_ranges, phase)
    if largest is None:
        return None
    return {name: found for name, found in live_ranges.items() if name != largest}


def _overflow(step: Step, live_ranges: LiveRanges, room_bytes: float) -> int | None:
    """The phase in which most lives at once, if that is more than there is."""
    held = live_bytes(step, live_ranges)
    worst = int(held.argmax())
    return worst if held[worst] > room_bytes else None


def peak_live_bytes(step: Step, live_ranges: LiveRanges) -> int:
    """The most bytes that tensors hold in one phase, without what its task takes."""
    return int(live_bytes(step, live_ranges).max())


def max_touched_bytes(step: Step, constraints: PlanConstraints) -> int:
    """The most bytes of tensors that one phase touches, but for those that are on the device."""
    there = constraints.on_device
    return max(
        sum(align(step.tensors[base].nbytes) for base in bases - there)
        for bases in step.bases_of_phases
    )


def working_bytes(
    step: Step, live_ranges: LiveRanges, constraints: PlanConstraints
) -> np.ndarray[Any, Any]:
    """Bytes that each phase takes beside tensors on the device, if all memory were free for it."""
    return _Lowering("", step, live_ranges, constraints).working()


def _live_buffers(step: Step, live_ranges: LiveRanges) -> list[tuple[str, int, LiveBuffer]]:
    return [
        (base, index, LiveBuffer(live_range.first, live_range.last, step.tensors[base].nbytes))
        for base, found in live_ranges.items()
        for index, live_range in enumerate(found)
    ]


def _largest(step: Step, live_ranges: LiveRanges, phase: int) -> str | None:
    """The name of the largest tensor that holds memory in a phase; None if none does."""
    held = [
        base
        for base, found in live_ranges.items()
        if any(live_range.first <= phase <= live_range.last for live_range in found)
    ]
    return max(held, key=lambda base: step.tensors[base].nbytes, default=None)


def _least(name: str, step: Step, constraints: PlanConstraints) -> tuple[int, str]:
    """The least memory limit, in bytes, that lets every phase be streamed; and which sets it."""
    found = least_bytes(step, constraints)
    least = max(found, default=0)
    setting = step.phases[found.index(least)].name if least else ""
    return least + constraints.target.beside_bytes, setting


def least_bytes(
    step: Step, constraints: PlanConstraints, phases: Sequence[Phase] = ()
) -> list[int]:
    """The least that phases (all by default) take of the device: with their tensors on the host."""
    lowering = _Lowering("", step, {}, constraints)
    return [lowering.least_of(phase) for phase in phases or step.phases]


class _TooLittleError(Exception):
    """Phases have too little memory to work in; so many were planned before that was known."""

    def __init__(self, *phases: int, planned: int) -> None:
        super().__init__(*phases)
        self.phases, self.planned = phases, planned


class _TooLongError(Exception):
    """Tasks take longer than was allowed; so many phases were planned before that was known."""

    def __init__(self, planned: int) -> None:
        super().__init__(planned)
        self.planned = planned


class _Lowering:
    """Lowering of a step: its tasks and moves, from its live ranges."""

    def __init__(
        self,
        name: str,
        step: Step,
        live_ranges: LiveRanges,
        constraints: PlanConstraints,
        reserved: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.name, self.step, self.live_ranges, self.constraints = (
            name,
            step,
            live_ranges,
            constraints,
        )
        self.reserved = [LiveBuffer(at, at, nbytes) for at, nbytes in reserved.items()]
        self.room = constraints.target.room_bytes // ALIGNMENT * ALIGNMENT
        #: Of each live range, the bytes of the block that it takes.
        self.spans: dict[tuple[str, int], tuple[int, int]] = {}
        self.bindings = Bindings(
            step,
            live_ranges,
            self.spans,
            constraints.given,
            constraints.order,
            constraints.misaligned,
        )
        #: The bytes that the task of each phase works in, and its phase; -1 for none so far.
        self._worked = np.full((len(step.phases), 3), -1)
        #: By stream and phase the live ranges whose copy starts there.
        self._starting: dict[str, dict[int, list[tuple[str, int]]]] = {COPY_IN: {}, COPY_OUT: {}}
        for base, ranges in live_ranges.items():
            for index, live_range in enumerate(ranges):
                if live_range.fetched:
                    self._starting[COPY_IN].setdefault(live_range.first, []).append((base, index))
                if live_range.leaves is not None:
                    self._starting[COPY_OUT].setdefault(live_range.leaves, []).append((base, index))

    def lower(self, *, find_all: bool = False, most_seconds: float = math.inf) -> LoweredProgram:
        """Place everything, plan every task.

        Raises
        ------
        _TooLittleError
            With the first phase that has too little memory; with all of them to `find_all`.
        _TooLongError
            If a stream takes more than `most_seconds` for tasks alone.
        """
        self._assign_offsets(find_all=find_all)
        items: list[Item] = []
        top = max((stop for _, stop in self.spans.values()), default=0)
        turn, pause = self.step.turn if self.step.pauses else None, None
        short = list[int]()
        busy, cut = np.zeros(3), 0  # seconds of each stream; phases that are cut
        for phase_index, phase in enumerate(self.step.phases):
            if phase_index == turn:
                pause = len(items)
            items += self._moves(phase_index, COPY_IN)
            if phase.call.on_host:
                items += self._on_host(phase, phase_index)
            else:
                try:
                    task = self._task(phase, phase_index)
                except _TooLittleError:
                    if not find_all:
                        raise
                    short.append(phase_index)
                    continue
                top = max(top, task.offset + task.plan.device_bytes)
                items.append(task)
                plan, cut = task.plan, cut + (task.plan.pieces > 1)
                seconds = plan.compute_seconds * task.slowness
                busy += plan.copy_in_seconds, seconds, plan.copy_out_seconds
                if busy.max() > most_seconds:
                    raise _TooLongError(planned=phase_index + CUT * cut)
            # What the phase made leaves beside the next one: that is not waited for.
            if self.constraints.synchronous and self._left_by(phase_index):
                items.append(Synchronisation())
            items += self._moves(phase_index, COPY_OUT)
        if turn == len(self.step.phases):  # gradients of outputs are all that there are
            pause = len(items)
        overlap = self.constraints.target.overlap
        if short:
            raise _TooLittleError(*short, planned=len(self.step.phases))
        program = Program(
            self.name,
            tuple(items),
            self.bindings.found,
            top,
            self.bindings.between,
            overlap,
            pause=pause,
        )
        apart = self.step.results | self.step.host_inputs
        return LoweredProgram(assign_pinned_offsets(program, apart), self.live_ranges)

    def _assign_offsets(self, *, find_all: bool) -> None:
        """Assign an offset to each live range, and note what is held where, and when.

        Raises
        ------
        _TooLittleError
            Where they do not fit: with the fullest phase of all, or of each that reaches too far.
        """
        buffers = _live_buffers(self.step, self.live_ranges)
        offsets, peak = assign_offsets(
            [*(buffer for _, _, buffer in buffers), *self.reserved], self.room
        )
        if peak > self.room:
            live = live_bytes(self.step, self.live_ranges)
            share = OFFSETS_MOVED if peak <= NEAR * self.room else OFFSETS
            fullest = dict.fromkeys(
                buffer.first + int(live[buffer.first : buffer.last + 1].argmax())
                for (_, _, buffer), offset in zip(buffers, offsets, strict=False)
                if offset + align(buffer.nbytes) > self.room
            )
            short = fullest if find_all and fullest else [int(live.argmax())]
            raise _TooLittleError(*short, planned=int(share * len(self.step.phases)))
        for (base, index, buffer), offset in zip(buffers, offsets[: len(buffers)], strict=True):
            self.spans[base, index] = offset, offset + align(buffer.nbytes)
        held = sorted((*self.spans[base, index], *buffer[:2]) for base, index, buffer in buffers)
        held.append((self.room, self.room, 0, len(self.step.phases)))  # what ends the block
        start, stop, first, last = np.array(held, int).reshape(-1, 4).T
        self._held = first, last, np.column_stack([start, stop, last])

    def working(self) -> np.ndarray[Any, Any]:
        """Bytes that each task takes beside tensors on the device, if all of them are there."""
        self.spans = self.bindings.spans = defaultdict(lambda: (0, 0))
        nbytes = np.zeros(len(self.step.phases))
        for index, phase in enumerate(self.step.phases):
            with suppress(PlanInfeasibleError):  # then it is for it to stream
                nbytes[index] = self.plan_of(phase, index, self.room)[1].device_bytes
        return nbytes

    # Items --------------------------------------------------------------------------------------

    def _moves(self, phase_index: int, stream: str) -> list[Item]:
        """The moves that start before a phase (copies in), or after it (copies out)."""
        moves: list[Item] = []
        for base, index in self._starting[stream].get(phase_index, ()):
            host, device = self.bindings.on_host(base), self.bindings.on_device(base, index)
            if stream == COPY_IN:
                moves.append(Move(f"fetch of {base}", COPY_IN, host, device))
            else:
                moves.append(Move(f"offload of {base}", COPY_OUT, device, host))
        return moves

    def _left_by(self, at: int) -> bool:
        """True if something that is fetched again is off the device after a phase."""
        return any(
            len(found) > 1 and found[0].leaves is not None and found[0].last == at
            for found in self.live_ranges.values()
        )

    def _task(self, phase: Phase, index: int) -> Task:
        gaps = self._gaps(index)
        most = max(stop - start for start, stop in gaps)
        try:
            request, plan = self.plan_of(phase, index, most)
        except PlanInfeasibleError as error:
            raise _TooLittleError(index, planned=index) from error
        target = self.constraints.target
        plan = choose_engines(request, plan, target, most)
        slowness = slowness_of(request, plan, target)
        lost = (slowness - 1.0) * plan.compute_seconds
        is_slow = slowness > MUCH_SLOWER and lost > MATTERS
        if (is_slow or plan.pieces > MANY_PIECES) and self._is_starved(request, plan, phase, index):
            raise _TooLittleError(index, planned=index)
        plan = plan.with_deeper_rings(most // 2)
        offset = self._offset(plan, index, gaps)
        self._worked[index] = offset, offset + align(plan.device_bytes), index
        binds = {
            operand: self.bindings.binding_of(name, index) for operand, name in phase.binds.items()
        }
        part = self.step.part_of(phase)
        return Task(phase.name, request, plan, binds, offset, slowness, part)

    def _on_host(self, phase: Phase, index: int) -> list[Item]:
        """A host task, with the copies of its device operands to the host and back."""
        call, binds = phase.call, dict[str, str]()
        before, after = list[Item](), list[Item]()
        for operand, name in phase.binds.items():
            binding = self.bindings.binding_of(name, index)
            host = binds[operand] = self.bindings.also_on_host(binding)
            if host == binding:
                continue
            if operand in call.loaded:
                before.append(Move(f"{name} for {phase.name}", COPY_OUT, binding, host))
            if operand in call.results:
                after.append(Move(f"{name} of {phase.name}", COPY_IN, host, binding))
        request, plan = self.plan_of(phase, index, self.room)
        task = Task(phase.name, request, plan, binds, part=self.step.part_of(phase))
        return [*before, task, *after]

    def _offset(self, plan: Plan, index: int, gaps: Sequence[tuple[int, int]]) -> int:
        """Choose where in what is free a task works: if it copies, in bytes unused for long.

        Then its first pieces come while those before it compute.
        """
        nbytes = align(plan.device_bytes)
        if not any(slots for _, slots in plan.rings):
            return max(gaps, key=lambda gap: gap[1] - gap[0])[0]
        _, last, spans = self._held
        gone = (index - LOOK_BACK <= last) & (last < index)
        used = np.concatenate([self._worked[max(index - LOOK_BACK, 0) : index], spans[gone]])
        within = [(start, stop - nbytes) for start, stop in gaps if stop - start >= nbytes]
        starts = np.unique([*np.ravel(within), *used[:, 1]])
        lows, highs = np.array(within).T
        behind = lows.searchsorted(starts, "right") - 1  # the last gap that begins before
        candidates = starts[(behind >= 0) & (starts <= highs[behind])]
        ends = candidates[:, None] + nbytes
        met = (used[:, 0] < ends) & (candidates[:, None] < used[:, 1])
        latest = np.where(met, used[:, 2], -1).max(axis=1, initial=-1)
        return int(candidates[latest.argmin()])

    def _is_starved(self, request: Request, plan: Plan, phase: Phase, index: int) -> bool:
        """True if tensors that could be elsewhere leave a phase so little that it crawls.

        It goes in many pieces, or by an engine that is slow because it takes next to no workspace.
        """
        if _largest(self.step, self.live_ranges, index) is None:
            return False
        target = self.constraints.target
        seconds = seconds_by_engines(request, plan, target)
        request, plan = self.plan_of(phase, index, self.room)
        plan = choose_engines(request, plan, target, self.room)
        return seconds > MUCH_SLOWER * seconds_by_engines(request, plan, target)

    def _gaps(self, index: int) -> list[tuple[int, int]]:
        """The ranges of the block, in bytes, that nothing holds in a phase; at least one."""
        first, last, spans = self._held
        starts, stops, _ = spans[(first <= index) & (index <= last)].T
        ends = np.zeros_like(stops)
        np.maximum.accumulate(stops[:-1], out=ends[1:])  # of all that starts before
        free = np.flatnonzero(starts > ends)
        gaps = zip(ends[free].tolist(), starts[free].tolist(), strict=True)
        return list(gaps) or [(0, 0)]

    def plan_of(self, phase: Phase, index: int, limit_bytes: int) -> tuple[Request, Plan]:
        """Plan a phase within so many bytes, its operands where they are then."""
        return self._kind(phase, index).plan(phase.name, limit_bytes)

    def least_of(self, phase: Phase) -> int:
        """The least bytes of the device that a phase takes where nothing stays there."""
        return self._kind(phase, 0).least_bytes

    def _kind(self, phase: Phase, index: int) -> CallKind:
        names = [self.bindings.binding_of(phase.binds[name], index) for name in phase.call.operands]
        found, is_aligned = self.bindings.found, self.bindings.is_aligned
        return kind_of_call(
            phase.call,
            tuple([found[name].spec for name in names]),
            tuple([is_aligned(name) for name in names]),
            self.constraints.target,
        )
