"""One drawn call, measured beside what the machine model says of it, stage by stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ooc_cudnn
from benchmarks.accuracy_draw import Drawn
from benchmarks.accuracy_operands import Blocks, Bound
from ooc_cudnn.bench.diagnosis import diagnosis, record_calls
from ooc_cudnn.bench.steadiness import Neighbours
from ooc_cudnn.bench.timing import Timing, time_call
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.plan import PlannedCall
from ooc_cudnn.functions.call.plan_api import planned_call
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.pipeline.trace import STREAMS

#: A limit under which there is no plan is replaced by this times the smallest that has one.
ABOVE_SMALLEST = 1.1
#: (seconds, repeats): calls that take at least so long are repeated so often. Short ones more
#: often than others, since what disturbs them is short as well.
REPEATS = ((5.0, 1), (0.5, 3), (0.02, 5), (0.0, 9))
#: Repeats are made again where other processes take more than this share of the processors.
DISTURBED, QUIET_TRIES, QUIET_SECONDS = 0.1, 6, 4.0
#: What is kept of the diagnosis of a profiled run.
PROFILED = ("seconds_while_profiled", "pieces", "split", "order", "rings", "layout", "algorithms",
            "memory", "bytes_in", "bytes_out", "streams")  # fmt: skip


def measure_call(drawn: Drawn, blocks: Blocks) -> dict[str, Any]:
    """Plan, run and time a call; return all of it as plain JSON values.

    That is the call as drawn, its plan, seconds measured and predicted by the closed form and by
    the replay, of the call and of each stage, and the peak of memory.
    """
    bound = Bound(drawn, blocks)
    figures: dict[str, Any] = {"drawn": drawn.to_json(), "description": str(drawn)}
    with _limited(drawn, figures, bound) as planned:
        begin = time.perf_counter()
        bound()
        figures["first_call_seconds"] = time.perf_counter() - begin
        timing, share = _quietest(bound, blocks.device)
        figures |= {"seconds": timing.median, "timing": timing.to_json(), "others_share": share}
        _profile(bound, planned, figures)
        figures["replay"] = replayed(planned)
    _compare(figures)
    return figures


def measure_again(figures: dict[str, Any], drawn: Drawn, blocks: Blocks) -> None:
    """Time a call that was measured once more, at another moment: the quietest round counts.

    A virtual machine's host is slow or fast for seconds at a time, and what disturbs it only adds.
    """
    bound = Bound(drawn, blocks)
    with ooc_cudnn.settings(memory_limit=figures["memory_limit"], allow_tf32=drawn.allow_tf32):
        bound()
        timing, share = _quietest(bound, blocks.device)
    figures.setdefault("round_seconds", [figures["seconds"]]).append(timing.median)
    if timing.median < figures["seconds"]:
        figures |= {"seconds": timing.median, "timing": timing.to_json(), "others_share": share}
        _compare(figures)


def _compare(figures: dict[str, Any]) -> None:
    """Put both predictions beside what was measured."""
    figures["predicted/measured"] = figures["predicted_seconds"] / figures["seconds"]
    figures["replay/measured"] = figures["replay"]["seconds"] / figures["seconds"]


@contextmanager
def _limited(drawn: Drawn, figures: dict[str, Any], bound: Bound) -> Iterator[PlannedCall]:
    """Set the memory limit as drawn, or a little above the smallest that will do; give the plan."""
    limit = drawn.memory_limit
    for _ in range(3):
        with ooc_cudnn.settings(memory_limit=limit, allow_tf32=drawn.allow_tf32):
            begin = time.perf_counter()
            try:
                planned = planned_call(drawn.function, **bound.arguments())
            except PlanInfeasibleError as error:
                limit = math.ceil(ABOVE_SMALLEST * error.smallest_bytes)
                continue
            figures |= {
                "plan_seconds": time.perf_counter() - begin,
                "memory_limit": limit,
                "limit_raised": limit != drawn.memory_limit,
                "bytes": drawn.nbytes,
                "placement": drawn.placement_class,
            }
            yield planned
            return
    raise RuntimeError(f"no plan under {limit} bytes, which an error had said would do")


def _quietest(bound: Bound, device: Device) -> tuple[Timing, float]:
    """Time repeats; return what share of the processors others took, too.

    Where the processors are the device, disturbed repeats are made again, and the quietest count.
    """
    synchronize, most = device.synchronize, QUIET_TRIES if device.kind == "host" else 1
    neighbours, tries = Neighbours(), list[tuple[float, Timing]]()
    begin = time.perf_counter()
    while len(tries) < most and time.perf_counter() - begin < QUIET_SECONDS:
        neighbours.share()
        timing = _timed(bound, synchronize)
        tries.append((neighbours.share(), timing))
        if not tries[-1][0] > DISTURBED:
            break
    share, timing = min(tries, key=lambda each: each[0])
    return timing, share


def _timed(bound: Bound, synchronize: Callable[[], None]) -> Timing:
    """Time repeats, as many as their length asks for."""
    samples: list[float] = []
    repeats = 1
    while len(samples) < repeats:
        bound.prepare()
        samples.append(time_call(bound, synchronize))
        repeats = next(times for seconds, times in REPEATS if samples[0] >= seconds)
    return Timing(tuple(samples))


def _profile(bound: Bound, planned: PlannedCall, figures: dict[str, Any]) -> None:
    """Run once more, every step timed; keep what the streams did, and the peak of memory."""
    bound.prepare()
    bound.poison()
    before = bound.blocks.device.arena.array_bytes
    with record_calls() as calls:
        bound()
    (call,) = calls
    plan: Plan = call.plan
    said = diagnosis(call)
    figures |= {
        "predicted_seconds": plan.seconds,
        "predicted_before_seconds": planned.plan.seconds,
        "binding_stage": plan.binding_stage,
        "device_bytes": plan.device_bytes,
        "peak_device_bytes": call.peak_device_bytes - before,
        "peak_exact": call.peak_device_bytes - before == plan.device_bytes,
        "stages": {
            stream: {
                "predicted_seconds": getattr(plan, f"{stream}_seconds"),
                "measured_seconds": call.trace.busy_seconds(stream),
            }
            for stream in STREAMS
        },
        "parts": len(plan.parts) or 1,
        "profile": {name: said[name] for name in PROFILED},
        "contents": bound.look(),
    }


def replayed(planned: PlannedCall) -> dict[str, Any]:
    """Seconds of a plan on the virtual clock, and how long each stream is busy there."""
    schedule, stages = make_schedule(planned.program), dict.fromkeys(STREAMS, 0.0)
    replay = ReplayedSchedule(schedule)
    for step, start, finish in zip(
        schedule.steps, replay.timeline.start, replay.timeline.finish, strict=True
    ):
        stages[step.stream] += finish - start
    return {"seconds": replay.seconds, "stages": stages}


def spoken_call(found: dict[str, Any]) -> str:
    stages = ", ".join(
        f"{stream} {each['predicted_seconds'] * 1e3:.3g}/{each['measured_seconds'] * 1e3:.3g}"
        for stream, each in found["stages"].items()
    )
    peak = "" if found["peak_exact"] else (
        f" PEAK {found['peak_device_bytes']} NOT {found['device_bytes']}"
    )  # fmt: skip
    contents = "" if found["contents"]["ok"] else f" WRONG CONTENTS {found['contents']}"
    return (
        f"{found['predicted/measured']:.3f} (replay {found['replay/measured']:.3f}) of "
        f"{found['seconds'] * 1e3:.4g} ms, {found['binding_stage']} binds; "
        f"predicted/measured ms: {stages}; {found['profile']['pieces']} pieces, "
        f"limit {found['memory_limit'] / found['bytes']:.2f}{peak}{contents}"
    )
