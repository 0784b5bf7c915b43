"""Which block of the arena held what, and when: read off the steps of a call.

A plan says how many bytes each purpose gets; the schedule says which step uses which slot; the
trace says when each step ran. Together they tell when every slot was filled, used and emptied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.task_buffers import TaskBuffers
from ooc_cudnn.pipeline.trace import StepTrace, Trace

PHASES = ("filled", "waiting", "used", "emptied")
WORKSPACE = "workspace"


@dataclass(frozen=True)
class Held:
    """A block of the arena that holds something for a while.

    Attributes
    ----------
    block : str
        "x slot 0", "scratch 1", "workspace".
    purpose : str
        As `Plan.memory` names it.
    phase : str
        "filled" by a copy in, "waiting", "used" by a computation, "emptied" by a copy out.
    nbytes : int
        Of the whole block.
    start_seconds, stop_seconds : float
        Since the call began.
    """

    block: str
    purpose: str
    phase: str
    nbytes: int
    start_seconds: float
    stop_seconds: float

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, not {self.phase!r}")


class _Use(NamedTuple):
    phase: str
    start: float
    stop: float


def held(request: Request, plan: Plan, trace: Trace) -> list[Held]:
    """Return what each block of the arena held, from the first step to the last.

    Parameters
    ----------
    request : Request
        What was planned, as `plan_request` returns it.
    plan : Plan
    trace : Trace
        Of a run of that plan, on any device.

    Returns
    -------
    list of Held
        Slots of rings from their copy in, or the first computation that writes them, to their last
        use or copy out; scratch and workspace while they are computed with; what else the plan has
        (sums, rows that are kept for the next piece) from its first use to its last.

    Raises
    ------
    ValueError
        If the trace is not of this plan.
    """
    executor = make_executor(request, plan)
    steps = executor.schedule.steps
    if [step.stream for step in steps] != [step.stream for step in trace.steps]:
        raise ValueError(f"the trace has {len(trace.steps)} steps that are not the plan's")
    zero = min((step.start_seconds for step in trace.steps), default=0.0)
    uses: dict[str, list[_Use]] = {}
    for step, ran in zip(steps, trace.steps, strict=True):
        for block in _blocks(step, executor.offsets[0]):
            start, stop = ran.start_seconds - zero, ran.stop_seconds - zero
            uses.setdefault(block, []).append(_Use(_phase(ran), start, stop))
    sizes = _sizes(plan, executor.offsets[0])
    return [
        Held(block, purpose, use.phase, nbytes, use.start, use.stop)
        for block, (purpose, nbytes) in sizes.items()
        for use in _with_waiting(block, uses.get(block, []))
    ]


def in_use(found: Sequence[Held], plan: Plan) -> tuple[NDArray[np.float64], dict[str, list[int]]]:
    """Return the bytes that each purpose holds from moment to moment.

    Parameters
    ----------
    found : sequence of Held
    plan : Plan

    Returns
    -------
    seconds : array, shape (moments,)
        When something changes, ascending.
    nbytes : dict of str to list of int
        For each purpose of the plan's memory, what it holds from that moment on.
    """
    ends = sorted({s for h in found for s in (h.start_seconds, h.stop_seconds)})
    moments = np.array(ends)
    totals = {purpose: np.zeros(len(ends), np.int64) for purpose, _ in plan.memory}
    for each in found:
        first, last = np.searchsorted(moments, (each.start_seconds, each.stop_seconds))
        totals[each.purpose][first:last] += each.nbytes
    return moments, {purpose: total.tolist() for purpose, total in totals.items()}


def _blocks(step: Instruction, offsets: TaskBuffers) -> Iterator[str]:
    for place in step.places:
        if place.slot >= 0:
            yield f"{place.operand} slot {place.slot}"
    named = {buffer.block or name for name, buffer in step.buffers.items()}
    yield from (name for name in offsets.buffers if name in named)
    if step.launches and offsets.workspace[1]:
        yield WORKSPACE


def _phase(step: StepTrace) -> str:
    return {"copy_in": "filled", "compute": "used", "copy_out": "emptied"}[step.stream]


def _sizes(plan: Plan, offsets: TaskBuffers) -> dict[str, tuple[str, int]]:
    """Purpose and bytes of every block, in the order of the plan's memory."""
    sizes: dict[str, tuple[str, int]] = {}
    for purpose, count in plan.memory:
        operand = purpose.partition(":")[0]
        if purpose not in offsets.buffers and operand in offsets.slots:
            _, size, slots = offsets.slots[operand]
            sizes |= {f"{operand} slot {slot}": (purpose, size) for slot in range(slots)}
        else:
            sizes[purpose] = (purpose, count)
    return sizes


def _with_waiting(block: str, uses: Iterable[_Use]) -> Iterator[_Use]:
    """Fill the gaps in which a block holds something that nothing works on."""
    last: _Use | None = None
    for use in uses:
        ended = last is None or last.phase == "emptied" or use.phase == "filled"
        transient = block == WORKSPACE or block.startswith("scratch")
        if last is not None and not ended and not transient and use.start > last.stop:
            yield _Use("waiting", last.stop, use.start)
        yield use
        last = use
