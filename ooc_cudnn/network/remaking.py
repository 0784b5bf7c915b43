"""Remaking: forward phases repeated in backward, so that their results need not be kept.

A rewrite of a step. Each tensor that is to be remade gets a second one that backward reads in its
place, made by the same call just before its first reader, of what is kept or itself remade.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.residency import uses_of

REMADE = " remade"


def can_be_remade(step: Step) -> frozenset[str]:
    """Maps that backward reads, and that one repeatable forward phase makes whole.

    A phase that changes what lives between steps (running statistics) is run once.
    """
    found = set()
    uses = uses_of(step)
    for at, phase in enumerate(step.phases[: step.forward_count]):
        if not is_repeatable(step, phase):
            continue
        for name in phase.writes:
            base = step.place(name).base
            used = uses[base]
            whole = base == name and used.written == (at,)
            if whole and used.phases[-1] >= step.forward_count:
                found.add(name)
    return frozenset(found)


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
    if not wanted <= can_be_remade(step):
        raise ValueError(f"{min(wanted - can_be_remade(step))} cannot be remade")
    if not wanted:
        return step
    makers = {name: phase for phase in step.phases[: step.forward_count] for name in phase.writes}
    tensors, phases = dict(step.tensors), list(step.phases[: step.forward_count])
    again = dict[str, str]()

    def renamed(name: str) -> str:
        """What backward reads in place of a tensor: views of what is remade are remade, too."""
        base, region = step.place(name)
        if base not in again:
            return name
        tensor = step.tensors[name]
        if name != base and name + REMADE not in tensors:
            tensors[name + REMADE] = replace(
                tensor, name=name + REMADE, of=again[base], region=region
            )
        return name + REMADE

    def make(name: str) -> None:
        """Repeat the phase that makes a tensor, after those that make what it reads."""
        if name in again:
            return
        maker = makers[name]
        for read in maker.reads:
            if (base := step.place(read).base) in wanted:
                make(base)
        for result in maker.writes:
            again[result] = result + REMADE
            tensors[result + REMADE] = replace(
                step.tensors[result], name=result + REMADE, of="", region=()
            )
        binds = {operand: renamed(bound) for operand, bound in maker.binds.items()}
        phases.append(replace(maker, name=f"{maker.name} again", binds=binds))

    for phase in step.phases[step.forward_count :]:
        for read in phase.reads:
            if (base := step.place(read).base) in wanted:
                make(base)
        binds = {operand: renamed(bound) for operand, bound in phase.binds.items()}
        phases.append(replace(phase, binds=binds))
    return replace(step, tensors=tensors, phases=tuple(phases))
