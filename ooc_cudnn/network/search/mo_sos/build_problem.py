"""Build the MO-SOS problem of a step (its maps, stages, costs)."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.ir.live_ranges import keep_all, live_bytes
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import whole_region
from ooc_cudnn.network.passes.microbatch import images_of
from ooc_cudnn.network.passes.remat_for_backward import compared_maps, makes_maps_alone
from ooc_cudnn.network.search.mo_sos.choices import PIECES, PhaseChoices, run_together
from ooc_cudnn.network.search.mo_sos.problem import Map, Problem, Stage

#: Maps that are smaller, as a share of the largest, stay: there are many, and they take little.
SMALL = 1 / 64
#: Phases run in one stage while they take no more of all seconds, and this share of the budget.
SHORT, LITTLE = 0.02, 0.25


@dataclass(frozen=True)
class BuiltProblem:
    """A problem, and the step that it is of.

    Attributes
    ----------
    makers : tuple of tuple of int
        Of each map the phases that make it, one after the other.
    """

    problem: Problem
    step: Step
    makers: tuple[tuple[int, ...], ...]


def build_problem(
    step: Step, choosing: PhaseChoices, budget_bytes: int, given: frozenset[str]
) -> BuiltProblem:
    """Return the problem of a step.

    Parameters
    ----------
    given : frozenset of str
        Tensors that the user holds on the device: they take nothing of the budget.
    """
    return _ProblemBuilder(step, choosing, budget_bytes, given).built()


class _ProblemBuilder:
    def __init__(
        self, step: Step, choosing: PhaseChoices, budget_bytes: int, inputs: frozenset[str]
    ) -> None:
        self.step, self.choosing, self.budget = step, choosing, budget_bytes
        self.uses, self.bases = step.uses, {n: step.base(n) for n in step.tensors}
        self.compared, self.images = compared_maps(step), images_of(step)
        managed = self._managed()
        #: Numbers of the managed maps, in the order in which they are made.
        self.number = {name: at for at, name in enumerate(managed)}
        self.nbytes = [align(step.tensors[name].nbytes) for name in managed]
        self.makers = tuple(self._forward_writers(name) for name in managed)
        live_ranges = {n: s for n, s in keep_all(step).items() if n not in {*self.number, *inputs}}
        self.fixed = live_bytes(step, live_ranges)
        self.choices = [
            choosing.choices(phase, self._strided_bytes(phase)) for phase in step.phases
        ]

    def built(self) -> BuiltProblem:
        """The problem."""
        maps = [
            self._map(name, makers) for name, makers in zip(self.number, self.makers, strict=True)
        ]
        rates = (self.choosing.rate(direction) for direction in ("copy_out", "copy_in"))
        return BuiltProblem(
            Problem(tuple(maps), tuple(self._stages()), *rates), self.step, self.makers
        )

    def _strided_bytes(self, phase: Phase) -> int:
        """Bytes that a phase brings to a slot, lying apart: parts of filters, or of an image."""
        nbytes = 0
        for name in dict.fromkeys(phase.binds.values()):
            tensor, (base, region) = self.step.tensors[name], self.step.place(name)
            if region[1:] != whole_region(self.step.tensors[base].shape)[1:]:
                pieces = PIECES if tensor.shape[0] == self.images > 1 else 1
                nbytes += align(tensor.nbytes) // pieces
        return nbytes

    def _forward_writers(self, name: str) -> tuple[int, ...]:
        return tuple(at for at in self.uses[name].written if not self.step.phases[at].is_backward)

    def _managed(self) -> list[str]:
        """Large maps that forward alone makes, but for those that are asked for."""
        step, asked = self.step, self.step.results
        maps = [
            name
            for name, used in self.uses.items()
            if step.tensors[name].kind == "map"
            and name not in asked
            and used.written
            and not step.phases[used.written[-1]].is_backward
        ]
        nbytes = {name: step.tensors[name].nbytes for name in maps}
        least = SMALL * max(nbytes.values(), default=0)
        beside = {  # an index beside what is pooled
            name
            for phase in step.phases
            for name in maps
            if name in phase.writes
            and any(nbytes.get(self.bases[n], 0) > nbytes[name] for n in phase.writes)
        }
        large = [name for name in maps if nbytes[name] > least and name not in beside]
        return sorted(large, key=lambda name: self.uses[name].written[-1])

    def _reads(self, at: int) -> list[int]:
        phase = self.step.phases[at]
        touched = dict.fromkeys(self.bases[name] for name in (*phase.reads, *phase.writes))
        return [self.number[base] for base in touched if base in self.number]

    def _map(self, name: str, makers: tuple[int, ...]) -> Map:
        number = self.number[name]
        nbytes = self.nbytes[number]
        read = {each for at in makers for each in self._reads(at)} - {number}
        phases = [self.step.phases[at] for at in makers]
        others = {self.bases[n] for p in phases for n in p.writes} & self.number.keys() - {name}
        may = not others and name not in self.compared and phases[0].call.beta == 0
        may = may and all(makes_maps_alone(self.step, phase) for phase in phases)
        may = may and all(self.makers[each][-1] < makers[0] for each in read)
        choices = run_together([self.choices[at] for at in makers]) if may else ()
        return Map(name, nbytes, tuple(sorted(read)), choices)

    # Stages -------------------------------------------------------------------------------------

    def _stages(self) -> list[Stage]:
        """Stages of one phase, or of several short ones that hold little."""
        short = SHORT * sum(min(c.seconds for c in choices) for choices in self.choices)
        stages = list[Stage]()
        for index, phase in enumerate(self.step.phases):
            makes = tuple(own for own, makers in enumerate(self.makers) if makers[0] == index)
            reads = tuple(each for each in self._reads(index) if each not in makes)
            adds_to = tuple(own for own in reads if index in self.makers[own])
            stage = Stage(
                self.choices[index],
                reads,
                makes,
                int(self.fixed[index]),
                phase.is_backward,
                (index,),
                adds_to,
            )
            if stages and self._may_join(stages[-1], stage, short):
                stages[-1] = _joined(stages[-1], stage)
            else:
                stages.append(stage)
        return stages

    def _may_join(self, one: Stage, other: Stage, short: float) -> bool:
        if one.is_backward != other.is_backward or one.makes or other.makes:
            return False
        both = _joined(one, other)
        nbytes = sum(self.nbytes[j] for j in both.reads)
        held = both.fixed_bytes + nbytes + max(c.workspace_bytes for c in both.choices)
        return both.seconds <= short and held <= LITTLE * self.budget


def _joined(one: Stage, other: Stage) -> Stage:
    return Stage(
        run_together([one.choices, other.choices]),
        tuple(dict.fromkeys((*one.reads, *other.reads))),
        (*one.makes, *other.makes),
        max(one.fixed_bytes, other.fixed_bytes),
        one.is_backward,
        (*one.phases, *other.phases),
        (*one.adds_to, *other.adds_to),
    )
