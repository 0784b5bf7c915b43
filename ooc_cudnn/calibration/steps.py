"""What a calibration measures of the host: what it takes to issue the steps of a call.

Pieces of a few bytes cost the device nothing; what a call of many of them takes is the host's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import Bench, Timing, Watched, undisturbed
from ooc_cudnn.functions.batch_normalization import batch_normalization_forward_inference
from ooc_cudnn.functions.elementwise import activation_forward
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.pipeline.execute import Executor, Source, make_executor
from ooc_cudnn.pipeline.plan import Plan
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

#: Images of a few bytes, each a piece of its own; and of so many that threads stage them.
SHAPE, STAGED_SHAPE = (64, 8, 2, 8), (64, 8, 64, 64)
FILTERS = (8, 8, 1, 1)
#: Scale, bias, mean and variance: what a normalisation reads beside what an activation does.
MORE_OPERANDS = 4
#: How often they are gone through; and calls of one piece, which are short.
REPEATS, CALL_REPEATS = 3, 9


def host_seconds(bench: Bench) -> Mapping[str, Timing]:
    """Seconds of a call, an operand, a launch and a step, as `MachineModel` names them.

    A piece of an activation takes three steps and one launch; and a call of one piece tells what a
    call takes beside, one of more operands what each takes, beside the step that copies it. Each
    is the lower quartile of several: what disturbs a host only adds. A card's steps are issued by
    threads, too, on small pieces of plain memory: what takes time there is to hand them on.
    """
    x = TensorSpec(SHAPE, "float32", "pinned")
    simple, watched = _many_pieces(bench, "activation_forward", x=x)
    launch = Timing(undisturbed(watched.seconds), Timing.of(watched.seconds).spread)
    launch = launch._replace(seconds=min(launch.seconds, simple.seconds / 2))
    step = (simple.seconds - launch.seconds) / 3
    found = {"launch_seconds": launch, "step_seconds": Timing(step, simple.spread)}
    if bench.device.kind != "host":  # whose steps go through threads in any case
        plain = TensorSpec(STAGED_SHAPE, "float32", "pageable")
        staged, _ = _many_pieces(bench, "activation_forward", staged=True, x=plain)
        each = max(staged.seconds - launch.seconds, 0.0) / 3
        found["staged_step_seconds"] = Timing(each, staged.spread)
    whole = _one_piece(bench)
    if whole is not None:
        few, many = whole
        call = max(few.seconds - 3 * step - launch.seconds, 0.0)
        found["call_seconds"] = Timing(call, few.spread)
        if bench.device.kind != "host":  # there, steps do not follow each other
            each = max((many.seconds - few.seconds) / MORE_OPERANDS - step, 0.0)
            found["operand_seconds"] = Timing(each, many.spread)
    return found


def _many_pieces(
    bench: Bench, function: str, *, staged: bool = False, **operands: TensorSpec
) -> tuple[Timing, Watched]:
    """Seconds of a piece of a call that is cut into images, and of its launches."""
    executor, plan = cut_into_images(bench, function, operands)
    arrays = {
        name: np.ones(spec.shape, np.float32) if staged else _pinned(bench, spec.shape)
        for name, spec in plan.operands
    }
    timing = _timed(lambda: run_pieces(bench, executor, arrays, staged=staged))
    watched = Watched(bench.device)
    if not staged:
        run_pieces(bench, executor, arrays, staged=False, device=watched)
    return Timing(timing.seconds / plan.pieces, timing.spread), watched


def cut_into_images(
    bench: Bench,
    function: str,
    operands: Mapping[str, TensorSpec],
    *,
    out: TensorSpec | None = None,
) -> tuple[Executor, Plan]:
    """What runs a call, whose result is as x is by default, one image after the other."""
    request = plan_request(
        function, out=out or operands["x"], machine=shipped("host"),
        memory_limit=bench.limit_bytes, **operands,
    )  # fmt: skip
    whole = request.chain.extents
    plan = make_plan(request, bench.device.workspace, replace(whole, n=1))
    return make_executor(request, plan), plan


def run_pieces(
    bench: Bench,
    executor: Executor,
    arrays: Mapping[str, Source],
    *,
    staged: bool,
    device: Any = None,
) -> None:
    """Run a call on the host's arrays, and wait for it; on another device than the bench's."""
    where = bench.device if device is None else device
    executor.run(where, arrays, staged=staged, wait=True, limit_bytes=bench.limit_bytes)


def _one_piece(bench: Bench) -> tuple[Timing, Timing] | None:
    """Seconds of public functions of few and of many operands on next to nothing.

    None for a device that none can use.
    """
    name = {"host": "host", "cuda": f"cuda:{getattr(bench.device, 'index', 0)}"}.get(
        bench.device.kind
    )
    if name is None:
        return None
    x, y = _pinned(bench, FILTERS), _pinned(bench, FILTERS)
    more = [_pinned(bench, FILTERS[1:2]) for _ in range(MORE_OPERANDS)]
    with settings(device=name, machine=shipped("host"), progress=False, verify=0):
        few = _timed(lambda: activation_forward(x, out=y), CALL_REPEATS)
        many = _timed(lambda: batch_normalization_forward_inference(x, *more, out=y), CALL_REPEATS)
    return few, many


def _pinned(bench: Bench, shape: tuple[int, ...]) -> HostArray:
    array: Any = bench.device.allocate_pinned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array[...] = 1.0
    return array


def _timed(run: Callable[[], None], repeats: int = REPEATS) -> Timing:
    run()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return Timing(undisturbed(found), Timing.of(found).spread)
