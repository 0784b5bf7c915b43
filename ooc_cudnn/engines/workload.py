"""The workload of tuning: the convolutions that plans launch, one of each kind and size."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Engine, Kind, Measurement, Option, Tables
from ooc_cudnn.engines.accuracy import border_pieces
from ooc_cudnn.engines.autotune import PRUNED_AT, launch_of, reduce_images, reduce_rows
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    in_memory_order,
    without_epilogue,
)

#: What was measured of one size serves others that are no farther from it (`Work.distance`).
NEAR = math.log(2.0)
#: And predicts the seconds of those that are no farther from it than this. By what 64 images took,
#: gradients of 32 were predicted to take about a quarter less than they did: two micro-batches
#: looked faster than one.
SAME = math.log(1.2)
#: A size is timed for itself where its launches take this share of all seconds.
SIZE_MATTERS = 0.005
#: A family of convolutions has scouts (`Effort.scouts`) where it takes this share of all seconds.
FAMILY_MATTERS = 0.05
#: Weight of seconds in other memory orders than that of the plan.
OTHER_ORDERS = 0.25
#: Of the memory limit, what the operands of a launch may take while its engines are measured.
ROOM_SHARE = 0.25


class PlannedWork(NamedTuple):
    """Planned calls or steps.

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
    """Effort of measuring.

    Attributes
    ----------
    every : bool
        Every engine there is, not only those that the heuristics rank.
    compiled : bool
        With `every`: those too that are compiled at run time, which takes a second each.
    scouts : bool
        Without `every`: for the costliest convolution of a family (a direction, a window) that
        matters, every engine that is not compiled at run time; the best of them are tried for the
        others of the family, too.
    seconds : float
        For all, of which each convolution has a share by its cost. When they are spent, no further
        convolution is begun.
    again : bool
        What is known already, too.
    launch_seconds : float
        Launches that are predicted to take longer are measured on fewer images.
    borders : bool
        Engines are checked with the padding of pieces at a border, too, wherever that occurs or
        not.
    own_size : bool
        What was measured of about the size that is launched is timed at that size, too, and by what
        other sizes have found fast.
    """

    every: bool = True
    seconds: float = math.inf
    again: bool = True
    launch_seconds: float = math.inf
    borders: bool = True
    scouts: bool = False
    compiled: bool = True
    own_size: bool = False


class PlannedLaunch(NamedTuple):
    """A convolution that a plan launches.

    Attributes
    ----------
    operation : Convolution, or a gradient
    seconds : float
        What one launch is predicted to take.
    times : int
        Pieces of the plan. Each counts as much as the largest, those at a border too.
    """

    operation: AnyConvolution
    seconds: float
    times: int


class WantedConvolution(NamedTuple):
    """A convolution to be measured, and what is known of it.

    Attributes
    ----------
    launched : Convolution, or a gradient
        The one that is launched, on perhaps more images.
    cost : float
        Seconds that all such launches are predicted to take; fewer count in other memory orders
        than the plan's.
    """

    launched: AnyConvolution
    cost: float


def launches_to_measure(
    device: Device,
    launched: Iterable[PlannedLaunch],
    limit_bytes: int,
    effort: Effort,
) -> dict[AnyConvolution, WantedConvolution]:
    """List the convolutions to measure: one of each kind and size that is launched, in each order.

    Those in the memory order of the plan first, what takes longest before the rest.
    """
    convolutions = dict[AnyConvolution, WantedConvolution]()
    for operation, seconds, times in launched:
        share = effort.launch_seconds / max(seconds, 1e-9)
        small = fit_images(operation, limit_bytes, share)
        first, cost = convolutions.get(small, WantedConvolution(operation, 0.0))
        convolutions[small] = WantedConvolution(first, cost + times * seconds)
    kept: dict[AnyConvolution, WantedConvolution] = {}
    for operation in sorted(convolutions, key=lambda each: convolutions[each].cost, reverse=True):
        if not serves(kept, operation):
            kept[operation] = convolutions[operation]
    others = {
        in_memory_order(each, layout): WantedConvolution(
            in_memory_order(first, layout), OTHER_ORDERS * cost
        )
        for each, (first, cost) in kept.items()
        for layout in device.layouts(forward_of(each).dtype)
        if layout != forward_of(each).layout
    }
    return kept | others


def of_own_size(
    tables: Tables,
    launched: Iterable[PlannedLaunch],
    limit_bytes: int,
    *,
    has_learnt: bool,
) -> list[AnyConvolution]:
    """List launches that engines of their kind may run faster; those that take longest first.

    It was measured of about its size alone; or another size has an engine that may be faster, if
    this tuning has measured anything (`has_learnt`). In the memory order of the plan, of as many
    images as there is room for. What takes next to none of all seconds does not count.
    """
    costs = dict[AnyConvolution, float]()
    for operation, seconds, times in launched:
        fitting = fit_images(operation, limit_bytes, 1.0)
        costs[fitting] = costs.get(fitting, 0.0) + times * seconds
    least = SIZE_MATTERS * sum(costs.values())

    def may_be_known_better(operation: AnyConvolution) -> bool:
        nearest = tables.nearest(operation)
        if nearest is None:
            return False
        if nearest.work.distance(operation.work()) > SAME:
            return True
        if not has_learnt:
            return False
        known, further = known_options(tables, operation, nearest)
        return any(PRUNED_AT * option.seconds < known[0].seconds for option in further)

    sizes = [each for each, cost in costs.items() if cost >= least and may_be_known_better(each)]
    return sorted(sizes, key=lambda each: costs[each], reverse=True)


def known_options(
    tables: Tables, operation: AnyConvolution, nearest: Measurement
) -> tuple[list[Option], list[Option]]:
    """Engines of the nearest size, and others that are fastest at some size; what they would take.

    On an H100 no engine that the heuristics rank makes the data gradient of a linear layer of 64
    rows in less than 11 ms. One that was found for 32 rows makes it in 1.5.
    """
    work = operation.work()

    def would_take(measured: Measurement, option: Option) -> Option:
        return replace(option, seconds=work.amount / measured.work.amount * option.seconds)

    known = [would_take(nearest, option) for option in nearest.options]
    engines = {option.engine for option in known}
    further = dict[Engine, Option]()
    for measurement in sorted(tables.sizes(operation), key=lambda each: each.work.distance(work)):
        fastest = measurement.options[0]
        if fastest.engine not in engines:
            further.setdefault(fastest.engine, would_take(measurement, fastest))
    return known, list(further.values())


def engine_launches(device: Device, planned: PlannedWork) -> Iterator[PlannedLaunch]:
    """Yield the launches with engines, as `convolutions_of` says."""
    engines = device.engines
    assert engines is not None
    for request, plan in planned.tasks:
        for operation, times in convolutions_of(request, plan):
            alone = without_epilogue(operation)
            if alone is not operation and not engines.chosen(operation):
                # what no engine does as one is a convolution, and a pass after it
                operation = alone
            yield PlannedLaunch(operation, request.machine.compute.seconds(operation.work()), times)


def convolutions_of(request: Request, plan: Plan) -> Iterator[tuple[AnyConvolution, int]]:
    """The largest convolution of each kind that a plan launches, and for how many pieces.

    And, of kinds that it does not launch, those of the uncut call: a call from arrays elsewhere, or
    with more memory, may launch them.
    """
    known = set[Kind]()
    for split, times in ((plan.split, plan.pieces), (request.chain.extents, 1)):
        largest: dict[Kind, AnyConvolution] = {}
        for launch, _ in distinct_launches(request, replace(plan, split=split)):
            operation = launch.operation
            if isinstance(operation, AnyConvolution) and operation.work().amount > 0.0:
                kind = Kind.of(operation)
                other = largest.get(kind)
                if other is None or other.work().amount < operation.work().amount:
                    largest[kind] = operation
        yield from ((each, times) for kind, each in largest.items() if kind not in known)
        known.update(largest)


def serves(known: Iterable[AnyConvolution], operation: AnyConvolution) -> bool:
    """True if one that is known is of the same kind, and of about the size."""
    kind, work = Kind.of(operation), operation.work()
    return any(Kind.of(each) == kind and each.work().distance(work) <= NEAR for each in known)


def has_borders(planned: PlannedWork) -> bool:
    """True if something is launched with padding that is more on one side than on the other."""
    return any(
        isinstance(launch.operation, AnyConvolution) and not forward_of(launch.operation).is_even
        for request, plan in planned.tasks
        for launch, _ in distinct_launches(request, plan)
    )


def well_known(before: Iterable[Measurement], effort: Effort) -> list[AnyConvolution]:
    """Select those that were measured before with as much effort.

    A table says whether every engine was tried, those that are compiled at run time included. Where
    these are not asked for, each table serves in which an engine was checked.
    """
    is_all = effort.every and effort.compiled
    return [
        each.operation
        for each in before
        if each.operation is not None
        and each.options
        and (each.is_complete or not is_all)
        and any(option.error is not None for option in each.options)
        and (
            any(option.is_right_uneven for option in each.options)
            or not (effort.borders and border_pieces(each.operation))
        )
    ]


def scouts_of(
    operations: Mapping[AnyConvolution, WantedConvolution], scouted: Collection[Hashable]
) -> set[AnyConvolution]:
    """The costliest of each family that takes much of all the seconds, without those `scouted`.

    What takes much may be known only once it was measured: on an H200 a linear layer's data
    gradient took 11.5 ms by the best that the heuristics rank, and 0.84 ms by another engine.
    """
    first: dict[Hashable, AnyConvolution] = {}
    costs: dict[Hashable, float] = {}
    for operation, (_, cost) in operations.items():
        family = family_of(operation)
        first.setdefault(family, operation)
        costs[family] = costs.get(family, 0.0) + cost
    least = FAMILY_MATTERS * sum(costs.values())
    return {
        first[family] for family, cost in costs.items() if cost >= least and family not in scouted
    }


def family_of(operation: AnyConvolution) -> Hashable:
    """Return the key of all that may have the same engines, in whichever memory order."""
    plain = in_memory_order(operation, "channels_first")
    kind = Kind.of(plain)
    return kind._replace(work=plain.work().family)


def engines_of_others(tables: Tables, operation: AnyConvolution) -> list[Engine]:
    """List engines that are good for others of a direction: of its family first, of near sizes.

    On an H200 a filter gradient of dilation 12 took 2.2 s by what is ranked for little workspace,
    and 9 ms by what was measured of dilation 36.
    """
    direction, family, work = _direction_of(operation), family_of(operation), operation.work()
    alike = [
        ((family_of(each.operation) != family, each.work.distance(work)), option.engine)
        for each in tables
        if each.operation is not None and _direction_of(each.operation) == direction
        for option in each.options
    ]
    return list(dict.fromkeys(engine for _, engine in sorted(alike, key=itemgetter(0))))


def _direction_of(operation: AnyConvolution) -> Hashable:
    """Key of all that the engines of a direction compute, whatever the window and the sizes."""
    plain = in_memory_order(operation, "channels_first")
    return plain.work().key, len(forward_of(plain).w_shape), Kind.of(plain)[1:]


def fit_images(operation: AnyConvolution, limit_bytes: int, share: float) -> AnyConvolution:
    """Return the operation on a share of its images, or on as much as there is room for.

    Most room is for workspace: of one image that takes too much, there are fewer rows.
    """
    room = ROOM_SHARE * limit_bytes
    few = reduce_images(operation, min(share, room / operand_bytes(operation)))
    held = operand_bytes(few)
    return few if held <= room else reduce_rows(few, room / held)


def reduce_size(operation: AnyConvolution, share: float) -> AnyConvolution:
    """Return the operation on at most a share of its images; of one image, of its rows."""
    less = reduce_images(operation, share)
    return less if less != operation else reduce_rows(operation, share)


def operand_bytes(operation: AnyConvolution) -> int:
    """Return the bytes of what a convolution by itself takes and makes, 1 at the least."""
    _, buffers = launch_of(operation)
    return max(1, sum(buffer.nbytes for buffer in buffers.values()))
