"""Costs of a limit, and the phases that set it: counted from tensors, never planned."""

from __future__ import annotations

from collections.abc import Iterable

from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import is_live, live_bytes
from ooc_cudnn.network.ir.plan import MemoryNeed
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.policies.policy import POLICIES

#: So many of a phase's tensors are named, the largest.
NAMED = 3


def memory_needs(
    planned: LoweredStep, step: Step, constraints: PlanConstraints
) -> tuple[MemoryNeed, ...]:
    """Return the limits, above the plan's, below which its step surely costs something.

    Each is a lower bound: of the tensors that one phase holds, and what lies beside the plan. What
    the phase works in comes on top.

    Parameters
    ----------
    planned : LoweredStep
    step : Step
        As the policy takes it, before anything is rewritten.
    """
    limit, found = constraints.target.limit_bytes, (
        _to_keep_all(step, constraints), _to_stream_none(planned, constraints)
    )  # fmt: skip
    return tuple(need for need in found if need is not None and need.nbytes > limit)


def _to_keep_all(step: Step, constraints: PlanConstraints) -> MemoryNeed:
    """Bytes that the fullest phase holds where nothing leaves and nothing is rematerialized."""
    ready = share_gradient_memory(fuse_gradient_sums(step))
    live_ranges = {
        base: found
        for base, found in POLICIES["keep"].live_ranges_of(ready).items()
        if base not in constraints.on_device
    }
    held = live_bytes(ready, live_ranges)
    worst = int(held.argmax())
    there = (base for base, found in live_ranges.items() if is_live(found, worst))
    return _need("all kept", ready, worst, there, int(held[worst]), constraints)


def _to_stream_none(planned: LoweredStep, constraints: PlanConstraints) -> MemoryNeed | None:
    """Bytes that the largest of the plan's phases with a streamed operand touches."""
    step, live_ranges, there = planned.step, planned.lowered.live_ranges, constraints.on_device
    touched = {
        index: sum(align(step.tensors[base].nbytes) for base in bases - there)
        for index, bases in enumerate(step.bases_of_phases)
        if not all(is_live(live_ranges.get(base, ()), index) for base in bases - there)
    }
    if not touched:
        return None
    worst = max(touched, key=touched.__getitem__)
    bases = step.bases_of_phases[worst] - there
    return _need("none streamed", step, worst, bases, touched[worst], constraints)


def _need(
    what: str,
    step: Step,
    phase: int,
    bases: Iterable[str],
    nbytes: int,
    constraints: PlanConstraints,
) -> MemoryNeed:
    named = ((base, step.tensors[base].nbytes) for base in bases)
    tensors = sorted(named, key=lambda each: (-each[1], each[0]))  # bases may be a set
    at_least = nbytes + constraints.target.beside_bytes
    return MemoryNeed(what, step.phases[phase].name, at_least, tuple(tensors[:NAMED]))
