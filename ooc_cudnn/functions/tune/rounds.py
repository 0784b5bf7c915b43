"""Rounds of tuning: what plans launch is measured, and planned again, until all of it is known.

What was learnt changes plans, and with them what is launched: other pieces, another memory order.
So each round plans as the call that follows will: by the tables as they are stored, and nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from ooc_cudnn.activity import activity, make_way, say
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Engine, Measurement
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.devices.tuning_database import save_tables, tables_of
from ooc_cudnn.engines.autotune import Deadline, EngineTuner, launch_of
from ooc_cudnn.engines.workload import (
    Effort,
    PlannedWork,
    WantedConvolution,
    engine_launches,
    family_of,
    has_borders,
    known_options,
    launches_to_measure,
    of_own_size,
    scouts_of,
    serves,
    well_known,
)
from ooc_cudnn.errors import OocError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.settings import current
from ooc_cudnn.warnings_once import warn

#: Rounds at most. A kind that was not measured may be predicted too fast: then it is chosen, and
#: measured in the next round.
MOST_ROUNDS = 12
#: Each engine is timed in so many batches of so many seconds.
BATCHES, BATCH_SECONDS = 5, 0.01
#: Time for measuring goes where seconds are to be gained; each convolution has at least this share
#: of the mean.
LEAST_SHARE = 0.25

Tell = Callable[[Measurement], object]


class NothingToTuneError(OocError, ValueError):
    """The device has one way to run what is asked for."""


def measure_what_is_launched(
    device: Device, plan: Callable[[], PlannedWork], effort: Effort, tell: Tell | None
) -> list[Measurement]:
    """Measure the engines of the convolutions of a plan, and of those that follow from it.

    In every memory order that the device computes in, that of the plan first.

    Parameters
    ----------
    plan : callable
        Plans as calls do; it is asked again once more is known.

    Returns
    -------
    list of Measured
        None of what was known already, unless `effort` says so.

    Raises
    ------
    NothingToTuneError
        If the device does not choose among engines, the plan launches no convolution, or no engine
        could be measured.
    OSError
        If the tables cannot be stored.
    """
    check_engines(device)
    with activity("measuring engines", current().progress, holds_line=True):
        return _measured_in_rounds(device, plan, effort, tell)


def _measured_in_rounds(
    device: Device, plan: Callable[[], PlannedWork], effort: Effort, tell: Tell | None
) -> list[Measurement]:
    measurements: dict[AnyConvolution, Measurement] = {}
    known_before = tables_of(device, tells_of_others=False)  # what it tells is: tune
    before = [] if effort.again else list(known_before)
    tried, scouted = list[AnyConvolution](), set[Hashable]()
    timed = set[AnyConvolution]()  # at their own size
    began = time.perf_counter()
    for _ in range(MOST_ROUNDS):
        planned = plan()
        launched = list(engine_launches(device, planned))
        wanted = launches_to_measure(device, launched, planned.limit_bytes, effort)
        if not wanted:
            raise NothingToTuneError(f"{planned.name} launches no convolution that has engines")
        if not effort.borders and has_borders(planned):
            effort = effort._replace(borders=True)
        known = well_known(before, effort)
        unknown = {each: said for each, said in wanted.items() if not serves(known, each)}
        scouts = scouts_of(unknown, scouted) if effort.scouts else set[AnyConvolution]()
        missing = {
            each: said
            for each, said in unknown.items()
            if each in scouts or not serves(tried, each)
        }
        left = effort.seconds - (time.perf_counter() - began)
        if left <= 0.0:
            break
        if planned.is_as_run and not missing:
            if not effort.own_size:
                break
            sizes = of_own_size(
                tables_of(device), launched, planned.limit_bytes, has_learnt=bool(measurements)
            )
            sizes = [each for each in sizes if each not in timed]
            if not sizes:
                break
            timed.update(sizes)
            measurements |= measure_sizes(device, sizes, planned.limit_bytes, left, tell)
            keep(device)
            continue
        if not missing:  # of the first quick look; now it is planned as it will run
            continue
        asked = effort._replace(seconds=left)
        batch, ended = measure(device, missing, scouts, planned.limit_bytes, asked, tell)
        measurements |= batch
        tried += list(missing)[:ended]
        scouted |= {family_of(each) for each in scouts.intersection(tried)}
        if not measurements and len(missing) == len(wanted):
            raise NothingToTuneError(
                f"no engine of {planned.name} could be measured on {device.name}: raise "
                "memory_limit, or install nvidia-cudnn-frontend 1.28"
            )
        keep(device)
    if missing and left <= 0.0:
        warn(
            f"{len(missing)} convolutions of {planned.name} were not measured in the time there "
            "was, so cuDNN's heuristics choose their engines"
        )
    return list(measurements.values())


def check_engines(device: Device) -> None:
    """Refuse a device without engines."""
    if device.engines is None:
        raise NothingToTuneError(
            f"{device.name} has one way to compute a convolution: there is nothing to tune; "
            "engines are cuDNN's, on a GPU"
        )


def keep(device: Device) -> None:
    """Store the tables, and plan anew what was planned without them."""
    save_tables(device)
    forget_calls()


def measure(
    device: Device,
    operations: Mapping[AnyConvolution, WantedConvolution],
    scouts: Collection[AnyConvolution],
    limit_bytes: int,
    effort: Effort,
    tell: Tell | None,
) -> tuple[dict[AnyConvolution, Measurement], int]:
    """Measure the engines of convolutions; return what was found, and how many there was time for.

    There may be no room for some. Each is stored at once. Of `scouts` every engine is tried.
    """
    measurements: dict[AnyConvolution, Measurement] = {}
    best: dict[Hashable, tuple[Engine, ...]] = {}
    costs = [said.cost for said in operations.values()]
    least = LEAST_SHARE * sum(costs) / max(len(costs), 1)
    shares = [max(cost, least) for cost in costs]
    began, ended = time.perf_counter(), 0
    assert device.engines is not None
    with device.arena.lock:
        bench = Bench(device, limit_bytes, batches=BATCHES, batch_seconds=BATCH_SECONDS)
        for operation, (launched, _) in operations.items():
            left = effort.seconds - (time.perf_counter() - began)
            if ended and left <= 0.0:
                break
            # what one does not need of its share, the others have
            deadline = Deadline(left * shares[ended] / sum(shares[ended:]))
            try:
                measured = EngineTuner(device, bench, deadline).measured(
                    launch_of(operation),
                    every=effort.every or operation in scouts,
                    compiled=effort.every and effort.compiled,
                    borders=effort.borders,
                    chosen=device.engines.chosen(launched),
                    also=best.get(family_of(operation), ()),
                )
            finally:  # few of them are used, and not at this size
                device.engines.forget_built()
            ended += 1
            say(f"{ended} of {len(operations)}")
            if measured is not None:
                measurements[operation] = measured
                _take(device, measured, tell)
                if operation in scouts:
                    best[family_of(operation)] = tuple(each.engine for each in measured.options)
        device.arena.release_block()
    return measurements, ended


def measure_sizes(
    device: Device,
    operations: Iterable[AnyConvolution],
    limit_bytes: int,
    seconds: float,
    tell: Tell | None,
) -> dict[AnyConvolution, Measurement]:
    """Time convolutions by the engines that are known of their kinds, while there is time.

    There may be no room for some.
    """
    measurements: dict[AnyConvolution, Measurement] = {}
    tables, deadline = tables_of(device), Deadline(seconds)
    assert device.engines is not None
    with device.arena.lock:
        bench = Bench(device, limit_bytes, batches=BATCHES, batch_seconds=BATCH_SECONDS)
        for operation in operations:
            known = tables.nearest(operation)
            if not deadline.allows(steps=1):
                break
            if known is None:
                continue
            options, further = known_options(tables, operation, known)
            try:
                measured = EngineTuner(device, bench, deadline).measured_again(
                    launch_of(operation),
                    options,
                    further=further,
                    is_complete=known.is_complete and known.operation == operation,
                )
            finally:
                device.engines.forget_built()
            if measured is not None:
                measurements[operation] = measured
                _take(device, measured, tell)
        device.arena.release_block()
    return measurements


def _take(device: Device, measured: Measurement, tell: Tell | None) -> None:
    """Store what was measured at once, so that it stays whatever happens next, and tell of it.

    `keep` stores again: then engines that failed are gone, too.
    """
    tables_of(device).add(measured)
    save_tables(device)
    if tell is not None:
        make_way()
        tell(measured)
