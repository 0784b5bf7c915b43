"""Seconds to compute phases by the machine model, and the memory order in which a step takes least.

Nothing is cut here: each phase is one piece, as if memory were plenty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.tensor import ORDERS
from perfmodel import MachineModel


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
