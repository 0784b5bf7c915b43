"""The plan of a lowered step: what it will take, by a replay, and what becomes of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
from ooc_cudnn.pipeline.program import Task
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pipeline.trace import link_bytes


class RewriteSpec(NamedTuple):
    """The rewrites of a step, as plans say them."""

    micro_batches: int = 1
    bands: int = 1
    rematerialized: tuple[str, ...] = ()
    apart: bool = False
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
    schedule = make_schedule(program)
    replayed = ReplayedSchedule(schedule)
    busy = {"copy_in": 0.0, "compute": 0.0, "copy_out": 0.0}
    moved = dict.fromkeys(busy, 0)
    seconds = [0.0] * len(program.items)
    timeline = replayed.timeline
    for index, item_step in enumerate(schedule.steps):
        lasted = timeline.finish[index] - timeline.start[index]
        busy[item_step.stream] += lasted
        moved[item_step.stream] += link_bytes(program, item_step)
        if item_step.stream == "compute":
            seconds[item_step.item] += lasted
    tasks = tuple(
        TaskFigures(item.name, seconds[index], item.plan.pieces, item.plan.device_bytes,
                    item.plan.layout, ", ".join(item.plan.algorithms),
                    external_bytes_of(item.request.chain), item.is_on_host,
                    explain_external_bytes(item.request.chain))
        for index, item in enumerate(program.items)
        if isinstance(item, Task)
    )  # fmt: skip
    return NetworkPlan(
        name=name,
        policy=policy,
        machine=target.machine.name,
        memory_limit=target.limit_bytes,
        device_bytes=program.device_bytes,
        host_bytes=program.host_bytes,
        seconds=replayed.seconds,
        compute_seconds=busy["compute"],
        copy_in_seconds=busy["copy_in"],
        copy_out_seconds=busy["copy_out"],
        bytes_in=moved["copy_in"],
        bytes_out=moved["copy_out"],
        pieces=schedule.pieces,
        micro_batches=how.micro_batches,
        bands=how.bands,
        rematerialized=how.rematerialized,
        apart=how.apart,
        anew=how.anew,
        again=how.again,
        reserved=how.reserved,
        batch_slices=how.batch_slices,
        live_ranges=tuple((base, tuple(found)) for base, found in lowered.live_ranges.items()),
        fates=tuple(_fates(step, lowered.live_ranges, constraints)),
        tasks=tasks,
        order=constraints.order,
        by_order=constraints.by_order,
        synchronous=constraints.synchronous,
        gradient_bytes=device_gradient_bytes(step, constraints.given),
        outside_bytes=external_bytes(step),
        on_host=tuple(sorted(constraints.on_host)),
    )


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
