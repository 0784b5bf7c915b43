"""Fit a step into the pinned-memory budget by recomputing more.

What lives at once is on the device, or on the host. So where host memory has too little room, less
must live at once. The search that makes maps again where the device is too small
(`remat_greedy.py`) does so here, with the memory of both.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from ooc_cudnn.memory.extents import Extent, held_bytes
from ooc_cudnn.network.cost.compute_seconds import priced
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import given_to, results_of
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.search.remat_greedy import search
from ooc_cudnn.network.search.remat_state import RematState

#: What may live at once becomes smaller by this factor from try to try. The amounts are the same
#: for every limit of host memory. So the least that an error names is found under that limit, too.
SMALLER = 0.95


def least_on_host(step: Step, terms: PlanConstraints) -> int:
    """The least bytes of pinned memory that a step takes, wherever its tensors are.

    What is handed in or asked for has memory of its own there all the time; of all else what lives
    at once, but for what the device holds.
    """
    own = _own(step) - terms.given.keys()
    always = sum(step.tensors[base].nbytes for base in own & step.uses.keys())
    lives = int(_living(step, own | terms.given.keys()).max(initial=0))
    return always + max(lives - terms.target.room_bytes, 0)


def _own(step: Step) -> set[str]:
    """What has memory of its own on the host, where it is not handed in: for it lies there."""
    return given_to(step) | results_of(step)


def _living(step: Step, without: Set[str]) -> Any:
    """Bytes of tensors that live in each phase."""
    extents = [
        Extent(used.phases[0], used.phases[-1], step.tensors[base].nbytes)
        for base, used in step.uses.items()
        if base not in without
    ]
    return held_bytes(extents, len(step.phases))


def amounts(step: Step, terms: PlanConstraints) -> list[float]:
    """Bytes that may live at once, from all that does to what one phase touches."""
    given = terms.given.keys()
    touched = ({step.base(name) for name in phase.binds.values()} for phase in step.phases)
    least = max(sum(step.tensors[base].nbytes for base in each - given) for each in touched)
    found = [float(_living(step, given).max(initial=0))]
    while found[-1] * SMALLER >= max(least, 1):
        found.append(found[-1] * SMALLER)
    return found


def living_in(step: Step, terms: PlanConstraints, nbytes: float) -> tuple[RematEvent, ...] | None:
    """What to make again so that no more than so many bytes live at once; None if none was found.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    """
    machine, given = terms.target.machine, terms.given.keys()
    makings = RematState(step, priced(machine), nbytes, machine, given, copied=())
    return makings.in_order() if search(makings) else None


def with_least(step: Step, terms: PlanConstraints) -> tuple[RematEvent, ...]:
    """What to make again so that as little lives at once as can be found."""
    found = (living_in(step, terms, nbytes) for nbytes in reversed(amounts(step, terms)))
    return next((again for again in found if again is not None), ())
