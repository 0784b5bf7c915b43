"""The fastest plans once more, with time to copy what they have on the host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from ooc_cudnn.network.cost.overlap_bound import least_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.lowering.lower import PlannedStep, lower_step
from ooc_cudnn.network.lowering.prefetch import with_time_to_copy
from ooc_cudnn.network.lowering.stream_first_use import streamed_first
from ooc_cudnn.network.lowering.summarize import predicted
from ooc_cudnn.network.search.incumbent import NEAR, Incumbent
from ooc_cudnn.pipeline.program import Task

#: Of the memory that is free, the shares that time to copy may take, one after the other: with all
#: of it, addresses may find no place. (With all or none, a U-Net of one image at 0.2 of keep-all
#: takes 7 % longer.)
FOR_COPIES = (1.0, 0.9, 0.8, 0.6, 0.0)


def in_time(name: str, terms: PlanConstraints, fastest: Incumbent) -> None:
    """Take plans near the fastest with time to copy, the fastest first."""
    near, fastest.near = sorted(fastest.near, key=lambda each: each.plan.seconds), []
    untimed = fastest.untimed
    near = [made for made in near if made.plan.seconds <= NEAR * untimed]
    ways = [iter(_with_time(name, made, terms, fastest)) for made in near]
    plans = (made for turn in zip_longest(*ways) for made in turn if made is not None)
    fastest.take(next(plans, None))  # it is worth that, whatever was compared before
    fastest.compare(plans)
    fastest.near, fastest.untimed = [], untimed


def _with_time(
    name: str, made: PlannedStep, terms: PlanConstraints, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """The same plan with time to copy, where it may be the fastest then.

    First with inputs that first readers stream, then without.
    """
    plan, step, placed = made
    assert fastest.best is not None
    if plan.compute_seconds >= fastest.best.plan.seconds:
        return
    tasks = [item for item in placed.program.items if isinstance(item, Task)]
    machine = terms.target.machine
    room = terms.target.room_bytes - np.array([task.plan.device_bytes for task in tasks])
    seconds, pieces = zip(*((task.seconds, task.pieces) for task in plan.tasks), strict=True)
    there = fastest.on_device
    for stays in (*streamed_first(step, placed.residency), placed.residency):
        for share in FOR_COPIES:  # addresses may want more
            each = with_time_to_copy(step, stays, machine, seconds, share * room, there)
            if each == placed.residency:
                break
            least = least_seconds(step, each, machine, seconds, there, pieces).seconds
            if not fastest.is_worth_time(least):
                break
            again = lower_step(
                name, step, each, terms, may_stream=False, is_worth=fastest.can_beat_incumbent
            )
            if again is not None:
                figures = predicted(name, plan.policy, step, again, plan, terms)
                yield PlannedStep(figures, step, again)
                break
