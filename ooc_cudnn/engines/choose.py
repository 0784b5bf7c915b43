"""Choose among measured cuDNN engines those whose workspace fits beside a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import assign_workspace, distinct_launches
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.devices.engines import MEASURED, NO_TENSOR_CORES, NOT_SPLIT, Option
from ooc_cudnn.engines.target import Target
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    forward_of,
    in_memory_order,
    replace_forward,
)
from ooc_cudnn.tensor import ORDERS

#: Where engines were measured, but there is room for none of them, or in the other memory order
#: alone, what runs is taken to be so many times as slow as the slowest. (On an H200 it was 1 to 300
#: times as slow.)
UNTIMED = 4.0
#: What lacks something for want of workspace is taken to be so many times as slow as the fastest
#: engine, where nobody timed it. (On an H200 twelve launches of nnU-Net without tensor cores took 6
#: to 720 times as long as predicted, 30 in the geometric mean; filter gradients of R3D-18 in slabs
#: that were not split 3.2 to 5.2 times.)
SLOWER = {NO_TENSOR_CORES: 30.0, NOT_SPLIT: 5.0}


def choose_engines(request: Request, plan: Plan, target: Target, room_bytes: int) -> Plan:
    """Give a plan the fastest engines whose workspace there is room for beside it.

    The same plan where a device was asked for workspace, or nothing is known of engines
    (`Target.options`).
    """
    if target.options is None or target.ask_workspace is not None:
        return plan
    needed, names = 0, dict[str, None]()
    for launch, _ in distinct_launches(request, plan):
        if isinstance(launch.operation, AnyConvolution):
            for option in target.options(launch.operation):
                if option.workspace_bytes <= room_bytes - plan.device_bytes:
                    needed = max(needed, option.workspace_bytes)
                    names[option.name] = None
                    break
    return assign_workspace(plan, needed, tuple(names))


def slowness_of(request: Request, plan: Plan, target: Target) -> float:
    """Seconds of computing by the engines of a plan over those by the fastest ones.

    1 where nothing is known of engines. What was measured of a problem, but with too much workspace
    or in another memory order, takes no less than what was measured: an engine that nobody timed is
    taken to be slower, and most of all one that lacks tensor cores for want of workspace. That
    counts where plans do not depend on timings, too (`Target.options` is None).
    """
    known = target.options
    least = max((SLOWER[what] for what in _lacking(plan.algorithms)), default=1.0)
    if known is None and least == 1.0:
        return 1.0
    fastest = taken = 0.0
    for launch, _ in distinct_launches(request, plan):
        seconds = float(target.machine.compute.seconds(launch.operation.work()))
        fastest += seconds
        times = least if isinstance(launch.operation, AnyConvolution) else 1.0
        by_engine = 0.0 if known is None else _seconds_of(launch.operation, plan, target, known)
        taken += max(times * seconds, by_engine)
    return taken / fastest if fastest else 1.0


def lacks_room(algorithms: Iterable[str]) -> bool:
    """True if one of these lacks tensor cores, or is not split, for want of workspace."""
    return any(_lacking(algorithms))


def _lacking(algorithms: Iterable[str]) -> Iterator[str]:
    return (what for what in SLOWER for name in algorithms if name.endswith(what))


def seconds_by_engines(request: Request, plan: Plan, target: Target) -> float:
    """Seconds of a plan by the engines that it has; by the fastest ones it has `seconds`."""
    return plan.seconds + (slowness_of(request, plan, target) - 1.0) * plan.compute_seconds


def _seconds_of(
    operation: object, plan: Plan, target: Target, known: Callable[..., Sequence[Option]]
) -> float:
    """Seconds of a launch by the engine that a plan has for it; 0 where none was measured."""
    if not isinstance(operation, AnyConvolution):
        return 0.0
    asked = target.ask_workspace is not None
    layout = forward_of(operation).layout
    orders = (layout, *(order for order in ORDERS if order != layout))
    # A convolution by itself tells more of one with an epilogue than another memory order does.
    # And one with other padding more of a piece at a border, for which no engine may be checked.
    plain = (in_memory_order(operation, order) for order in orders)
    for candidate in (operation, *plain, _evened(in_memory_order(operation, layout))):
        options = known(candidate)
        if options:
            if asked and candidate == operation:
                taken = _named(options, plan)
            else:
                is_other = asked and forward_of(candidate).layout != layout
                taken = _fitting(options, plan) * (UNTIMED if is_other else 1.0)
            seconds = float(target.machine.compute.seconds(candidate.work()))
            return seconds * taken / options[0].seconds
    return 0.0


def _evened(operation: AnyConvolution) -> AnyConvolution:
    """The same with as much padding on both sides of each axis."""
    forward = forward_of(operation)
    padding = tuple((max(pair), max(pair)) for pair in forward.padding)
    return replace_forward(operation, replace(forward, padding=padding))


def _fitting(options: Sequence[Option], plan: Plan) -> float:
    """Seconds of the fastest with no more workspace than a plan has, or of what takes least."""
    fitting = (each for each in options if each.workspace_bytes <= plan.workspace_bytes)
    return next(fitting, options[-1]).seconds


def _named(options: Sequence[Option], plan: Plan) -> float:
    """Seconds of the one that a device named for a plan; of one that nobody timed, a guess."""
    there = {_engine(name) for name in plan.algorithms if name.endswith(MEASURED)}
    named = (each.seconds for each in options if _engine(each.name) in there)
    return next(named, UNTIMED * options[-1].seconds)


def _engine(name: str) -> str:
    """An engine by the name of its plan, without what pieces at a border may need beside it."""
    return name.removesuffix(MEASURED).partition(",")[0]
