"""Engines of a step's convolutions, measured: in every memory order that it may be planned in.

All that may matter at a user's word (`measure_engines`); what the heuristics rank first before a
step is planned for the first time (`time_first`), so that no memory order is chosen by a line that
never saw such a convolution; and what a plan launches and nobody timed (`LaunchTiming`), for an
engine that takes little workspace may be 300 times as slow as the one before it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from ooc_cudnn.activity import activity, say
from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.engines import Engine, Measurement
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.devices.tuning_database import tables_of, try_to_save_tables
from ooc_cudnn.engines.autotune import PRUNED_AT, Deadline, EngineTuner, launch_of
from ooc_cudnn.engines.workload import (
    SAME,
    Effort,
    PlannedWork,
    engines_of_others,
    fit_images,
    known_options,
    operand_bytes,
    reduce_size,
    serves,
)
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
#: A plan is made again where its launches take longer or less than predicted by this share of it.
WORTH_PLANNING = 0.02
#: In place of an engine that is slow where it runs, so many others are tried.
MOST_TRIED = 5


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
    longest before the rest; then, in the order in which it is faster, those that they rank next,
    and those that were found fast for others of its direction. Nothing is checked against float64:
    what the heuristics choose would run in any case. What was timed is stored.

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
                        share = turned.work().amount / measured.work.amount
                        costs[turned] = weight * share * measured.options[0].seconds
        for operation in _choose_from(device, costs):
            if tuner.deadline.allows(steps=1):
                _timed(device, tuner, operation, RANKED)
        device.arena.release_block()
    try_to_save_tables(device)
    return len(costs)


class LaunchTiming:
    """Times what plans of a step launch, each engine of each convolution once, until a deadline.

    Parameters
    ----------
    device : Device
    machine : MachineModel
        The device's, as it was calibrated.
    limit_bytes : int
        Device memory that may be held meanwhile, users' arrays included.
    seconds : float
        When they are spent, nothing more is begun.
    """

    def __init__(
        self, device: Device, machine: MachineModel, limit_bytes: int, seconds: float
    ) -> None:
        self._machine = machine
        bench = Bench(device, limit_bytes, batches=1, batch_seconds=0.0, refill=False)
        self._device, self._tuner = device, EngineTuner(device, bench, Deadline(seconds))
        self._tables, self._timed = tables_of(device), set[tuple[AnyConvolution, Engine]]()

    def learns_from(self, step: LoweredStep) -> bool:
        """Time what a plan launches by engines that nobody timed at that size.

        All of it once; then others in place of those that are slow and matter. Return whether the
        step's seconds are others by that. Nothing is checked against float64: it is what would run.
        What was timed is stored.
        """
        seconds, arena = step.plan.seconds, self._device.arena
        astray, slow = 0.0, list[tuple[float, AnyConvolution, PlannedLaunches, Engine]]()
        with activity("timing what is launched", current().progress), arena.lock:
            if arena.is_at_work:
                return False
            for operation, launches in _launches_of(step):
                say(f"{len(self._timed)} timed")
                engine = self._untimed(operation, launches)
                if engine is None:
                    continue
                if not self._tuner.deadline.allows(steps=1):
                    break
                took = self._time(operation, launches, self._beside(operation, engine))
                if took is None:
                    continue
                predicted = launches.slowness * launches.seconds
                astray += launches.times * abs(took - predicted)
                line = self._machine.compute.seconds(operation.work())
                lost = launches.times * (took - PRUNED_AT * min(line, launches.seconds))
                if lost > MATTERS * seconds:
                    slow.append((lost, operation, launches, engine))
            for _, operation, launches, engine in sorted(slow, key=itemgetter(0), reverse=True):
                if not self._tuner.deadline.allows(steps=1):
                    break
                others = engines_of_others(self._tables, operation)
                fitting = self._tuner.fitting(operation, others, launches.workspace_bytes)
                few = itertools.islice((each for each in fitting if each != engine), MOST_TRIED)
                self._time(operation, launches, [engine, *few])
            arena.release_block()
        try_to_save_tables(self._device)
        return astray > WORTH_PLANNING * seconds

    def _untimed(self, operation: AnyConvolution, launches: PlannedLaunches) -> Engine | None:
        """The engine that runs a convolution, if it was not timed at this size."""
        assert self._device.engines is not None
        running = self._device.engines.running(operation, launches.workspace_bytes)
        if running is None:
            return None
        engine, was_measured = running
        nearest = self._tables.nearest(operation)
        is_near = nearest is not None and nearest.work.distance(operation.work()) <= SAME
        is_known = (was_measured and is_near) or (operation, engine) in self._timed
        return None if is_known else engine

    def _beside(self, operation: AnyConvolution, engine: Engine) -> list[Engine]:
        """An engine, and what would run if there were more room: it says what that is worth.

        By what has too little alone, a convolution seems to be slow whatever it is given.
        """
        assert self._device.engines is not None
        with_room = self._device.engines.chosen(operation)
        return [engine] if with_room in (None, engine) else [engine, with_room]

    def _time(
        self, operation: AnyConvolution, launches: PlannedLaunches, engines: list[Engine]
    ) -> float | None:
        """Time engines; return the seconds of the one that runs now. None if there is no room."""
        self._timed |= {(operation, engine) for engine in engines}
        nearest = self._tables.nearest(operation)
        known = [] if nearest is None else known_options(self._tables, operation, nearest)[0]
        measured = self._tuner.by_engines(launch_of(operation), engines, known)
        if measured is None:
            return None
        self._tables.add(measured)
        room = launches.workspace_bytes
        fitting = (each.seconds for each in measured.options if each.workspace_bytes <= room)
        return next(fitting, measured.options[-1].seconds)


class PlannedLaunches(NamedTuple):
    """All launches of a convolution under a plan.

    Attributes
    ----------
    times : int
        How many there are. Those at a border count as the others.
    workspace_bytes : int
        What each of them has, at the least.
    seconds, slowness : float
        What one is predicted to take by the fastest engine; and how many times as long by its own.
    """

    times: int
    workspace_bytes: int
    seconds: float
    slowness: float


def _launches_of(step: LoweredStep) -> list[tuple[AnyConvolution, PlannedLaunches]]:
    """Convolutions that a plan launches; those that are predicted to take longest come first.

    With even padding alone: for the others there are no tables (`Option.is_right_uneven`).
    """
    found = dict[AnyConvolution, PlannedLaunches]()
    tasks = (item for item in step.lowered.program.items if isinstance(item, Task))
    for task in tasks:
        request, plan = task.request, task.plan
        for launch, _ in distinct_launches(request, plan):
            operation = launch.operation
            if not isinstance(operation, AnyConvolution) or not forward_of(operation).is_even:
                continue
            work = operation.work()
            if work.amount > 0.0:
                seconds = request.machine.compute.seconds(work)
                new = PlannedLaunches(plan.pieces, plan.workspace_bytes, seconds, task.slowness)
                old = found.get(operation, new._replace(times=0))
                room = min(old.workspace_bytes, new.workspace_bytes)
                times = old.times + new.times
                found[operation] = new._replace(times=times, workspace_bytes=room)

    def predicted(each: tuple[AnyConvolution, PlannedLaunches]) -> float:
        launches = each[1]
        return launches.times * launches.slowness * launches.seconds

    return sorted(found.items(), key=predicted, reverse=True)


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
    measured = set(known)
    unknown: dict[AnyConvolution, float] = {}
    for operation in sorted(costs, key=costs.__getitem__, reverse=True):
        is_known = serves([*known, *unknown], operation)
        if not is_known and measured.isdisjoint(_halves(operation)):
            unknown[operation] = weights[operation]
    return unknown


def _halves(operation: AnyConvolution) -> Iterator[AnyConvolution]:
    """Sizes that `_with_room` may measure in place of an operation."""
    while (less := reduce_size(operation, 0.5)) != operation:
        yield less
        operation = less


def _in_all_orders(device: Device, operation: AnyConvolution) -> Iterator[AnyConvolution]:
    yield operation
    for layout in device.layouts(operation.dtype):
        if layout != forward_of(operation).layout:
            yield in_memory_order(operation, layout)


def _timed(
    device: Device, tuner: EngineTuner, operation: AnyConvolution, count: int
) -> Measurement | None:
    assert device.engines is not None
    also = engines_of_others(tables_of(device), operation)[: count - 1]
    try:
        operation = _with_room(device.engines, tuner.bench, operation)
        measured = tuner.ranked(launch_of(operation), count, also)
    finally:
        device.engines.forget_built()
    if measured is not None:
        tables_of(device).add(measured)
    return measured


def _with_room(engines: EngineProvider, bench: Bench, operation: AnyConvolution) -> AnyConvolution:
    """Return the operation on as much as leaves room for what the heuristics would like to take.

    Else it would be known by engines that take next to nothing alone, and seem to be slow.
    """
    while (engine := engines.chosen(operation)) is not None:
        with engines.forced(operation, engine) as built:
            nbytes = 0 if built is None else built[0]
        needed = operand_bytes(operation) + nbytes
        less = reduce_size(operation, 0.5)
        if bench.fits(needed) or less == operation:
            break
        operation = less
    return operation


def _choose_from(device: Device, costs: Mapping[AnyConvolution, float]) -> list[AnyConvolution]:
    """The convolutions that matter, in the memory order in which each is faster."""
    least = MATTERS * sum(costs.values())

    def is_fastest(operation: AnyConvolution) -> bool:
        turned = _in_all_orders(device, operation)
        return costs[operation] <= min(costs.get(each, math.inf) for each in turned)

    chosen = (each for each, cost in costs.items() if cost >= least and is_fastest(each))
    return sorted(chosen, key=costs.__getitem__, reverse=True)
