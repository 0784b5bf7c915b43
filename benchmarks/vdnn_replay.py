"""A step of training on vDNN's Titan X under one of its policies, planned and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.vdnn_figures import ALL_M, Case, Way
from benchmarks.vdnn_machine import (
    LEAST_MEMORY,
    LEAST_MEMORY_FACTOR,
    MACHINE,
    machine,
    workspace,
    workspace_if_it_fits,
)
from benchmarks.vdnn_networks import network, step_of
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.lowering.lower import lower_step
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.pipeline.program import COMPUTE, Program
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pricing.planner import AskWorkspace
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

#: More than any of the networks needs: memory as if it were unlimited.
UNLIMITED = 2**40


class Replay(NamedTuple):
    """A step under one policy.

    `peak_bytes` is what the card must have, weights and all. `most_bytes` and `average_bytes`, by
    time, are without weights and their gradients; `offloaded_bytes` leave and come back.
    """

    seconds: float
    peak_bytes: int
    most_bytes: int
    average_bytes: float
    offloaded_bytes: int
    chosen: Way


@cache
def replayed(case: Case, way: Way, *, saves_little: bool = False) -> Replay:
    """Plan a step by a policy, and replay it; `saves_little` as in `step_of`.

    Static policies as if memory were unlimited, for what they need is what is asked; `dyn` on the
    card's 12 GB.
    """
    if way.policy == "vdnn_dyn":
        return next(found for found in _dynamic(case, saves_little) if found is not None)
    asked = workspace if way.algorithms == "p" else None
    found = _replay(case, way, UNLIMITED, asked, saves_little)
    assert found is not None
    return found


def _dynamic(case: Case, saves_little: bool) -> Iterator[Replay | None]:
    """vDNN's passes, in its order: the first that fits is taken (section 3.4).

    The fastest algorithms without offload, with that of convolutions, with that of all; the fastest
    that still fit each layer, the same; then the algorithms of least memory, all offloaded.
    """
    card = shipped(MACHINE).device_bytes
    assert card is not None
    for policy in ("keep", "vdnn_conv", "vdnn_all"):
        yield _replay(case, Way(policy, "p"), card, workspace, saves_little)
    for policy in ("vdnn_conv", "vdnn_all"):
        yield _replay(case, Way(policy, "p"), card, workspace_if_it_fits, saves_little)
    yield _replay(case, ALL_M, card, None, saves_little)


def _replay(
    case: Case, way: Way, limit: int, ask: AskWorkspace | None, saves_little: bool
) -> Replay | None:
    """Plan a step with the weights on the card; None where maps would have to be streamed."""
    step, policy = step_of(case, saves_little=saves_little), POLICIES[way.policy]
    given = {
        name: TensorSpec(tensor.shape, tensor.dtype, "device")
        for name, tensor in network(case).parameters.tensors.items()
    }
    weights = sum(spec.nbytes for spec in given.values())
    room = limit - weights
    target = Target(machine(way.algorithms), room, room, ("channels_first",), ask, overlap=True)
    constraints = PlanConstraints(target, given, synchronous=policy.synchronous)
    lowered = lower_step(
        str(case), step, policy.live_ranges_of(step), constraints, may_stream=False
    )
    if lowered is None:
        return None
    tasks = list(lowered.program.tasks)
    begins, busy, seconds = _times(lowered.program)
    held = np.array([task.plan.device_bytes for task in tasks])
    of_weights, away = {step.base(name) for name in step.gradients.values()}, 0
    for base, live_ranges in lowered.live_ranges.items():
        away += step.tensors[base].nbytes if len(live_ranges) > 1 else 0
        for live_range in live_ranges if base not in of_weights else ():
            held[live_range.first : live_range.last + 1] += step.tensors[base].nbytes
    slower = sum(
        (LEAST_MEMORY_FACTOR - 1) * took
        for task, took in zip(tasks, busy, strict=True)
        if LEAST_MEMORY in task.plan.algorithms
    )
    return Replay(
        seconds + slower,
        lowered.program.device_bytes + weights,
        int(held.max()),
        float(np.average(held, weights=np.diff([*begins, seconds]))),
        away,
        way,
    )


def _times(program: Program) -> tuple[list[float], list[float], float]:
    """When each task begins, the first at 0; how long it computes; and the seconds of the step."""
    schedule = make_schedule(program)
    replay = ReplayedSchedule(schedule)
    begins: dict[int, float] = {}
    busy: dict[int, float] = {}
    for at, step in enumerate(schedule.steps):
        if step.stream == COMPUTE:
            start, finish = replay.timeline.start[at], replay.timeline.finish[at]
            begins.setdefault(step.item, start)
            busy[step.item] = busy.get(step.item, 0.0) + finish - start
    items = sorted(begins)
    return [0.0, *(begins[item] for item in items[1:])], [busy[i] for i in items], replay.seconds
