"""Layout assignment: the one memory order that all maps of a step lie in on the device."""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.cost.compute_seconds import layout_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step


def assign_layout(step: Step, constraints: PlanConstraints) -> PlanConstraints:
    """Return constraints with the memory order in which computing a step is fastest.

    As they are where the target admits but one. Seconds are those of whole phases, nothing cut;
    `LayoutSeconds.each` says what each phase in its own order could reach at the most.

    Parameters
    ----------
    step : Step
        As its policy takes it (`canonicalize`).
    """
    target = constraints.target
    if len(target.layouts) < 2:
        return constraints
    by_order = layout_seconds(step, target.machine, target.layouts)
    return replace(constraints, order=by_order.fastest, by_order=by_order)
