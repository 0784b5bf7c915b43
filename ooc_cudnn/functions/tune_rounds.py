"""Rounds of tuning: what plans launch is measured, and planned again, until all of it is known.

What was learnt changes plans, and with them what is launched: other pieces, another memory order.
So each round plans as the call that follows will: by the tables as they are stored, and nothing
else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_files import save_tables, tables_of
from ooc_cudnn.devices.engines import Kind, Measured, distance
from ooc_cudnn.devices.measuring import Bench
from ooc_cudnn.errors import OocError
from ooc_cudnn.functions.prepared import forget_calls
from ooc_cudnn.functions.tuning import Deadline, Tuning, launched_of, on_fewer_images
from ooc_cudnn.operations.convolution_backward import (
    AnyConvolution,
    forward_of,
    with_forward,
)
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import distinct_launches
from ooc_cudnn.pricing.request import Request
from ooc_cudnn.telling import warn

#: Plans that may follow from what the one before them taught. A kind that was not measured is
#: predicted by its line, which may be better than all that was: each such is measured in turn.
MOST_ROUNDS = 8
#: What was measured of one size serves others that are no farther from it (`engines.distance`).
NEAR = math.log(2.0)
#: Each engine is timed in so many batches of so many seconds.
BATCHES, BATCH_SECONDS = 5, 0.01
#: Of the memory limit, what the operands of a launch may take while its engines are measured.
ROOM_SHARE = 0.25

Tell = Callable[[Measured], object]


class NothingToTuneError(OocError, ValueError):
    """The device has one way to run what is asked for."""


class Planned(NamedTuple):
    """What was planned.

    Attributes
    ----------
    name : str
    tasks : sequence of (Request, Plan)
    limit_bytes : int
        The memory limit.
    is_as_run : bool
        Whether it runs so; not a first quick look at what may be launched.
    """

    name: str
    tasks: Sequence[tuple[Request, Plan]]
    limit_bytes: int
    is_as_run: bool = True


class Effort(NamedTuple):
    """How much is measured.

    Attributes
    ----------
    every : bool
        Every engine there is, not only those that the heuristics rank.
    seconds : float
        For measuring, of which each convolution has an equal share; no other is begun then.
    again : bool
        What is known already, too.
    launch_seconds : float
        Launches that are predicted to take longer are measured on fewer images.
    borders : bool
        Engines are checked with the padding of pieces at a border, too, wherever that occurs or
        not.
    """

    every: bool = True
    seconds: float = math.inf
    again: bool = True
    launch_seconds: float = math.inf
    borders: bool = True


def measure_what_is_launched(
    device: Device, plan: Callable[[], Planned], effort: Effort, tell: Tell | None
) -> list[Measured]:
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
    found: dict[AnyConvolution, Measured] = {}
    before = [] if effort.again else list(tables_of(device))
    tried = list[AnyConvolution]()
    for _ in range(MOST_ROUNDS):
        planned = plan()
        wanted = _wanted(device, planned, effort)
        if not wanted:
            raise NothingToTuneError(f"{planned.name} launches no convolution that has engines")
        if not effort.borders and _has_borders(planned):
            effort = effort._replace(borders=True)
        known = [*tried, *_well_known(before, effort)]
        missing = [each for each in wanted if not _serves(known, each)]
        if effort.seconds <= 0.0 or (planned.is_as_run and not missing):
            break
        if not missing:
            continue
        began = time.perf_counter()
        made, ended = measure(device, missing, planned.limit_bytes, effort, tell)
        effort = effort._replace(seconds=effort.seconds - (time.perf_counter() - began))
        found |= made
        tried += missing[:ended]
        if not found and len(missing) == len(wanted):
            raise NothingToTuneError(
                f"no engine of {planned.name} could be measured on {device.name}: raise "
                "memory_limit, or install nvidia-cudnn-frontend 1.28"
            )
        keep(device)
    if missing and effort.seconds <= 0.0:
        warn(
            f"{len(missing)} convolutions of {planned.name} were not measured in the time there "
            "was, so cuDNN's heuristics choose their engines"
        )
    return list(found.values())


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


# What is launched --------------------------------------------------------------------------------


def _wanted(device: Device, planned: Planned, effort: Effort) -> list[AnyConvolution]:
    """What is to be measured: a convolution of each kind and size that is launched, in each order.

    Those in the memory order of the plan first, what takes longest before the rest.
    """
    costs: dict[AnyConvolution, float] = {}
    for request, plan in planned.tasks:
        for operation in convolutions_of(request, plan):
            seconds = request.machine.compute.seconds(operation.work())
            share = effort.launch_seconds / max(seconds, 1e-9)
            small = _with_room(operation, planned.limit_bytes, share)
            costs[small] = costs.get(small, 0.0) + seconds
    kept: list[AnyConvolution] = []
    for operation in sorted(costs, key=lambda each: costs[each], reverse=True):
        if not _serves(kept, operation):
            kept.append(operation)
    others = [
        with_forward(each, replace(forward_of(each), layout=layout))
        for each in kept
        for layout in device.layouts(forward_of(each).dtype)
        if layout != forward_of(each).layout
    ]
    return [*kept, *others]


def convolutions_of(request: Request, plan: Plan) -> list[AnyConvolution]:
    """The largest convolution of each kind that a plan launches, and those of the uncut call.

    The latter are what a call from arrays elsewhere, or with more memory, may launch.
    """
    largest: dict[Kind, AnyConvolution] = {}
    for split in (plan.split, request.chain.extents):
        of_split: dict[Kind, AnyConvolution] = {}
        for launch, _ in distinct_launches(request, replace(plan, split=split)):
            operation = launch.operation
            if isinstance(operation, AnyConvolution) and operation.work().amount > 0.0:
                kind = Kind.of(operation)
                known = of_split.get(kind)
                if known is None or known.work().amount < operation.work().amount:
                    of_split[kind] = operation
        largest = of_split | largest
    return list(largest.values())


def _serves(known: Iterable[AnyConvolution], operation: AnyConvolution) -> bool:
    """Whether one that is known is of the same kind, and of about the size."""
    kind = Kind.of(operation)
    return any(Kind.of(each) == kind and distance(each, operation) <= NEAR for each in known)


def _has_borders(planned: Planned) -> bool:
    """Whether something is launched with padding that is more on one side than on the other."""
    return any(
        isinstance(launch.operation, AnyConvolution) and not forward_of(launch.operation).is_even
        for request, plan in planned.tasks
        for launch, _ in distinct_launches(request, plan)
    )


def _well_known(before: Iterable[Measured], effort: Effort) -> list[AnyConvolution]:
    """What was measured before with as much effort."""
    return [
        each.operation
        for each in before
        if each.operation is not None
        and each.options
        and (each.is_complete or not effort.every)
        and (any(option.is_right_uneven for option in each.options) or not effort.borders)
    ]


# Measuring ---------------------------------------------------------------------------------------


def measure(
    device: Device,
    operations: Sequence[AnyConvolution],
    limit_bytes: int,
    effort: Effort,
    tell: Tell | None,
) -> tuple[dict[AnyConvolution, Measured], int]:
    """Measure the engines of convolutions; return what was found, and how many there was time for.

    There may be no room for some.
    """
    found: dict[AnyConvolution, Measured] = {}
    began, ended = time.perf_counter(), 0
    assert device.engines is not None
    with device.arena.lock:
        bench = Bench(device, limit_bytes, batches=BATCHES, batch_seconds=BATCH_SECONDS)
        for operation in operations:
            left = effort.seconds - (time.perf_counter() - began)
            if ended and left <= 0.0:
                break
            # what one does not need of its share, the others have
            tuning = Tuning(device, bench, Deadline(left / (len(operations) - ended)))
            small = _with_room(operation, limit_bytes, 1.0)
            try:
                measured = tuning.measured(
                    launched_of(small), every=effort.every, borders=effort.borders
                )
            finally:  # few of them are used, and not at this size
                device.engines.forget_built()
            ended += 1
            if measured is not None:
                found[operation] = measured
                tables_of(device).add(measured)
                if tell is not None:
                    tell(measured)
        device.arena.release_block()
    return found, ended


def _with_room(operation: AnyConvolution, limit_bytes: int, share: float) -> AnyConvolution:
    """Return the operation on a share of its images, or on as many as there is room for.

    Most room is for workspace.
    """
    _, buffers = launched_of(operation)
    held = sum(buffer.nbytes for buffer in buffers.values())
    return on_fewer_images(operation, min(share, ROOM_SHARE * limit_bytes / max(held, 1)))
