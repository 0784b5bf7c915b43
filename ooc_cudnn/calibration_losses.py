"""What a calibration measures of computing beside copies.

Where the same processors do both, calls are run with overlap and without: what overlap does not
save of the copies is what computing lost to them. A card has engines for copies, which take some of
the bandwidth of its memory: there, launches are timed alone and while both directions are busy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.calibration_compute import launches_of
from ooc_cudnn.calibration_link import DIRECTIONS, MOST_COPIES
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.measuring import Bench, Timing, offsets_of
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.pipeline.pricing import aligned
from ooc_cudnn.pipeline.request import Request
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

#: Names of functions, and arguments.
Calls = tuple[tuple[str, Mapping[str, Any]], ...]


def _calls(shape: tuple[int, ...]) -> Calls:
    """Passes that are bound by memory and by arithmetic, and a convolution."""
    x = TensorSpec(shape, "float32", "pinned")
    w = TensorSpec((shape[1], shape[1], 3, 3), "float32", "pinned")
    return (
        ("activation_forward", {"x": x, "mode": "sigmoid"}),
        ("pooling_forward", {"x": x, "window": 2}),
        ("softmax_forward", {"x": x}),
        ("activation_backward", {"y": x, "dy": x, "x": x, "mode": "relu"}),
        ("convolution_forward", {"x": x, "w": w, "padding": 1}),
    )


#: Of x: on the host, in pieces of a megabyte; on a card, for launches that take longer than to
#: launch them. And the most operands of its size.
HOST_SHAPE, PIECE_IMAGES, CARD_SHAPE = (32, 16, 64, 64), 4, (1024, 64, 32, 32)
MOST_OPERANDS = 4
#: Bytes of each of the copies beside launches.
COPY_BYTES = 2**24
#: A quick calibration makes every so-manieth of the calls.
QUICK_STEP = 2
REPEATS, QUICK_REPEATS = 5, 3


def measured_losses(bench: Bench, *, quick: bool) -> dict[str, Timing]:
    """Seconds that computing loses for each second beside it, as `MachineModel.losses` has them.

    Returns
    -------
    dict
        Of "copies" the median over calls, and how far those lie from it; 1 where overlap saves
        nothing. Of "steps", on the host device, 1: Python runs one thread at a time, so what issues
        a step holds up what computes. Nothing where the memory limit leaves no room.
    """
    on_host = bench.device.kind == "host"
    shape = HOST_SHAPE if on_host else CARD_SHAPE
    if not bench.fits(MOST_OPERANDS * 4 * math.prod(shape) + 2 * COPY_BYTES):
        return {}
    calls = _calls(shape)[:: QUICK_STEP if quick else 1]
    if not on_host:
        memory = [bench.device.allocate_pinned(2 * COPY_BYTES).view(np.float32) for _ in range(2)]
        lost = [_loss_on_card(bench, memory, *call) for call in calls]
        return {"copies": Timing.of([share for share in lost if share is not None])}
    repeats = QUICK_REPEATS if quick else REPEATS
    found = [_loss(bench, request, repeats) for request in _requests(bench, calls)]
    return {"copies": Timing.of(found), "steps": Timing(1.0, 0.0)}


def _loss_on_card(
    bench: Bench, memory: Sequence[Any], function: str, arguments: Mapping[str, Any]
) -> float | None:
    """The share of its pace that a launch loses while both directions are busy, half for each.

    None where the memory limit leaves no room for its scratch.
    """
    layout = bench.device.layouts("float32")[-1]
    launch, buffers = next(launches_of(function, arguments, layout))
    offsets, held = offsets_of(buffers)
    scratch = bench.workspace(launch, buffers, held + 2 * COPY_BYTES)
    if scratch is None:
        return None
    slots = held + aligned(scratch)
    base = bench.reserve(slots + 2 * COPY_BYTES)
    pointers = {name: base + offset for name, offset in offsets.items()}
    for name, buffer in buffers.items():
        if name in launch.inputs:
            bench.fill(pointers[name], buffer.nbytes, buffer.dtype)
    computing = {"compute": bench.action(launch, buffers, pointers, (base + held, scratch))}
    copying = {
        direction: bench.copy(direction, base + slots + at * COPY_BYTES, host, COPY_BYTES // 4)
        for at, (direction, host) in enumerate(zip(DIRECTIONS, memory, strict=True))
    }
    alone, beside = bench.in_turns(
        [
            bench.prepare(actions, staged=False, most=MOST_COPIES)
            for actions in (computing, computing | copying)
        ]
    )
    return max(1.0 - alone["compute"].seconds / beside["compute"].seconds, 0.0) / 2.0


def _requests(bench: Bench, calls: Calls) -> Iterator[Request]:
    for function, arguments in calls:
        yield plan_request(
            function, machine=shipped("host"), memory_limit=bench.limit_bytes, **arguments
        )


def _loss(bench: Bench, request: Request, repeats: int) -> float:
    """Seconds, of each second of the copies that overlap, that overlap does not save."""
    whole = request.chain.extents
    plan = make_plan(request, bench.device.workspace, replace(whole, n=PIECE_IMAGES))
    arrays = {name: _random(bench, spec.shape) for name, spec in request.operands}
    executors = [
        make_executor(request, replace(plan, overlap=overlap)) for overlap in (False, True)
    ]
    seconds: list[list[float]] = [[], []]
    copies = []
    for _ in range(repeats):
        for executor, taken in zip(executors, seconds, strict=True):
            began = time.perf_counter()
            trace = executor.run(
                bench.device, arrays, staged=False, wait=True, timed=True,
                limit_bytes=bench.limit_bytes,
            )  # fmt: skip
            taken.append(time.perf_counter() - began)
            if executor is executors[0] and trace is not None:
                copies.append(trace.busy_seconds("copy_in") + trace.busy_seconds("copy_out"))
    # the first copy in and the last copy out have nothing to overlap with
    beside = float(np.median(copies)) * (1.0 - 1.0 / plan.pieces)
    saved = float(np.median(seconds[0]) - np.median(seconds[1]))
    return min(max(1.0 - saved / beside, 0.0), 1.0)


def _random(bench: Bench, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    array = bench.device.allocate_pinned(4 * count).view(np.float32)
    array[:] = np.random.default_rng(0).standard_normal(count, np.float32)
    return array.reshape(shape)
