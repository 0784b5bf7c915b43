"""Decode a MILP solution: remat events, live ranges, algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ooc_cudnn.network.ir.live_ranges import LiveRange, LiveRanges, keep_all
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.search.mo_sos.build_problem import BuiltProblem
from ooc_cudnn.network.search.mo_sos.problem import Choice
from ooc_cudnn.network.search.mo_sos.program import RematMilp
from ooc_cudnn.network.solver.highs import Solution


class Copy(NamedTuple):
    """A copy of a map that starts with one stage and ends in another."""

    start: int
    end: int
    map: int


class Schedule(NamedTuple):
    """Schedule of a solution.

    Attributes
    ----------
    remakes : dict
        (stage, map) that is made again to its algorithm, and the slower ones of less workspace.
    runs : list
        The same of each stage.
    out, back : list of Copy
    seconds, bound_seconds : float
        Of computing, by the program; and what no other solution of it goes below.
    """

    remakes: dict[tuple[int, int], tuple[Choice, ...]]
    runs: list[tuple[Choice, ...]]
    out: list[Copy]
    back: list[Copy]
    seconds: float
    bound_seconds: float


def schedule_of(program: RematMilp, solved: Solution) -> Schedule:
    """Read a solution."""
    chosen, copies = [value > 0.5 for value in solved.values], program.copies
    problem = program.problem

    def decided(variables: Sequence[int], choices: Sequence[Choice]) -> tuple[Choice, ...]:
        told_apart = program.choices(tuple(choices))
        at = next((at for at, variable in enumerate(variables) if chosen[variable]), 0)
        return told_apart[at:]

    remakes = {
        (t, k): decided(variables, problem.maps[k].choices)
        for (t, k), variables in sorted(program.remakes.items())
        if any(chosen[variable] for variable in variables)
    }
    stages = zip(problem.stages, program.runs, strict=True)
    runs = [decided(variables, stage.choices) for stage, variables in stages]
    return Schedule(
        remakes,
        runs,
        [] if copies is None else _copies(copies.out, copies.out_ends, chosen),
        [] if copies is None else _copies(copies.back, copies.back_ends, chosen),
        sum(choices[0].seconds for choices in (*runs, *remakes.values())),
        solved.bound + program.constant_seconds,
    )


def _copies(
    variables: dict[tuple[int, int], int], ends: dict[tuple[int, int], int], chosen: Sequence[bool]
) -> list[Copy]:
    return sorted(Copy(t, ends[t, j], j) for (t, j), v in variables.items() if chosen[v])


class ReplayedStep(NamedTuple):
    """A step as a schedule has it."""

    step: Step
    live_ranges: LiveRanges
    again: tuple[RematEvent, ...]
    wanted: dict[int, tuple[Choice, ...]]


def replay_schedule(built: BuiltProblem, program: RematMilp, schedule: Schedule) -> ReplayedStep:
    """Rewrite a step as a schedule has it."""
    return _Replay(built, program, schedule).followed()


class _Replay:
    def __init__(self, built: BuiltProblem, program: RematMilp, schedule: Schedule) -> None:
        self.built, self.schedule, self.touched = built, schedule, program.touched
        self.stages = built.problem.stages
        self.names = [each.name for each in built.problem.maps]
        self.again = tuple(self._again())
        #: Of each phase of the step that is rewritten, how many are put in before it.
        self.put_in = [0] * len(built.step.phases)
        for event in self.again:
            if event.is_made:
                self.put_in[event.before] += len(built.makers[self.names.index(event.name)])
        self.step = insert_remat_events(built.step, self.again)

    def followed(self) -> ReplayedStep:
        """The step, and its tensors' live ranges: those of maps that leave in several parts."""
        uses = self.step.uses
        live_ranges = dict(keep_all(self.step))
        for out in self.schedule.out:
            name = self.names[out.map]
            starts = [self._starts(c.start) for c in self.schedule.back if c.map == out.map]
            live_ranges[name] = self._stays(out, uses[name].phases, sorted(starts))
        return ReplayedStep(self.step, live_ranges, self.again, self._wanted())

    def _wanted(self) -> dict[int, tuple[Choice, ...]]:
        """The algorithms of each phase, of those that are put in too."""
        by_phase = dict[int, tuple[Choice, ...]]()
        for t, (stage, choices) in enumerate(zip(self.stages, self.schedule.runs, strict=True)):
            index = self._starts(t)
            for j in (j for of, j in self.schedule.remakes if of == t):
                for _ in self.built.makers[j]:
                    by_phase[index] = self.schedule.remakes[t, j]
                    index += 1
            by_phase |= {phase + sum(self.put_in[: phase + 1]): choices for phase in stage.phases}
        return {at: choices for at, choices in by_phase.items() if choices[0].workspace_bytes}

    def _again(self) -> list[RematEvent]:
        """Events that bring maps back for readers, in the order of stages, and of maps in each."""
        readers = list[tuple[int, int, bool]]()
        for j, touched in enumerate(self.touched):
            remade = {t for t, k in self.schedule.remakes if k == j}
            ends = [copy.end for copy in self.schedule.back if copy.map == j]
            is_original, before = True, -1
            for t in touched:
                if t in remade:
                    readers.append((t, j, True))
                    is_original = False
                elif not is_original and any(before <= end < t for end in ends):
                    readers.append((t, j, False))
                    is_original = True
                before = t
        return [
            RematEvent(self.stages[t].phases[0], self.names[j], made)
            for t, j, made in sorted(readers)
        ]

    def _starts(self, stage: int) -> int:
        """The first phase of a stage, of those that are put in too."""
        at = self.stages[stage].phases[0]
        return at + sum(self.put_in[:at])

    def _ends(self, stage: int) -> int:
        """The last phase of a stage."""
        at = self.stages[stage].phases[-1]
        return at + sum(self.put_in[: at + 1])

    def _stays(
        self, out: Copy, uses: Sequence[int], starts: Sequence[int]
    ) -> tuple[LiveRange, ...]:
        """Live ranges until it has left; then from each copy in to the last use before the next."""
        ends = [*starts[1:], len(self.step.phases)]
        first = [at for at in uses if at < starts[0]]
        leaves = self._starts(out.start) - 1
        last = max(first[-1], self._ends(out.end))
        ranges = [LiveRange(first[0], last, fetched=False, leaves=leaves)]
        for start, end in zip(starts, ends, strict=True):
            used = [at for at in uses if start <= at < end]
            if not used:
                continue
            if start <= ranges[-1].last:  # it is still there
                ranges[-1] = ranges[-1]._replace(last=max(ranges[-1].last, used[-1]))
            else:
                ranges.append(LiveRange(start, used[-1], fetched=True))
        return tuple(ranges)
