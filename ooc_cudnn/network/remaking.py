"""Remaking: forward phases repeated in backward, so that their results need not be kept.

A rewrite of a step. Each tensor that is to be remade gets a second one that backward reads in its
place, made by the same call just before its first reader, of what is kept or itself remade.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import uses_of
from ooc_cudnn.operations.backward_pooling import BackwardPooling

#: What the name of the second tensor ends in.
REMADE = " remade"


def can_be_remade(step: Step) -> frozenset[str]:
    """Maps that backward reads, and that one repeatable forward phase makes whole.

    A phase that changes what lives between steps (running statistics) is run once. What is made
    again in other pieces may differ in its last bit. So a map is not remade where a gradient looks
    for maxima in it by comparing: that of a max pooling that saved no indices.
    """
    uses = uses_of(step)
    compared = {
        phase.binds[operand]
        for phase in step.phases
        if isinstance(phase.call, BackwardPooling) and not phase.call.indexed
        for operand in ("x", "y")
        if operand in phase.binds
    }
    return frozenset(
        name
        for name in repeatable(step) - compared
        if step.phases[uses[name].phases[-1]].is_backward
    )


def repeatable(step: Step) -> frozenset[str]:
    """Maps that one repeatable forward phase makes whole, whoever reads them."""
    found, uses = set[str](), uses_of(step)
    for at, phase in enumerate(step.phases):
        if phase.is_backward or not is_repeatable(step, phase):
            continue
        for name in phase.writes:
            if step.place(name).base == name and uses[name].written == (at,):
                found.add(name)
    return frozenset(found)


def forward_only(step: Step) -> frozenset[str]:
    """Maps that backward does not read: they are made again where what is made again needs them."""
    uses = uses_of(step)
    return frozenset(
        name for name in repeatable(step) if not step.phases[uses[name].phases[-1]].is_backward
    )


def is_repeatable(step: Step, phase: Phase) -> bool:
    """Whether running a phase again changes nothing but what it makes anew."""
    changes = (step.tensors[step.place(name).base].kind for name in phase.writes)
    return phase.call.beta == 0 and all(kind == "map" for kind in changes)


def remade(step: Step, names: Iterable[str]) -> Step:
    """Rewrite a step so that these maps are made again for backward.

    Raises
    ------
    ValueError
        If one of them cannot be (`can_be_remade`).
    """
    wanted = frozenset(names)
    cannot = wanted - can_be_remade(step)
    if cannot:
        raise ValueError(f"{min(cannot)} cannot be remade")
    return _Remaking(step, wanted | forward_only(step)).step() if wanted else step


class _Remaking:
    """A step being rewritten."""

    def __init__(self, before: Step, wanted: frozenset[str]) -> None:
        self.before, self.wanted = before, wanted
        self.tensors = dict(before.tensors)
        self.phases: list[Phase] = []
        self.made: set[str] = set()
        self.makers = {
            name: at
            for at, phase in enumerate(before.phases)
            for name in phase.writes
            if not phase.is_backward
        }

    def step(self) -> Step:
        """The rewritten step."""
        for phase in self.before.phases:
            if phase.is_backward:
                for at in sorted(self._to_repeat(phase)):
                    self._repeat(self.before.phases[at])
                phase = self._rebound(phase)
            self.phases.append(phase)
        return replace(self.before, tensors=self.tensors, phases=tuple(self.phases))

    def _to_repeat(self, phase: Phase) -> set[int]:
        """The phases that make what a phase reads and is not there, and what those read."""
        found, looked_at = set[int](), [phase]
        while looked_at:
            for read in looked_at.pop().reads:
                base = self.before.place(read).base
                if base in self.wanted - self.made and self.makers[base] not in found:
                    found.add(self.makers[base])
                    looked_at.append(self.before.phases[self.makers[base]])
        return found

    def _repeat(self, maker: Phase) -> None:
        for result in maker.writes:
            self.made.add(result)
            name = result + REMADE
            tensor = self.before.tensors[result]
            self.tensors[name] = replace(tensor, name=name, of="", region=())
        again = self._rebound(maker)
        self.phases.append(replace(again, name=f"{maker.name} again", is_backward=True))

    def _rebound(self, phase: Phase) -> Phase:
        """A phase that reads and writes what is made again in place of what was."""
        binds = {operand: self._again(name) for operand, name in phase.binds.items()}
        return replace(phase, binds=binds)

    def _again(self, name: str) -> str:
        base, region = self.before.place(name)
        if base not in self.made:
            return name
        made = name + REMADE
        if made not in self.tensors:  # a view of what is made again
            tensor = self.before.tensors[name]
            self.tensors[made] = replace(tensor, name=made, of=base + REMADE, region=region)
        return made
