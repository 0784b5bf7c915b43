"""Gradients in place: dx in the memory of dy, which nobody reads any more.

A rewrite of a step. Each element of dx is made of that of dy alone, and of what normalizations sum
beforehand; local response normalization reads all channels of a site before it writes one. So
pieces of dx may go where those of dy were. It saves a map where backward holds most: at the widest
layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, Step, Uses

#: The operands that may share memory: what is read, and what is made of it.
_PAIR = ("dy", "dx")


def share_gradient_memory(step: Step) -> Step:
    """Rewrite a step with fewer gradients."""
    uses = step.uses
    asked = {step.base(name) for name in (*step.outputs, *step.gradients.values())}
    asked |= set(step.seeds.values())
    names: dict[str, str] = {}
    phases = list[Phase]()
    for index, phase in enumerate(step.phases):
        binds = {operand: names.get(name, name) for operand, name in phase.binds.items()}
        if _may_share(step, index, phase, uses) and asked.isdisjoint(phase.binds[n] for n in _PAIR):
            names[phase.binds["dx"]] = binds["dx"] = binds["dy"]
        phases.append(replace(phase, binds=binds))
    tensors = {
        name: replace(tensor, of=names.get(tensor.of, tensor.of))
        for name, tensor in step.tensors.items()
        if name not in names
    }
    return replace(step, tensors=tensors, phases=tuple(phases))


def _may_share(step: Step, index: int, phase: Phase, uses: Mapping[str, Uses]) -> bool:
    """True if dy, read for the last time, can become dx, written for the first."""
    if not phase.call.may_be_in_place or phase.call.beta != 0:
        return False
    if "dx" not in phase.binds:  # sums alone are made, of what nobody wants a gradient of
        return False
    dy, dx = (step.tensors[phase.binds[name]] for name in _PAIR)
    return (
        dy.kind == dx.kind == "gradient"
        and not dy.of
        and not dx.of
        and uses[dy.name].phases[-1] == index == uses[dx.name].phases[0]
        and dy.name not in (name for operand, name in phase.binds.items() if operand != "dy")
    )
