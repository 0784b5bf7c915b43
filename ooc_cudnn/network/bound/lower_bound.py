"""The bound of a step: seconds that no plan of its kind can beat, by the linear program.

Of its kind are plans that run the phases of a step in their order, the whole batch at once or in
micro-batches, and keep, offload, stream or make again whatever share of each tensor they like,
whenever they like. Those that go down the rows in bands are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from ooc_cudnn.network.bound.coarse_step import CoarseStep, coarsen_step
from ooc_cudnn.network.bound.relaxation import Link, solve
from ooc_cudnn.network.cost.compute_seconds import phase_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.microbatch import WholeBatchError, parts_of
from perfmodel import MachineModel

#: Smaller tensors, as a share of the room or of all tensors, take no memory here.
SMALL = 2**-12
#: Groups of each direction, and those things times groups that are to be had in seconds.
MOST_GROUPS, FEWEST_GROUPS, MOST_PAIRS = 80, 24, 16_000


class Bound(NamedTuple):
    """Lower bound of all plans' seconds.

    Attributes
    ----------
    seconds : float
    micro_batches : int
        With which that may be reached.
    """

    seconds: float
    micro_batches: int


def bound_of(step: Step, constraints: PlanConstraints, counts: Iterable[int]) -> Bound | None:
    """Return the least seconds of a step over numbers of micro-batches; None where none fits.

    Parameters
    ----------
    step : Step
        As it is planned, nothing made again.
    counts : iterable of int
        Numbers of micro-batches.
    """
    machine, best = constraints.target.machine, None
    seconds_of = phase_seconds(machine)
    for count in counts:
        most = float("inf") if best is None else best.seconds
        try:
            seconds = _bound(step, constraints, count, seconds_of, most)
        except WholeBatchError:
            break
        if seconds is not None and seconds < most:
            best = Bound(seconds, count)
    return best


def coarse_step_of(
    step: Step, constraints: PlanConstraints, seconds_of: Callable[[Phase], float]
) -> CoarseStep:
    """Coarsen a step, to as many groups as are solved quickly."""
    on_device = constraints.on_device
    together = sum(each.nbytes for each in step.tensors.values() if not each.of)
    small = max(int(SMALL * min(constraints.target.room_bytes, together)), 1)
    fine = coarsen_step(step, seconds_of, small_bytes=small, on_device=on_device)
    most = min(max(MOST_PAIRS // (len(fine.things) or 1), FEWEST_GROUPS), MOST_GROUPS)
    return coarsen_step(step, seconds_of, small_bytes=small, on_device=on_device, most_groups=most)


def _bound(
    step: Step,
    constraints: PlanConstraints,
    count: int,
    seconds_of: Callable[[Phase], float],
    most: float,
) -> float | None:
    """The bound for one number of micro-batches; None where none fits, or it is above `most`."""
    machine, room = constraints.target.machine, constraints.target.room_bytes
    link = Link.of(machine)
    if count == 1:
        if sum(map(seconds_of, step.phases)) >= most:
            return None
        issued = _issued(step.phases, machine)
        optimum = solve(coarse_step_of(step, constraints, seconds_of), link, room, issued=issued)
        return None if optimum is None else max(optimum.seconds, issued[-1])
    parts = parts_of(step, count)
    once = sum(map(seconds_of, (*parts.once, *parts.rest)))
    if once + parts.equal * sum(map(seconds_of, parts.part.phases)) >= most:
        return None
    coarse = coarse_step_of(parts.part, constraints, seconds_of)
    whole = {name: each.nbytes for name, each in step.tensors.items()}
    things = tuple(
        replace(
            each,
            is_result=False,
            is_given=each.is_given or each.is_result,
            shared=(1 - 1 / parts.equal) * (each.nbytes == whole.get(each.name)),
        )
        if each.is_given or each.is_result
        else each
        for each in coarse.things
    )
    optimum = solve(replace(coarse, things=things), link, room, repeated=parts.equal)
    return None if optimum is None else once + parts.equal * optimum.seconds


def _issued(phases: Iterable[Phase], machine: MachineModel) -> list[float]:
    """Time at which the host can have issued each phase, if each is one launch."""
    each = 0.0 if machine.is_of_gpu else machine.step_seconds
    return list(accumulate(each for _ in phases))
