"""A plan replayed: the very steps of its schedule, on a virtual clock instead of a device."""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.devices.simulated import SimulatedDevice, simulated_operand
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.plan import Plan
from ooc_cudnn.pipeline.pricing import Request
from ooc_cudnn.pipeline.trace import Trace


def simulate(request: Request, plan: Plan) -> Trace:
    """Run a plan on the simulated device of the request's machine model, without data.

    It sees what the closed form that priced the plan cannot: short rings, uneven pieces, and which
    copies really meet on the link.

    Parameters
    ----------
    request : Request
        What was planned.
    plan : Plan
        How it is to run; `request.machine` prices its steps.

    Returns
    -------
    Trace
        When each step would start and stop.

    Raises
    ------
    DeviceOutOfMemoryError
        If the plan needs more memory than it counts.
    """
    machine = request.machine
    if plan.pieces == 1:  # threads stage, but nothing else is issued meanwhile
        machine = replace(machine, staged_step_seconds=0.0)
    device = SimulatedDevice(machine)
    operands = {
        name: simulated_operand(replace(spec, placement=request.crosses_as(name)))
        for name, spec in request.operands
    }
    executor = make_executor(request, plan)
    staged = request.in_threads and plan.pieces > 1
    trace = executor.run(device, operands, staged=staged, wait=True, timed=True)
    return trace or Trace(())
