"""Engines that are known by a list, not by a device: which a call runs by, and how fast that is."""

from __future__ import annotations

from ooc_cudnn.functions.target import Target
from ooc_cudnn.operations.convolution_backward import AnyConvolution
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import distinct_launches, with_workspace
from ooc_cudnn.pricing.request import Request


def with_engines(request: Request, plan: Plan, target: Target, room_bytes: int) -> Plan:
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
    return with_workspace(plan, needed, tuple(names))


def slowness_of(request: Request, plan: Plan, target: Target) -> float:
    """Seconds of computing in the workspace of a plan over those by the fastest engines.

    1 where nothing is known of engines.
    """
    if target.options is None:
        return 1.0
    fastest = taken = 0.0
    for launch, _ in distinct_launches(request, plan):
        operation = launch.operation
        seconds = float(target.machine.compute.seconds(operation.work()))
        options = target.options(operation) if isinstance(operation, AnyConvolution) else ()
        fitting = (each for each in options if each.workspace_bytes <= plan.workspace_bytes)
        option = next(fitting, None)
        fastest += seconds
        taken += seconds if option is None else seconds * option.seconds / options[0].seconds
    return taken / fastest if fastest else 1.0
