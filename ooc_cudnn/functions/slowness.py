"""How much slower than by its fastest engines a call computes in the workspace of its plan."""

from __future__ import annotations

from ooc_cudnn.functions.target import Target
from ooc_cudnn.operations.convolution_backward import AnyConvolution
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import distinct_launches
from ooc_cudnn.pricing.request import Request


def slowness_of(request: Request, plan: Plan, target: Target) -> float:
    """Seconds of computing over those by the fastest engines, as far as they are known.

    1 where nothing is known of engines (`Target.options`).
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
