"""What a replay takes: microseconds a step, for calls of 100 to 10,000 steps."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from ooc_cudnn.bench import script
from ooc_cudnn.functions.call.explain import plan_request
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pricing.planner import make_plan
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

#: Images of a call, each of them in so many pieces of three steps.
CALLS = ((33, 1), (333, 1), (833, 4))
PLACEMENTS = ("pinned", "pageable")
#: Pricing and replaying a schedule, of which the quietest of so many times counts.
MOST_MICROSECONDS, TIMES = 10.0, 5


def replay_pace(report: script.Report) -> None:
    slowest = 0.0
    for placement in PLACEMENTS:
        for images, parts in CALLS:
            x = TensorSpec((images, 64, 128, 128), placement=placement)
            w = TensorSpec((64, 64, 3, 3), placement="device")
            request = plan_request(
                "convolution_forward", x=x, w=w, padding=1, out=x, machine="h200",
                memory_limit="1GiB",
            )  # fmt: skip
            plan = make_plan(request, split=Split(n=1, c_y=64, c_x=64, h_y=128 // parts))
            schedule = plan_schedule(request, plan)
            making = _quietest(partial(plan_schedule, request, plan))
            replaying = _quietest(partial(ReplayedSchedule, schedule))
            steps = len(schedule.steps)
            name = f"microseconds a step, {placement}, {steps} steps"
            report.measure(f"schedule: {name}", 1e6 * making / steps)
            report.measure(f"replay: {name}", 1e6 * replaying / steps)
            slowest = max(slowest, 1e6 * replaying / steps)
    report.claim("replay, a step, slowest", slowest, "<=", MOST_MICROSECONDS, "microseconds")


def _quietest(made: Callable[[], Any]) -> float:
    """The fewest processor seconds that it takes to make something."""
    return min(timeit.repeat(made, timer=time.thread_time, number=1, repeat=TIMES))
