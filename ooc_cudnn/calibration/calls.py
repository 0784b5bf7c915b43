"""Timings of whole calls: seconds of the host, and delays of staged copies.

Pieces of a few bytes cost the device nothing: what a call of many of them takes is the host's, to
issue steps, to launch, to call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.calibration.copies import ROWS_BYTES, copy_seconds, latency, staged_bytes
from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.devices.base import Device, HostArray
from ooc_cudnn.devices.measuring import Bench, Timing, WatchedDevice, repeated_seconds
from ooc_cudnn.functions.api.batch_normalization import batch_normalization_forward_inference
from ooc_cudnn.functions.api.elementwise import activation_forward
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped
from perfmodel.lines import latency_line
from perfmodel.staging import staging_slots

#: Images of a few bytes, each a piece of its own; and of so many that threads stage them.
SHAPE, STAGED_SHAPE = (64, 8, 2, 8), (64, 8, 64, 64)
FILTERS = (8, 8, 1, 1)
#: Scale, bias, mean and variance: what a normalisation reads beside what an activation does.
MORE_OPERANDS = 4
#: How often they are gone through; calls of one piece, which are short; and those staged both ways,
#: with the most pieces of one.
REPEATS, CALL_REPEATS, STAGED_REPEATS = 3, 9, 5
MOST_TURNS = 32


def host_seconds(session: Session) -> None:
    """Record seconds of a call, an operand, a launch and a step, as `MachineModel` names them.

    A piece of an activation takes three steps and one launch; and a call of one piece tells what a
    call takes beside, one of more operands what each takes, beside the step that copies it. A
    card's steps are issued by threads, too, on small pieces of plain memory: what takes time there
    is to hand them on.
    """
    bench = session.bench
    simple, launch = _many_pieces(bench, TensorSpec(SHAPE, "float32", "pinned"))
    launch = launch._replace(seconds=min(launch.seconds, simple.seconds / 2))
    step = (simple.seconds - launch.seconds) / 3
    session.record("launch_seconds", launch)
    session.record("step_seconds", Timing(step, simple.spread))

    def remaining(name: str, seconds: float, of: Timing) -> None:
        session.record(name, Timing(max(seconds, 0.0), of.spread))

    if not session.on_host:  # whose steps go through threads in any case
        staged, _ = _many_pieces(bench, TensorSpec(STAGED_SHAPE, "float32", "pageable"))
        remaining("staged_step_seconds", (staged.seconds - launch.seconds) / 3, staged)
    if (whole := _one_piece(bench)) is not None:
        few, many = whole
        remaining("call_seconds", few.seconds - 3 * step - launch.seconds, few)
        if not session.on_host:  # there, steps do not follow each other
            operand_seconds = (many.seconds - few.seconds) / MORE_OPERANDS - step
            remaining("operand_seconds", operand_seconds, many)


def _many_pieces(bench: Bench, x: TensorSpec) -> tuple[Timing, Timing]:
    """Seconds of a piece of an activation that is cut into images, and of its launch."""
    plan, run = plan_in_images(bench, x)
    arrays: dict[str, Source] = {
        name: _ones(bench, spec.shape, spec.placement) for name, spec in plan.operands
    }
    watched: Any = WatchedDevice(bench.device)
    timing = Timing.of_host(repeated_seconds(partial(run, bench.device, arrays), REPEATS))
    run(watched, arrays)
    return Timing(timing.seconds / plan.pieces, timing.spread), Timing.of_host(watched.seconds)


def plan_in_images(
    bench: Bench, x: TensorSpec
) -> tuple[Plan, Callable[[Device, Mapping[str, Source]], object]]:
    """Plan an activation of x, one image after the other; return what runs it, too."""
    request = plan_request(
        "activation_forward", x=x, out=x, machine=shipped("host"), memory_limit=bench.limit_bytes
    )
    plan = make_plan(request, bench.device.workspace, replace(request.chain.extents, n=1))
    staged, limit = x.placement == "pageable", bench.limit_bytes
    run = make_executor(request, plan).run
    return plan, partial(run, staged=staged, wait=True, limit_bytes=limit)


def measure_staging(session: Session) -> None:
    """Record what staged copies are late by ("latency/...") and "others", where they fit."""
    if session.bench.fits(2 * ROWS_BYTES[session.little]):
        latency(session)
        if not session.on_host:
            session.record("others", others(session))


def others(session: Session) -> Timing:
    """Seconds that a copy is late by each other one in flight, in a call staged both ways.

    Measured as it happens, not copy by copy. The slower ring decides what the call takes and the
    other one waits for it, so that the least that either tells is what both are late by.
    """
    large = staged_bytes(session)
    pieces = min(MOST_TURNS, session.hosts["pageable"]["copy_in"].array.nbytes // large)
    timing, slots = staged_call(session, large, pieces)
    delays = []
    for way in DIRECTIONS:
        alone = latency_line(session.measured[f"latency/{way}/pageable"].by_work())
        turning = timing.seconds / pieces * float(staging_slots(way, large, slots))
        delays.append(turning - alone.seconds(large) - copy_seconds(session, way, large))
    # both rings of that call are as deep
    return timing._replace(seconds=max(min(delays), 0.0) / (2 * slots - 1))


def staged_call(session: Session, nbytes: int, pieces: int) -> tuple[Timing, int]:
    """Seconds of a call that is staged both ways, and the slots of its rings."""
    x = TensorSpec((pieces, 1, 1, nbytes // 4), "float32", "pageable")
    plan, run = plan_in_images(session.bench, x)
    plain = session.hosts["pageable"]

    def once() -> None:
        memory = (plain[way].next(pieces * nbytes).reshape(x.shape) for way in DIRECTIONS)
        run(session.device, dict(zip("xy", memory, strict=True)))

    return Timing.of(repeated_seconds(once, STAGED_REPEATS)), dict(plan.rings)["x"]


def _one_piece(bench: Bench) -> tuple[Timing, Timing] | None:
    """Seconds of public functions of few and of many operands on next to nothing.

    None for a device that none can use.
    """
    kind = bench.device.kind
    if kind not in ("host", "cuda"):
        return None
    name = kind if kind == "host" else f"cuda:{getattr(bench.device, 'index', 0)}"
    x, y = _ones(bench, FILTERS), _ones(bench, FILTERS)
    more = [_ones(bench, FILTERS[1:2]) for _ in range(MORE_OPERANDS)]
    calls = (
        partial(activation_forward, x, out=y),
        partial(batch_normalization_forward_inference, x, *more, out=y),
    )
    with settings(device=name, machine=shipped("host"), progress=False, verify=0):
        few, many = (Timing.of_host(repeated_seconds(call, CALL_REPEATS)) for call in calls)
    return few, many


def _ones(bench: Bench, shape: tuple[int, ...], placement: str = "pinned") -> HostArray:
    if placement == "pageable":
        return np.ones(shape, np.float32)
    array: Any = bench.device.allocate_pinned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array[...] = 1.0
    return array
