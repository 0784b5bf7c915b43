"""Re-lower the plans nearest the incumbent with earlier prefetches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ooc_cudnn.network.cost.overlap_bound import least_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.lowering.lower import LoweredStep, accept_any
from ooc_cudnn.network.lowering.prefetch import prefetch_earlier
from ooc_cudnn.network.lowering.stream_first_use import stream_first_uses
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import NEAR, Candidates, Incumbent
from ooc_cudnn.pipeline.program import Task

#: Of the memory that is free, the shares that time to copy may take, one after the other: with all
#: of it, addresses may find no place. (With all or none, a U-Net of one image at 0.2 of keep-all
#: takes 7 % longer.)
FOR_COPIES = (1.0, 0.9, 0.8, 0.6, 0.0)


def refine_prefetch(name: str, constraints: PlanConstraints, incumbent: Incumbent) -> None:
    """Offer plans near the incumbent with time to copy, the fastest first."""
    untimed = incumbent.untimed
    near = sorted(incumbent.near, key=lambda planned: planned.plan.seconds)
    near = [planned for planned in near if planned.plan.seconds <= NEAR * untimed]
    incumbent.near = []
    # the first is worth it, whatever was compared before
    incumbent.explore(name, _candidates(near, constraints, incumbent), free_plans=1)
    incumbent.near, incumbent.untimed = [], untimed


def _candidates(
    near: Sequence[LoweredStep], constraints: PlanConstraints, incumbent: Incumbent
) -> Candidates[None]:
    """Propose one refinement of each plan in turn, then the next of each."""
    refinements = [_refinements(planned) for planned in near]
    for turn in zip_longest(*refinements):
        for planned, live_ranges in zip(near, turn, strict=True):
            if live_ranges is not None:
                yield from _prefetch_earlier(planned, live_ranges, constraints, incumbent)


def _refinements(planned: LoweredStep) -> Iterator[LiveRanges]:
    """Live ranges to refine: with inputs that first readers stream, then as they were lowered."""
    live_ranges = planned.lowered.live_ranges
    yield from stream_first_uses(planned.step, live_ranges)
    yield live_ranges


def _prefetch_earlier(
    planned: LoweredStep,
    live_ranges: LiveRanges,
    constraints: PlanConstraints,
    incumbent: Incumbent,
) -> Candidates[None]:
    """Propose a plan with time to copy in less and less memory, until addresses find a place."""
    plan, step, lowered = planned
    assert incumbent.best is not None
    if plan.compute_seconds >= incumbent.best.plan.seconds:
        return
    constraints = replace(constraints, order=plan.order)
    tasks = [item for item in lowered.program.items if isinstance(item, Task)]
    machine, on_device = constraints.target.machine, incumbent.on_device
    free = constraints.target.room_bytes - np.array([task.plan.device_bytes for task in tasks])
    seconds, pieces = zip(*((task.seconds, task.pieces) for task in plan.tasks), strict=True)
    for share in FOR_COPIES:
        longer = prefetch_earlier(step, live_ranges, machine, seconds, share * free, on_device)
        if longer == lowered.live_ranges:
            return
        least = least_seconds(step, longer, machine, seconds, on_device, pieces).seconds
        if not incumbent.is_worth_time(least):
            return
        candidate = Candidate(
            step, longer, constraints, plan.policy, plan, may_stream=False, is_worth=accept_any
        )
        if (yield candidate) is not None:
            return
