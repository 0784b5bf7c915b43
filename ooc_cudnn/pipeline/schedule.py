"""The schedule: a program's steps in the order they are issued. One generator for every device.

For each task, and each piece of it in its plan's loop order: copy in what the piece needs and no
slot holds, compute, and copy out what no later piece of the same output region will change. A step
waits on the steps whose data it reads and on those that last used the memory it is about to
overwrite, be they of the same task (its rings know) or of earlier ones (hazards). Steps of one
stream run in order and need no waits among themselves, but for what leaves: threads may write it to
the host later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.pipeline.instruction_builder import InstructionBuilder
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.program import Move, Program, Task, program_of
from ooc_cudnn.pipeline.task_steps import TaskSteps


@dataclass(frozen=True)
class Schedule:
    """The ordered steps of a program.

    Attributes
    ----------
    program : Program
    steps : tuple of Instruction
    pieces : int
        Number of pieces of all tasks; a move counts as one.
    sizes : tuple of mappings
        Of each item the largest bytes of each buffer: what its slots must hold.
    """

    program: Program
    steps: tuple[Instruction, ...]
    pieces: int
    sizes: tuple[Mapping[str, int], ...]


def make_schedule(program: Program) -> Schedule:
    """Generate the steps of a program.

    Raises
    ------
    ValueError
        If a task cuts a reduced axis, and one outside of it.
    """
    issuer = InstructionBuilder(program)
    for index, item in enumerate(program.items):
        issuer.begin(index)
        if isinstance(item, Task):
            TaskSteps(issuer, item).add_all()
        elif isinstance(item, Move):
            issuer.move(item)
        else:
            issuer.synchronise()
        issuer.end()
    return Schedule(program, issuer.finish(), issuer.pieces, tuple(issuer.sizes))


def plan_schedule(request: Request, plan: Plan) -> Schedule:
    """Make the schedule of a call by itself."""
    return make_schedule(program_of(request, plan))
