"""Rematerialization for backward: forward phases repeated there, so that less is kept.

A rewrite of a step. Each tensor that is to be remade gets a second one that backward reads in its
place, made by the same call just before its first reader, of what is kept or itself remade. Or each
of its readers gets one of its own (`anew`): then none is there for longer than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ooc_cudnn.network.cost.compute_seconds import compute_seconds
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor
from perfmodel import MachineModel


def rematerializable(step: Step) -> frozenset[str]:
    """Maps that backward reads, and that one repeatable forward phase makes whole.

    A phase that changes what lives between steps (running statistics) is run once. What is made
    again in other pieces may differ in its last bit. So a map is not remade where a gradient looks
    for maxima in it by comparing: that of a max pooling that saved no indices.
    """
    uses = step.uses
    return frozenset(
        name
        for name in repeatable_maps(step) - compared_maps(step)
        if step.phases[uses[name].phases[-1]].is_backward
    )


def compared_maps(step: Step) -> frozenset[str]:
    """Maps in which a gradient looks for maxima by comparing."""
    return frozenset(
        phase.binds[operand] for phase in step.phases for operand in phase.call.compared
    )


def repeatable_maps(step: Step) -> frozenset[str]:
    """Maps that one repeatable forward phase makes whole, whoever reads them."""
    maps, uses = set[str](), step.uses
    for index, phase in enumerate(step.phases):
        if phase.is_backward or not is_repeatable(step, phase):
            continue
        for name in phase.writes:
            if step.base(name) == name and uses[name].written == (index,):
                maps.add(name)
    return frozenset(maps)


def forward_only_maps(step: Step) -> frozenset[str]:
    """Maps that backward does not read: they are made again where what is made again needs them."""
    uses = step.uses
    return frozenset(
        name for name in repeatable_maps(step) if not step.phases[uses[name].phases[-1]].is_backward
    )


def is_repeatable(step: Step, phase: Phase) -> bool:
    """True if running a phase again changes nothing but what it makes anew."""
    return phase.call.beta == 0 and makes_maps_alone(step, phase)


def makes_maps_alone(step: Step, phase: Phase) -> bool:
    """True if a phase writes nothing that lives between steps, and no statistics."""
    return all(step.tensors[step.base(name)].kind == "map" for name in phase.writes)


def rematerialize(step: Step, names: Iterable[str], anew: Collection[str] = ()) -> Step:
    """Rewrite a step so that these maps are made again for backward.

    Parameters
    ----------
    anew : collection of str
        Those of them that are made for each reader anew, but for readers that follow each other.

    Raises
    ------
    ValueError
        If one of them cannot be (`rematerializable`).
    """
    wanted = frozenset(names)
    cannot = (wanted | set(anew)) - rematerializable(step)
    if cannot:
        raise ValueError(f"{min(cannot)} cannot be recomputed")
    return (
        Rematerialization(step, wanted | forward_only_maps(step), anew).step() if wanted else step
    )


def remat_seconds(
    step: Step, machine: MachineModel, gone: frozenset[str]
) -> Callable[[str], float]:
    """Recompute cost of a tensor, including ancestors that are not live."""
    uses, costs = step.uses, dict[str, float]()

    def seconds_of(name: str) -> float:
        if name not in costs:
            maker = step.phases[uses[name].written[0]]
            before = sum(seconds_of(each) for each in maker.reads if each in gone)
            costs[name] = compute_seconds(maker, machine) + before
        return costs[name]

    return seconds_of


class Rematerialization:
    """A step being rewritten."""

    def __init__(self, before: Step, wanted: frozenset[str], anew: Collection[str]) -> None:
        self.before, self.wanted, self.anew = before, wanted, frozenset(anew)
        self.tensors = dict(before.tensors)
        self.phases: list[Phase] = []
        #: What is there again: its name, and how often each was made.
        self.made: dict[str, str] = {}
        self.times = Counter[str]()
        self.makers = {
            name: at
            for at, phase in enumerate(before.phases)
            for name in phase.writes
            if not phase.is_backward
        }

    def step(self) -> Step:
        """The rewritten step."""
        for phase, following in pairwise([*self.before.phases, None]):
            assert phase is not None
            if phase.is_backward:
                for index in sorted(self._to_repeat(phase)):
                    self._repeat(self.before.phases[index])
                phase = self._rebound(phase)
            self.phases.append(phase)
            near = {self.before.base(name) for name in following.reads} if following else ()
            for base in self.anew.difference(near):
                self.made.pop(base, None)
        return replace(self.before, tensors=self.tensors, phases=tuple(self.phases))

    def _to_repeat(self, phase: Phase) -> set[int]:
        """The phases that make what a phase reads and is not there, and what those read."""
        indices, looked_at = set[int](), [phase]
        while looked_at:
            for read in looked_at.pop().reads:
                base = self.before.base(read)
                if base in self.wanted - self.made.keys() and self.makers[base] not in indices:
                    indices.add(self.makers[base])
                    looked_at.append(self.before.phases[self.makers[base]])
        return indices

    def _repeat(self, maker: Phase) -> None:
        for result in maker.writes:
            self._copy(result)
        self._append_again(maker)

    def _append_again(self, maker: Phase) -> None:
        again = self._rebound(maker)
        self.phases.append(replace(again, name=f"{maker.name} again", is_backward=True))

    def _copy(self, result: str) -> None:
        """Let what reads a map from here on read another tensor."""
        self.times[result] += 1
        time = self.times[result]
        name = self.made[result] = result + (f" ({time})" if time > 1 else "") + " remade"
        self.tensors[name] = self._derived(result, name, of="", region=())

    def _derived(self, source: str, name: str, **changes: Any) -> Tensor:
        return self.before.tensors[source].derived(name, {"copy": "rematerialized"}, **changes)

    def _rebound(self, phase: Phase) -> Phase:
        """A phase that reads and writes what is made again in place of what was."""
        binds = {operand: self._again(name) for operand, name in phase.binds.items()}
        return phase if binds == phase.binds else replace(phase, binds=binds)

    def _again(self, name: str) -> str:
        if name in self.made:  # a view, perhaps, that is written beside what is wanted
            return self.made[name]
        base, region = self.before.place(name)
        if base not in self.made:
            return name
        of = self.made[base]
        new_name = name + of[len(base) :]
        if new_name not in self.tensors:  # a view of what is made again
            self.tensors[new_name] = self._derived(name, new_name, of=of, region=region)
        return new_name
