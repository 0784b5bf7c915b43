"""Fit a step into the pinned-memory budget by recomputing more.

What lives at once is on the device, or on the host. So where host memory has too little room, less
must live at once. The search that makes maps again where the device is too small
(`remat_greedy.py`) does so here, with the memory of both.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from ooc_cudnn.memory.offset_assignment import LiveBuffer, held_bytes
from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.search.remat_greedy import search
from ooc_cudnn.network.search.remat_state import RematState
from ooc_cudnn.network.search.search_budget import SearchBudget

#: What may live at once becomes smaller by this factor from try to try. The amounts are the same
#: for every limit of host memory. So the least that an error names is found under that limit, too.
SMALLER = 0.95


def least_on_host(step: Step, constraints: PlanConstraints) -> int:
    """Return the least bytes of pinned memory that a step takes, wherever its tensors are.

    What is handed in or asked for has memory of its own there all the time; of all else what lives
    at once, but for what the device holds.
    """
    own = (step.host_inputs | step.results) - constraints.given.keys()
    always = sum(step.tensors[base].nbytes for base in own & step.uses.keys())
    peak = int(_live_bytes(step, own | constraints.given.keys()).max(initial=0))
    return always + max(peak - constraints.target.room_bytes, 0)


def _live_bytes(step: Step, without: Set[str]) -> Any:
    """Bytes of tensors that live in each phase, an array of int64."""
    buffers = [
        LiveBuffer(used.phases[0], used.phases[-1], step.tensors[base].nbytes)
        for base, used in step.uses.items()
        if base not in without
    ]
    return held_bytes(buffers, len(step.phases))


def amounts(step: Step, constraints: PlanConstraints) -> list[float]:
    """Return bytes that may live at once, from all that does to what one phase touches."""
    inputs = constraints.given.keys()
    least = max(
        sum(step.tensors[base].nbytes for base in bases - inputs) for bases in step.bases_of_phases
    )
    budgets = [float(_live_bytes(step, inputs).max(initial=0))]
    while budgets[-1] * SMALLER >= max(least, 1):
        budgets.append(budgets[-1] * SMALLER)
    return budgets


def remat_to_fit(
    step: Step, constraints: PlanConstraints, nbytes: float, budget: SearchBudget | None = None
) -> tuple[RematEvent, ...] | None:
    """Find events with which no more than so many bytes live at once; None if there are none.

    Parameters
    ----------
    step : Step
        As it is planned, nothing rematerialized.
    budget : SearchBudget, optional
        Takes account of what the search counts.
    """
    machine, given = constraints.target.machine, constraints.given.keys()
    state = RematState(step, phase_seconds(machine), nbytes, machine, given, copied=())
    found = search(state, budget)
    return None if found is None else found.in_order()


def remat_to_least(step: Step, constraints: PlanConstraints) -> tuple[RematEvent, ...]:
    """Find events with which as little lives at once as the search can reach."""
    solutions = (
        remat_to_fit(step, constraints, nbytes) for nbytes in reversed(amounts(step, constraints))
    )
    return next((events for events in solutions if events is not None), ())
