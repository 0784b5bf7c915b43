"""Policies: who decides what is kept, offloaded and rematerialized.

Each says which maps of a step are rematerialized, and where its tensors are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooc_cudnn.network.ir.live_ranges import LiveRanges, keep_all
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.passes.remat_for_backward import (
    forward_only_maps,
    remat_seconds,
    rematerializable,
)
from ooc_cudnn.network.policies.offload import idle_phases
from ooc_cudnn.network.policies.vdnn import vdnn_all, vdnn_conv, vdnn_none
from perfmodel import MachineModel


class Decision(NamedTuple):
    """Decision for a step: which maps are rematerialized, and which leave until backward."""

    rematerialized: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()


#: Says what may be decided for a step, the fastest first; each later one takes less memory. Of
#: those that fit the first is taken.
Decisions = Callable[[Step, MachineModel], Sequence[Decision]]
#: Says where the tensors of a step are.
LiveRangeRule = Callable[[Step], LiveRanges]


@dataclass(frozen=True)
class Policy:
    """A rule that decides for a step.

    Attributes
    ----------
    live_ranges_of : callable
        Where its tensors are, but for what a decision lets leave.
    decisions : callable
        What is rematerialized and what leaves: a list, for memory that gets shorter and shorter.
    synchronous : bool
        Whether computing waits at the end of a layer for what leaves there, as vDNN does.
    """

    live_ranges_of: LiveRangeRule
    decisions: Decisions = lambda step, machine: (Decision(),)
    synchronous: bool = False


def keep(step: Step) -> LiveRanges:
    """Everything stays on the device from its first use to its last."""
    return keep_all(step)


# Offloading -------------------------------------------------------------------------------------


def _leaving_first(step: Step) -> list[str]:
    """Maps that may leave: first those whose bytes are idle for longest."""
    gaps = idle_phases(step, step.uses)
    idle_for = {
        name: step.tensors[name].nbytes * (first - last) for name, (last, first) in gaps.items()
    }
    return sorted(idle_for, key=lambda name: (-idle_for[name], name))


def offload_decisions(
    step: Step, machine: MachineModel, again: frozenset[str] = frozenset()
) -> Sequence[Decision]:
    """Offload decisions: from none to every saved activation that is not recomputed."""
    order = [name for name in _leaving_first(step) if name not in again]
    return [Decision(again, frozenset(order[:count])) for count in range(len(order) + 1)]


def mixed(step: Step, machine: MachineModel, share: float = 1.0) -> Sequence[Decision]:
    """Remake up to a share of the bytes that can be; then offload more and more of the rest."""
    most = share * sum(step.tensors[name].nbytes for name in rematerializable(step))
    again, *more = remake(step, machine)  # each is those before it and one map more
    remaking, nbytes = [again], 0
    for decision in more:
        (name,) = decision.rematerialized - remaking[-1].rematerialized
        nbytes += step.tensors[name].nbytes
        if nbytes > most:
            break
        remaking.append(decision)
    return [*remaking[:-1], *offload_decisions(step, machine, remaking[-1].rematerialized)]


# Rematerialization ------------------------------------------------------------------------------


def remake(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """Remake from nothing to all that can be: what costs least a byte comes first.

    Maps at which forward narrows (`_single_maps`) come last, whatever they cost: while they are
    kept, what is made again is made of what is near.
    """
    again, ends = rematerializable(step), set(_single_maps(step))
    seconds_of = remat_seconds(step, machine, forward_only_maps(step))

    def cost(name: str) -> tuple[bool, float, str]:
        return name in ends, seconds_of(name) / step.tensors[name].nbytes, name

    order = sorted(again, key=cost)
    return [Decision(frozenset(order[:count])) for count in range(len(order) + 1)]


def checkpoint(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """One decision: remake all but some of the maps at which forward narrows (`_single_maps`).

    About as many of these are kept as the square root of their number, evenly spread (Chen et al.,
    "Training deep nets with sublinear memory cost").
    """
    again = rematerializable(step)
    ends = [name for name in _single_maps(step) if name in again]
    if not ends:
        return (Decision(again),)
    segments = max(math.isqrt(len(ends)), 1)
    size = math.ceil(len(ends) / (segments + 1))
    return (Decision(again - set(ends[size - 1 :: size])),)


def _single_maps(step: Step) -> list[str]:
    """Maps at which forward narrows: once made, all later phases of forward begin from them alone.

    In the order in which they are made.
    """
    uses, narrow = step.uses, list[str]()
    forward = {at for at, phase in enumerate(step.phases) if not phase.is_backward}
    lives = {
        name: (used.written[0], max((at for at in used.phases if at in forward), default=-1))
        for name, used in uses.items()
        if step.tensors[name].kind == "map" and used.written
    }
    change = dict[int, int]()
    for first, last in lives.values():
        change[first] = change.get(first, 0) + 1
        change[last] = change.get(last, 0) - 1
    alive, count = 0, dict[int, int]()
    for index in range(len(step.phases)):
        alive += change.get(index, 0)
        count[index] = alive
    for name, (first, last) in lives.items():
        if count[first] == 1 and last > first:
            narrow.append(name)
    return narrow


#: By name; `vdnn_dyn` tries some of them in its order.
POLICIES: Mapping[str, Policy] = {
    "keep": Policy(keep),
    "offload": Policy(keep, offload_decisions),
    "mixed": Policy(keep, mixed),
    "remake": Policy(keep, remake),
    "checkpoint": Policy(keep, checkpoint),
    "vdnn_all": Policy(vdnn_all, synchronous=True),
    "vdnn_conv": Policy(vdnn_conv, synchronous=True),
    "vdnn_dyn": Policy(vdnn_none),  # its first pass; the others are those above
}
