"""The least that a step computes, its tensors in the memory orders in which a plan has them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ooc_cudnn.network.cost.compute_seconds import compute_seconds, kind_of, seconds_in
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Phase, Step, orders_of
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.tensor import memory_order, packed_strides


class ComputeBound:
    """Seconds of computing that no plan of a step is below, its maps in a memory order.

    Each phase is one piece here, or as fast as the fastest size of pieces that was measured, and in
    whichever layout takes least; what is laid out anew for that takes its time.
    """

    def __init__(self, constraints: PlanConstraints) -> None:
        self._constraints, self._known = constraints, dict[Hashable, float]()
        machine = constraints.target.machine
        self._machine = replace(machine, compute=machine.compute.at_best)
        #: The step that was asked for last, and its seconds by order: it is asked for often.
        self._last: tuple[Step | None, dict[str, list[float]]] = None, {}

    def seconds(self, step: Step, order: str) -> float:
        """Return the seconds of all phases of a step."""
        return sum(self.of_phases(step, order))

    def of_phases(self, step: Step, order: str) -> Sequence[float]:
        """Return the seconds of each phase of a step."""
        if self._last[0] is not step:
            self._last = step, {}
        by_order = self._last[1]
        if order not in by_order:
            order_of = orders_of(step, order)
            by_order[order] = [self._seconds_of(step, phase, order_of) for phase in step.phases]
        return by_order[order]

    def _seconds_of(self, step: Step, phase: Phase, order_of: Callable[[Tensor], str]) -> float:
        orders = self._orders(step, phase, order_of)
        kind = kind_of(phase.call), tuple(orders.items())
        if kind not in self._known:
            machine, layouts = self._machine, self._constraints.target.layouts
            self._known[kind] = (
                min(seconds_in(layout, phase.call, machine, orders) for layout in layouts)
                if orders
                else compute_seconds(phase, machine)
            )
        return self._known[kind]

    def _orders(
        self, step: Step, phase: Phase, order_of: Callable[[Tensor], str]
    ) -> Mapping[str, str]:
        """The memory order of each operand of a phase; nothing where users may have another."""
        orders = dict[str, str]()
        for operand, name in phase.binds.items():
            shape, base = step.tensors[name].shape, step.tensors[step.base(name)]
            spec = self._constraints.given.get(base.name)
            if spec is not None and spec.order != "channels_first":
                return {}
            orders[operand] = _order(shape, order_of(base))
        return orders


@lru_cache(maxsize=4096)
def _order(shape: tuple[int, ...], order: str) -> str:
    """The memory order of a packed tensor: of those that are the same, the one that specs have."""
    return memory_order(shape, packed_strides(shape, order)) or order
