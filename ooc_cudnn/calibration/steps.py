"""What the host takes: to issue the steps of a call, to launch, to call.

Pieces of a few bytes cost the device nothing; what a call of many of them takes is the host's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import Bench, Timing, Watched, repeated
from ooc_cudnn.functions.batch_normalization import batch_normalization_forward_inference
from ooc_cudnn.functions.elementwise import activation_forward
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import make_plan
from ooc_cudnn.pricing.request import Request
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
    call takes beside, one of more operands what each takes, beside the step that copies it. A
    card's steps are issued by threads, too, on small pieces of plain memory: what takes time there
    is to hand them on.
    """
    simple, launch = _many_pieces(bench, TensorSpec(SHAPE, "float32", "pinned"))
    launch = launch._replace(seconds=min(launch.seconds, simple.seconds / 2))
    step = (simple.seconds - launch.seconds) / 3
    found = {"launch_seconds": launch, "step_seconds": Timing(step, simple.spread)}
    on_host = bench.device.kind == "host"  # whose steps go through threads in any case
    if not on_host:
        staged, _ = _many_pieces(bench, TensorSpec(STAGED_SHAPE, "float32", "pageable"))
        each = max(staged.seconds - launch.seconds, 0.0) / 3
        found["staged_step_seconds"] = Timing(each, staged.spread)
    if (whole := _one_piece(bench)) is not None:
        few, many = whole
        call = max(few.seconds - 3 * step - launch.seconds, 0.0)
        found["call_seconds"] = Timing(call, few.spread)
        if not on_host:  # there, steps do not follow each other
            each = max((many.seconds - few.seconds) / MORE_OPERANDS - step, 0.0)
            found["operand_seconds"] = Timing(each, many.spread)
    return found


def _many_pieces(bench: Bench, x: TensorSpec) -> tuple[Timing, Timing]:
    """Seconds of a piece of an activation that is cut into images, and of its launch."""
    executor = make_executor(*cut_into_images(bench, x))
    plan, staged = executor.plan, x.placement == "pageable"
    arrays: dict[str, Source] = {
        name: np.ones(spec.shape, np.float32) if staged else _pinned(bench, spec.shape)
        for name, spec in plan.operands
    }
    watched, limit = Watched(bench.device), bench.limit_bytes
    run = partial(executor.run, operands=arrays, staged=staged, wait=True, limit_bytes=limit)
    timing = Timing.of_host(repeated(partial(run, bench.device), REPEATS))
    run(watched)
    return Timing(timing.seconds / plan.pieces, timing.spread), Timing.of_host(watched.seconds)


def cut_into_images(bench: Bench, x: TensorSpec) -> tuple[Request, Plan]:
    """What computes an activation of x one image after the other: for `make_executor`."""
    request = plan_request(
        "activation_forward", x=x, out=x, machine=shipped("host"), memory_limit=bench.limit_bytes
    )
    image = replace(request.chain.extents, n=1)
    return request, make_plan(request, bench.device.workspace, image)


def _one_piece(bench: Bench) -> tuple[Timing, Timing] | None:
    """Seconds of public functions of few and of many operands on next to nothing.

    None for a device that none can use.
    """
    kind = bench.device.kind
    if kind not in ("host", "cuda"):
        return None
    name = kind if kind == "host" else f"cuda:{getattr(bench.device, 'index', 0)}"
    x, y = _pinned(bench, FILTERS), _pinned(bench, FILTERS)
    more = [_pinned(bench, FILTERS[1:2]) for _ in range(MORE_OPERANDS)]
    calls = (
        partial(activation_forward, x, out=y),
        partial(batch_normalization_forward_inference, x, *more, out=y),
    )
    with settings(device=name, machine=shipped("host"), progress=False, verify=0):
        few, many = (Timing.of_host(repeated(call, CALL_REPEATS)) for call in calls)
    return few, many


def _pinned(bench: Bench, shape: tuple[int, ...]) -> HostArray:
    array: Any = bench.device.allocate_pinned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array[...] = 1.0
    return array
