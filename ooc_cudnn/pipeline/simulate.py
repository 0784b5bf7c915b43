"""A plan replayed: the very steps of its schedule, on a virtual clock instead of a device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.pipeline.schedule import COMPUTE, COPY_IN, COPY_OUT, Schedule, Step, plan_schedule
from ooc_cudnn.pipeline.trace import Trace, traced
from ooc_cudnn.pipeline.views import lay_out
from ooc_cudnn.pipeline.virtual_steps import StepCost, VirtualCall
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.request import Request
from perfmodel.rows import WHOLE


def simulate(request: Request, plan: Plan) -> Trace:
    """Replay a plan by the request's machine model, without data and without a device.

    It sees what the closed form that priced the plan cannot: short rings, uneven pieces, and which
    copies really meet on the link.
    """
    schedule = plan_schedule(request, plan)
    lay_out(plan, schedule.sizes)  # it takes the memory that it says
    replayed = Replayed(request, schedule, overlap=plan.overlap)
    timeline = replayed.timeline
    intervals = zip(timeline.start, timeline.finish, strict=True)
    return traced(schedule.steps, intervals, [cost.host_bytes for cost in replayed.costs])


class Replayed:
    """A schedule of a call, priced and replayed.

    Every region that is copied and all that is launched together is priced once, for pieces repeat.

    Attributes
    ----------
    costs : list of StepCost
        What each step takes by itself.
    timeline : Timeline
        When each starts and finishes, in seconds since the call began.
    seconds : float
        What the call takes: until the last result has landed, and the host is done.
    """

    def __init__(self, request: Request, schedule: Schedule, *, overlap: bool = True) -> None:
        machine, steps = request.machine, schedule.steps
        staged = request.in_threads and schedule.pieces > 1
        if schedule.pieces == 1:  # threads stage, but nothing else is issued meanwhile
            machine = replace(machine, staged_step_seconds=0.0)
        # the first step is issued when the call is set up, which counts that
        begun = request.setup_seconds - machine.step_seconds
        after = machine.call_seconds - machine.setup_seconds()
        self.costs = _costs(request, steps)
        if len(steps) == 1:
            begun = machine.repeated_seconds - machine.step_seconds - self.costs[0].launching
            after = 0.0
        call = VirtualCall(machine, overlap=overlap, staged=staged, begun=begun)
        for step, cost in zip(steps, self.costs, strict=True):
            call.add(step.stream, step.waits, cost)
        self.timeline = call.timeline()
        self.seconds = max(self.timeline.seconds, call.issued + after)


def _costs(request: Request, steps: Sequence[Step]) -> list[StepCost]:
    """What each step takes: asked once for each region's shape, and for each set of launches."""
    machine, known, found = request.machine, dict[Any, StepCost](), []
    others = max(_in_flight(request, steps) - 1, 0)
    for step in steps:
        if step.stream == COMPUTE:
            key: Any = id(step.buffers)
        else:
            (place,) = step.places
            shape = tuple([stop - start for start, stop in place.region])
            key = (step.stream, place.operand, shape)
        cost = known.get(key)
        if cost is None:
            cost = known[key] = StepCost()
            if step.stream == COMPUTE:
                for launch in step.launches:
                    cost.compute(machine, launch)
            else:
                spec, placement = request.specs[place.operand], request.crosses_as(place.operand)
                on_host = placement != "device"
                rows = rows_of(shape, spec.strides, spec.itemsize) if on_host else WHOLE
                moved = math.prod(shape) * spec.itemsize
                cost.copy(machine, step.stream, placement, moved, rows, others)
        found.append(cost)
    return found


def _in_flight(request: Request, steps: Sequence[Step]) -> int:
    """Slots of what is staged again and again: their copies wait for each other's threads."""
    latency = request.machine.transfer.latency_of
    late = {
        (stream, name)
        for name in request.specs
        for stream in (COPY_IN, COPY_OUT)
        if latency(stream, request.crosses_as(name)) is not None
    }
    copies, slots = Counter[tuple[str, str]](), set[tuple[tuple[str, str], int]]()
    for step in steps if late else ():
        for place in step.places:
            if (way := (step.stream, place.operand)) in late:
                copies[way] += 1
                slots.add((way, place.slot))
    return sum(copies[way] > 1 for way, _ in slots)
