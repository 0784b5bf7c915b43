"""A program replayed: the very steps of its schedule, on a virtual clock instead of a device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.pipeline.graph_replay import may_be_recorded
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.program import COPY_IN, COPY_OUT, Move, Program, Task, program_of
from ooc_cudnn.pipeline.schedule import Schedule, make_schedule
from ooc_cudnn.pipeline.task_buffers import place_buffers
from ooc_cudnn.pipeline.trace import Trace, make_trace
from ooc_cudnn.pipeline.virtual_steps import StepCost, VirtualCall
from perfmodel import MachineModel


def simulate(request: Request, plan: Plan) -> Trace:
    """Replay a plan by the request's machine model, without data and without a device.

    It sees what the closed form that priced the plan cannot: short rings, uneven pieces, and which
    copies really meet on the link.
    """
    return simulate_program(program_of(request, plan))


def simulate_program(program: Program) -> Trace:
    """Replay a program by the machine model of its first task."""
    schedule = make_schedule(program)
    for item, sizes in zip(program.items, schedule.sizes, strict=True):
        if isinstance(item, Task):
            place_buffers(item.plan, sizes, item.offset)  # it takes the memory that it says
    timeline = ReplayedSchedule(schedule).timeline
    return make_trace(program, schedule.steps, zip(timeline.start, timeline.finish, strict=True))


class ReplayedSchedule:
    """A schedule, priced and replayed.

    Every region that is copied and all that is launched together is priced once, for pieces repeat.

    Attributes
    ----------
    costs : list of StepCost
        What each step takes by itself.
    timeline : Timeline
        When each starts and finishes, in seconds since the call began.
    seconds : float
        What the program takes when it is repeated: until the last result has landed, and the host
        is done.
    """

    def __init__(self, schedule: Schedule) -> None:
        program, steps = schedule.program, schedule.steps
        tasks = list(program.tasks)
        first = next((task for task in tasks if not task.is_on_host), tasks[0]).request
        machine = first.machine
        staged = schedule.pieces > 1 and program.in_threads
        if schedule.pieces == 1:  # threads stage, but nothing else is issued meanwhile
            machine = replace(machine, staged_step_seconds=0.0)
        # the first step is issued when the call is set up, which counts that
        begun = first.setup_seconds - machine.step_seconds
        after = machine.call_seconds - machine.setup_seconds()
        self.costs = _costs(program, machine, steps)
        if len(steps) == 1:
            begun = machine.repeated_seconds - machine.step_seconds - self.costs[0].launching
            after = 0.0
        recorded = machine.is_of_gpu and may_be_recorded(program, schedule.pieces)
        how = {"overlap": program.overlap, "staged": staged, "recorded": recorded}
        call = VirtualCall(machine, begun=begun, **how)
        for step, cost in zip(steps, self.costs, strict=True):
            call.add(step.stream, step.waits, cost)
        self.timeline = call.timeline()
        self.seconds = max(self.timeline.seconds, call.issued + after)


def _costs(program: Program, machine: MachineModel, steps: Sequence[Instruction]) -> list[StepCost]:
    """Cost of each step: asked once for each region's shape, and for each set of launches."""
    known, costs = dict[Any, StepCost](), []
    others = {
        index: max(_in_flight(item.request, steps, index) - 1, 0)
        for index, item in enumerate(program.items)
        if isinstance(item, Task)
    }
    for step in steps:
        if not step.copies:
            key: Any = id(step.buffers)
        else:
            (place,) = step.places
            shape = tuple([stop - start for start, stop in place.region])
            key = (step.item, step.copies, place.operand, shape)
        cost = known.get(key)
        if cost is None:
            cost = known[key] = StepCost()
            item = program.items[step.item]
            if not step.copies:
                assert isinstance(item, Task)
                for launch in step.launches:
                    cost.compute(item.request.machine, launch.operation.work())
                cost.seconds *= item.slowness
            elif isinstance(item, Task):
                request = item.request
                spec, placement = request.specs[place.operand], request.crosses_as(place.operand)
                if placement == "device":
                    cost.compute(machine, Relayout(shape, spec.dtype).work())
                else:
                    rows = rows_of(shape, spec.strides, spec.itemsize)
                    moved = math.prod(shape) * spec.itemsize
                    cost.copy(machine, step.copies, placement, moved, rows, others[step.item])
            else:
                assert isinstance(item, Move)
                spec = program.bindings[item.ends[1]].spec
                rows = rows_of(shape, spec.strides, spec.itemsize)
                moved = math.prod(shape) * spec.itemsize
                cost.copy(machine, step.copies, spec.placement, moved, rows)
        costs.append(cost)
    return costs


def _in_flight(request: Request, steps: Sequence[Instruction], item: int) -> int:
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
        if step.item != item:
            continue
        for place in step.places:
            if (way := (step.stream, place.operand)) in late:
                copies[way] += 1
                slots.add((way, place.slot))
    return sum(copies[way] > 1 for way, _ in slots)
