"""The plan of a lowered step: what it will take, by a replay, and what becomes of its tensors.

Where the program runs in parts, each has a plan of its own figures, which add up to the step's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.plan import Fate, NetworkPlan, TaskFigures
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.ir.tensor import GIVEN
from ooc_cudnn.network.lowering.device_gradients import device_gradient_bytes, gradients_of
from ooc_cudnn.network.lowering.external_memory import (
    explain_external_bytes,
    external_bytes,
    external_bytes_of,
)
from ooc_cudnn.network.lowering.lower import LoweredProgram
from ooc_cudnn.pipeline.program import Program, Task
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pipeline.trace import link_bytes


class RewriteSpec(NamedTuple):
    """The rewrites of a step, as plans say them."""

    micro_batches: int = 1
    bands: int = 1
    rematerialized: tuple[str, ...] = ()
    apart: bool = False
    copied_skips: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()
    again: tuple[RematEvent, ...] = ()
    reserved: tuple[tuple[int, int], ...] = ()
    batch_slices: int = 1


def summarize(
    name: str,
    policy: str,
    step: Step,
    lowered: LoweredProgram,
    how: RewriteSpec | NetworkPlan,
    constraints: PlanConstraints,
) -> NetworkPlan:
    """Return the plan of a lowered step, with what its replay takes."""
    program, target = lowered.program, constraints.target
    (figures,) = _figures(program, (len(program.items),))
    return NetworkPlan(
        name=name,
        policy=policy,
        machine=target.machine.name,
        memory_limit=target.limit_bytes,
        device_bytes=program.device_bytes,
        host_bytes=program.host_bytes,
        micro_batches=how.micro_batches,
        bands=how.bands,
        rematerialized=how.rematerialized,
        apart=how.apart,
        copied_skips=how.copied_skips,
        anew=how.anew,
        again=how.again,
        reserved=how.reserved,
        batch_slices=how.batch_slices,
        live_ranges=tuple((base, tuple(found)) for base, found in lowered.live_ranges.items()),
        fates=tuple(_fates(step, lowered.live_ranges, constraints)),
        order=constraints.order,
        by_order=constraints.by_order,
        synchronous=constraints.synchronous,
        gradient_bytes=device_gradient_bytes(step, constraints.given),
        outside_bytes=external_bytes(step),
        on_host=tuple(sorted(constraints.on_host)),
        **figures,
    )


def split_plan(
    plan: NetworkPlan, program: Program, ends: Sequence[int], names: Sequence[str]
) -> list[NetworkPlan]:
    """Split a plan into those of the parts of its program, each with its own figures.

    Decisions, and the memory that is reserved, stay those of the whole.

    Parameters
    ----------
    program : Program
        The whole.
    ends : sequence of int
        The item before which each part ends, in order; the last one's is the program's end.
    names : sequence of str
        Of the parts.
    """
    figures = _figures(program, ends)
    return [replace(plan, name=name, **own) for name, own in zip(names, figures, strict=True)]


def _figures(program: Program, ends: Sequence[int]) -> list[dict[str, Any]]:
    """Figures of the parts of a program, under the names that a plan has for them.

    A part begins when all steps of those before it have finished.
    """
    schedule = make_schedule(program)
    replayed = ReplayedSchedule(schedule)
    timeline = replayed.timeline
    busy = [{"copy_in": 0.0, "compute": 0.0, "copy_out": 0.0} for _ in ends]
    moved = [dict.fromkeys(each, 0) for each in busy]
    pieces, finish = [0 for _ in ends], [0.0 for _ in ends]  # reached at the end of each part
    seconds = [0.0] * len(program.items)
    for index, step in enumerate(schedule.steps):
        part = bisect_right(ends, step.item)
        lasted = timeline.finish[index] - timeline.start[index]
        busy[part][step.stream] += lasted
        moved[part][step.stream] += link_bytes(program, step)
        pieces[part] = max(pieces[part], step.piece + 1)
        finish[part] = max(finish[part], timeline.finish[index])
        if step.stream == "compute":
            seconds[step.item] += lasted
    pieces[-1], finish[-1] = schedule.pieces, replayed.seconds
    pieces, finish = list(accumulate(pieces, max)), list(accumulate(finish, max))
    return [
        {
            "seconds": finish[part] - (finish[part - 1] if part else 0.0),
            "compute_seconds": busy[part]["compute"],
            "copy_in_seconds": busy[part]["copy_in"],
            "copy_out_seconds": busy[part]["copy_out"],
            "bytes_in": moved[part]["copy_in"],
            "bytes_out": moved[part]["copy_out"],
            "pieces": pieces[part] - (pieces[part - 1] if part else 0),
            "tasks": tuple(
                TaskFigures(item.name, seconds[index], item.plan.pieces, item.plan.device_bytes,
                            item.plan.layout, ", ".join(item.plan.algorithms),
                            external_bytes_of(item.request.chain), item.is_on_host,
                            explain_external_bytes(item.request.chain))
                for index, item in enumerate(program.items)
                if isinstance(item, Task) and bisect_right(ends, index) == part
            ),
        }
        for part in range(len(ends))
    ]  # fmt: skip


def _fates(step: Step, live_ranges: LiveRanges, constraints: PlanConstraints) -> Iterator[Fate]:
    """Tell the fate of each tensor that is no view; what is made twice counts once."""
    touched = {step.base(name) for phase in step.phases for name in (*phase.reads, *phase.writes)}
    gradients = gradients_of(step, constraints.given)
    copies = (t for name in touched if (t := step.tensors[name]).origin.copy == "rematerialized")
    again = {(each.source, each.origin.batch_slice) for each in copies}
    for name, tensor in step.tensors.items():
        if name not in touched or tensor.origin.copy:
            continue
        ranges = live_ranges.get(name, ())
        if (tensor.source, tensor.origin.batch_slice) in again:
            fate = "recomputed"
        elif not ranges:
            fate = "given" if tensor.kind in GIVEN or name in gradients else "streamed"
        else:
            fate = "offloaded" if len(ranges) > 1 else "kept"
        yield Fate(name, fate, tensor.nbytes)
