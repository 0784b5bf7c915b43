"""Policies: who decides what is kept, offloaded and remade.

Each says which maps of a step are remade, and where its tensors are. vDNN's (Rhu et al., "vDNN",
MICRO 2016) are as the paper has them, down to its prefetch window (`prefetches`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.remaking import can_be_remade, forward_only
from ooc_cudnn.network.residency import Residency, Stay, Uses, kept, uses_of
from ooc_cudnn.operations.backward_filter import BackwardFilter
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.tensor import ORDERS
from perfmodel import MachineModel


class Decision(NamedTuple):
    """Which maps of a step are remade, and which leave between forward and backward."""

    remade: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()


#: Says what may be decided for a step, the fastest first; each later one takes less memory. Of
#: those that fit the first is taken.
Decisions = Callable[[Step, MachineModel], Sequence[Decision]]
#: Says where the tensors of a step are.
Residing = Callable[[Step], Residency]


@dataclass(frozen=True)
class Policy:
    """What is decided for a step.

    Attributes
    ----------
    residing : callable
        Where its tensors are, but for what a decision lets leave.
    decisions : callable
        What is remade and what leaves: a list, for memory that gets shorter and shorter.
    synchronous : bool
        Whether computing waits at the end of a layer for what leaves there, as vDNN does.
    """

    residing: Residing
    decisions: Decisions = lambda step, machine: (Decision(),)
    synchronous: bool = False


def keep(step: Step) -> Residency:
    """Everything stays on the device from its first use to its last."""
    return kept(step, uses_of(step))


# Offloading -------------------------------------------------------------------------------------


def idle(step: Step, uses: Mapping[str, Uses]) -> dict[str, tuple[int, int]]:
    """Of each map that backward reads, the phases of its last use in forward and its next one."""
    found = dict[str, tuple[int, int]]()
    for name, used in uses.items():
        if step.tensors[name].kind not in ("map", "input"):
            continue
        backward = [at for at in used.phases if step.phases[at].is_backward]
        if backward and backward[0] > used.phases[0]:
            found[name] = used.last_before(backward[0]), backward[0]
    return found


def offloaded(step: Step, fetches: Mapping[str, int]) -> Residency:
    """Everything kept but some maps, which leave beside their last reader in forward.

    Parameters
    ----------
    fetches : mapping
        Name of each map that leaves, to the phase before which the copy back starts.
    """
    uses = uses_of(step)
    stays, gaps = kept(step, uses), idle(step, uses)
    for name, back in fetches.items():
        last, first = gaps[name]
        (stay,) = stays[name]
        made = max((at for at in uses[name].written if at <= last), default=-1)
        leaves = None if step.tensors[name].kind == "input" else max(last - 1, made)
        back = min(max(back, last + 1), first)
        stays[name] = (
            Stay(stay.first, last, stay.fetched, leaves),
            Stay(back, stay.last, fetched=True, leaves=stay.leaves),
        )
    return stays


def leaving(step: Step, names: frozenset[str]) -> Residency:
    """Maps that leave, and are fetched during the phase before their reader; all else is kept.

    Of a step that goes through its batch in parts, the names are those of the whole batch's maps.
    """
    gaps = idle(step, uses_of(step))
    return offloaded(
        step,
        {name: first - 1 for name, (_, first) in gaps.items() if name.split(" [")[0] in names},
    )


def _leaving_first(step: Step) -> list[str]:
    """Maps that may leave: first those whose bytes are idle for longest."""
    gaps = idle(step, uses_of(step))
    idle_for = {
        name: step.tensors[name].nbytes * (first - last) for name, (last, first) in gaps.items()
    }
    return sorted(idle_for, key=lambda name: (-idle_for[name], name))


def offload(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """What leaves, from nothing to every map that backward reads."""
    order = _leaving_first(step)
    return [Decision(offloaded=frozenset(order[:count])) for count in range(len(order) + 1)]


def mixed(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """What is remade, up to all that can be; then what leaves, of the rest."""
    remaking = remake(step, machine)
    again = remaking[-1].remade
    order = [name for name in _leaving_first(step) if name not in again]
    return [
        *remaking,
        *(Decision(again, frozenset(order[:count])) for count in range(1, len(order) + 1)),
    ]


def vdnn_all(step: Step) -> Residency:
    """The inputs of all layers of feature extraction leave: of convolutions and of pooling."""
    return offloaded(step, prefetches(step, (BackwardFilter, BackwardPooling)))


def vdnn_conv(step: Step) -> Residency:
    """The inputs of convolutions leave, whose time hides the copies best."""
    return offloaded(step, prefetches(step, (BackwardFilter,)))


def prefetches(step: Step, readers: tuple[type, ...]) -> dict[str, int]:
    """What vDNN offloads, and the phase of backward with which it fetches each again.

    Offloaded is the input x of the layers whose gradient is one of `readers`, but for those of the
    classifier. When backward of a layer starts, the layers before it are looked at in turn: the
    first whose input is still to be fetched is fetched meanwhile; a convolution that needs nothing
    ends the search. So nothing is fetched more than one convolution ahead (section 3.3, figure 10).
    """
    gaps = idle(step, uses_of(step))
    layers = _layers(step)
    inputs = {layer: _input(step, phases, readers) for layer, phases in layers.items()}
    pending = {name for name in inputs.values() if name in gaps}
    found = dict[str, int]()
    order = list(layers)  # as backward goes
    for at, layer in enumerate(order):
        start = layers[layer][0]
        if inputs[layer] in pending:  # nobody fetched it before
            found[inputs[layer]] = gaps[inputs[layer]][1]
            pending.discard(inputs[layer])
        for earlier in order[at + 1 :]:
            if inputs[earlier] in pending:
                found[inputs[earlier]] = start
                pending.discard(inputs[earlier])
                break
            if _is_convolution(step, layers[earlier]):
                break
    return found


def _layers(step: Step) -> dict[str, list[int]]:
    """The phases of backward of each node, in the order in which backward comes to them."""
    found = dict[str, list[int]]()
    for at, phase in enumerate(step.phases):
        if phase.is_backward:
            found.setdefault(phase.node, []).append(at)
    return found


def _input(step: Step, phases: Iterable[int], readers: tuple[type, ...]) -> str:
    """The map that a layer of feature extraction reads; "" for other layers.

    Backward of a pooling need not read it: then it is what forward reads.
    """
    for at in phases:
        phase = step.phases[at]
        if isinstance(phase.call, readers) and not _is_classifier(phase):
            of_node = (each.binds for each in step.phases if each.node == phase.node)
            x = next((binds["x"] for binds in (phase.binds, *of_node) if "x" in binds), "")
            return step.place(x).base if x else ""
    return ""


def _is_classifier(phase: Phase) -> bool:
    """Whether a layer is a fully connected one: its window is all of the image."""
    call = phase.call
    return isinstance(call, BackwardFilter) and math.prod(call.operands["dy"].shape[2:]) == 1


def _is_convolution(step: Step, phases: Iterable[int]) -> bool:
    return any(isinstance(step.phases[at].call, BackwardFilter) for at in phases)


# Remaking ---------------------------------------------------------------------------------------


def remake(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """What is remade, from nothing to all that can be: what costs least a byte comes first.

    Maps at which forward narrows (`_single_maps`) come last, whatever they cost: while they are
    kept, what is made again is made of what is near.
    """
    uses, again = uses_of(step), can_be_remade(step)
    beside = forward_only(step)
    makers = {name: step.phases[uses[name].written[0]] for name in again | beside}
    ends = set(_single_maps(step))
    found = dict[str, float]()

    def seconds_of(name: str) -> float:
        """What making it again takes, and what it is made of that backward has not."""
        if name not in found:
            found[name] = compute_seconds(makers[name], machine)
            found[name] += sum(seconds_of(n) for n in makers[name].reads if n in beside)
        return found[name]

    def cost(name: str) -> tuple[bool, float, str]:
        return name in ends, seconds_of(name) / step.tensors[name].nbytes, name

    order = sorted(again, key=cost)
    return [Decision(frozenset(order[:count])) for count in range(len(order) + 1)]


def compute_seconds(phase: Phase, machine: MachineModel) -> float:
    """Seconds to compute a phase in one piece, in the memory order it computes fastest in."""
    return min(seconds_in(order, phase.call, machine) for order in ORDERS)


def seconds_in(order: str, call: Splittable, machine: MachineModel) -> float:
    """Seconds to compute a call in one piece, all its tensors in a memory order."""
    orders, seconds = dict.fromkeys(call.operands, order), 0.0
    for sweep in range(call.sweeps):
        launches, _ = call.launches(call.whole_piece(sweep), layout=order, orders=orders)
        seconds += sum(float(machine.compute.seconds(e.operation.work())) for e in launches)
    return seconds


def fastest_order(step: Step, machine: MachineModel, orders: Sequence[str]) -> str:
    """The memory order in which all phases of a step take least to compute."""
    counts = Counter(phase.call for phase in step.phases)

    def seconds_of(order: str) -> float:
        return sum(count * seconds_in(order, call, machine) for call, count in counts.items())

    return min(orders, key=seconds_of)


def checkpoint(step: Step, machine: MachineModel) -> Sequence[Decision]:
    """One decision: remake all but some of the maps at which forward narrows (`_single_maps`).

    About as many of these are kept as the square root of their number, evenly spread (Chen et al.,
    "Training deep nets with sublinear memory cost").
    """
    again = can_be_remade(step)
    ends = [name for name in _single_maps(step) if name in again]
    if not ends:
        return (Decision(again),)
    stretches = max(math.isqrt(len(ends)), 1)
    size = math.ceil(len(ends) / (stretches + 1))
    return (Decision(again - set(ends[size - 1 :: size])),)


def _single_maps(step: Step) -> list[str]:
    """Maps at which forward narrows: once made, all later phases of forward begin from them alone.

    In the order in which they are made.
    """
    uses, found = uses_of(step), list[str]()
    forward = [at for at, phase in enumerate(step.phases) if not phase.is_backward]
    lives = {
        name: (used.written[0], max((at for at in used.phases if at in set(forward)), default=-1))
        for name, used in uses.items()
        if step.tensors[name].kind == "map" and used.written
    }
    change = dict[int, int]()
    for first, last in lives.values():
        change[first] = change.get(first, 0) + 1
        change[last] = change.get(last, 0) - 1
    alive, count = 0, dict[int, int]()
    for at in range(len(step.phases)):
        alive += change.get(at, 0)
        count[at] = alive
    for name, (first, last) in lives.items():
        if count[first] == 1 and last > first:
            found.append(name)
    return found


#: By name; `vdnn_dyn` tries some of them in its order.
POLICIES: Mapping[str, Policy] = {
    "keep": Policy(keep),
    "offload": Policy(keep, offload),
    "mixed": Policy(keep, mixed),
    "remake": Policy(keep, remake),
    "checkpoint": Policy(keep, checkpoint),
    "vdnn_all": Policy(vdnn_all, synchronous=True),
    "vdnn_conv": Policy(vdnn_conv, synchronous=True),
}
