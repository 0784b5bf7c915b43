"""Engines of a step's convolutions, measured: in every memory order that it may be planned in.

All that may matter at a user's word (`measure_engines`); what the heuristics rank first before a
step is planned for the first time (`time_first`), so that no memory order is chosen by a line that
never saw such a convolution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from ooc_cudnn.activity import activity, say
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.devices.tuning_database import tables_of, try_to_save_tables
from ooc_cudnn.engines.autotune import Deadline, EngineTuner, launch_of
from ooc_cudnn.engines.workload import Effort, PlannedWork, fit_images, serves
from ooc_cudnn.functions.tune.rounds import BATCH_SECONDS, Tell, measure_what_is_launched
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    in_memory_order,
)
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.pipeline.program import Task
from ooc_cudnn.settings import current
from perfmodel import MachineModel

#: Launches that take longer are measured on fewer images, as long as a batch of them lasts. With a
#: tenth of them, transforms of filters outweighed the rest, and in strict float32 FFT never won.
LAUNCH_SECONDS = BATCH_SECONDS
#: Of what the heuristics rank, so many engines are timed first, where they may be chosen from.
RANKED = 3
#: They are where a convolution takes this share of all seconds.
MATTERS = 0.005


def measure_engines(
    device: Device,
    look: Callable[[], LoweredStep],
    plan: Callable[[], LoweredStep],
    *,
    every: bool,
    seconds: float,
    tell: Tell | None,
) -> list[Measurement]:
    """Measure what a step launches, and plan it again, until all of that is known.

    Parameters
    ----------
    look : callable
        Plans the step quickly, without asking the device for workspace.
    plan : callable
        Plans it as it will run.
    """
    looks = iter((look,))

    def planned() -> PlannedWork:
        quick = next(looks, None)
        step = (quick or plan)()
        tasks = [
            (item.request, item.plan)
            for item in step.lowered.program.items
            if isinstance(item, Task)
        ]
        return PlannedWork("the step", tasks, step.plan.memory_limit, is_as_run=quick is None)

    effort = Effort(
        every=every,
        seconds=seconds,
        again=False,
        launch_seconds=LAUNCH_SECONDS,
        borders=every,
        scouts=not every,
        own_size=True,
    )
    return measure_what_is_launched(device, planned, effort, tell)


def time_first(
    device: Device, step: Step, machine: MachineModel, limit_bytes: int, seconds: float
) -> int:
    """Time what the heuristics rank for convolutions of which nothing is known; return how many.

    First their choice for each convolution, in each memory order, those that are predicted to take
    longest before the rest; then, in the order in which it is faster, those that they rank next.
    Nothing is checked against float64: what the heuristics choose would run in any case. What was
    timed is stored.

    Parameters
    ----------
    step : Step
        Nothing of it is cut.
    seconds : float
        When they are spent, nothing more is begun.
    """
    weights = _unknown(device, step, machine, limit_bytes)
    if not weights:
        return 0
    costs: dict[AnyConvolution, float] = {}
    with activity("timing convolutions", current().progress), device.arena.lock:
        if device.arena.is_at_work:
            return 0
        bench = Bench(device, limit_bytes, batches=1, batch_seconds=0.0, refill=False)
        tuner = EngineTuner(device, bench, Deadline(seconds))
        for operation, weight in weights.items():
            for turned in _in_all_orders(device, operation):
                say(f"{len(costs)} timed")
                if tuner.deadline.allows(steps=1):
                    measured = _timed(device, tuner, turned, 1)
                    if measured is not None:
                        costs[turned] = weight * measured.options[0].seconds
        for operation in _choose_from(device, costs):
            if tuner.deadline.allows(steps=1):
                _timed(device, tuner, operation, RANKED)
        device.arena.release_block()
    try_to_save_tables(device)
    return len(costs)


def _unknown(
    device: Device, step: Step, machine: MachineModel, limit_bytes: int
) -> dict[AnyConvolution, float]:
    """Convolutions of a step with nothing cut, of whose kind and size nothing was measured.

    On as few images as are measured, with how many times as much the step has; what is predicted to
    take longest comes first.
    """
    counts = Counter[AnyConvolution]()
    for phase in step.phases:
        call = phase.call
        if call.is_external:
            continue
        (layout, *_) = device.layouts(call.dtype)
        orders = dict.fromkeys(call.operands, layout)
        launches, _ = launches_on(call, call.whole_piece(), layout=layout, orders=orders)
        counts.update(e.operation for e in launches if isinstance(e.operation, AnyConvolution))
    weights: dict[AnyConvolution, float] = {}
    costs: dict[AnyConvolution, float] = {}
    for operation, times in counts.items():
        work = operation.work()
        if work.amount > 0.0:
            seconds = machine.compute.seconds(work)
            few = fit_images(operation, limit_bytes, LAUNCH_SECONDS / seconds)
            weight = times * work.amount / few.work().amount
            weights[few] = weights.get(few, 0.0) + weight
            costs[few] = costs.get(few, 0.0) + times * seconds
    known = [each.operation for each in tables_of(device) if each.operation and each.options]
    unknown: dict[AnyConvolution, float] = {}
    for operation in sorted(costs, key=costs.__getitem__, reverse=True):
        if not serves([*known, *unknown], operation):
            unknown[operation] = weights[operation]
    return unknown


def _in_all_orders(device: Device, operation: AnyConvolution) -> Iterator[AnyConvolution]:
    yield operation
    for layout in device.layouts(operation.dtype):
        if layout != forward_of(operation).layout:
            yield in_memory_order(operation, layout)


def _timed(
    device: Device, tuner: EngineTuner, operation: AnyConvolution, count: int
) -> Measurement | None:
    assert device.engines is not None
    try:
        measured = tuner.ranked(launch_of(operation), count)
    finally:
        device.engines.forget_built()
    if measured is not None:
        tables_of(device).add(measured)
    return measured


def _choose_from(device: Device, costs: Mapping[AnyConvolution, float]) -> list[AnyConvolution]:
    """The convolutions that matter, in the memory order in which each is faster."""
    least = MATTERS * sum(costs.values())

    def is_fastest(operation: AnyConvolution) -> bool:
        turned = _in_all_orders(device, operation)
        return costs[operation] <= min(costs.get(each, math.inf) for each in turned)

    chosen = (each for each, cost in costs.items() if cost >= least and is_fastest(each))
    return sorted(chosen, key=costs.__getitem__, reverse=True)
