"""Seconds to compute phases by the machine model, and the memory order in which a step takes least.

Nothing is cut here: each phase is one piece, as if memory were plenty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from ooc_cudnn.devices.machines import computing_machine
from ooc_cudnn.network.ir.constraints import LayoutSeconds
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.tensor import ORDERS
from perfmodel import MachineModel


def compute_seconds(phase: Phase, machine: MachineModel) -> float:
    """Seconds to compute a phase in one piece, in the memory order it computes fastest in."""
    return min(seconds_in(order, phase.call, machine) for order in ORDERS)


def seconds_in(
    layout: str, call: TiledCall, machine: MachineModel, orders: Mapping[str, str] | None = None
) -> float:
    """Seconds to compute a call in one piece in a layout, its operands in it too, or in these."""
    orders, seconds = orders or dict.fromkeys(call.operands, layout), 0.0
    machine = computing_machine(machine, on_host=call.on_host)
    for sweep in range(call.sweeps):
        launches, _ = launches_on(call, call.whole_piece(sweep), layout=layout, orders=orders)
        seconds += sum(float(machine.compute.seconds(e.operation.work())) for e in launches)
    return seconds


def layout_seconds(step: Step, machine: MachineModel, orders: Sequence[str]) -> LayoutSeconds:
    """Compute seconds of a step, by memory order."""
    total, mixed = dict.fromkeys(orders, 0.0), 0.0
    for call, count in Counter(phase.call for phase in step.phases).items():
        by_order = {order: count * seconds_in(order, call, machine) for order in orders}
        total = {order: total[order] + seconds for order, seconds in by_order.items()}
        mixed += min(by_order.values())
    return LayoutSeconds(tuple(sorted(total.items(), key=lambda of: of[1])), mixed)


def phase_seconds(machine: MachineModel) -> Callable[[Phase], float]:
    """Seconds of a phase in one piece; those that are alike are priced once."""
    known: dict[Hashable, float] = {}

    def seconds_of(phase: Phase) -> float:
        kind = kind_of(phase.call)
        if kind not in known:
            known[kind] = compute_seconds(phase, machine)
        return known[kind]

    return seconds_of


def kind_of(call: TiledCall) -> Hashable:
    """Return the key of a call's seconds: all but the very images or rows of a part of one."""
    if not isinstance(call, SubCall):
        return call
    pieces = map(call.whole_piece, range(call.sweeps))
    return call.inner, call.extents, *map(call.row_key, pieces)
