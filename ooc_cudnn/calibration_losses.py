"""What a calibration measures of computing beside copies, where the same processors do both.

Calls are run with overlap and without. What overlap does not save of the copies is what computing
lost to them. A card loses next to nothing to copies and to the steps that the host issues, so that
nothing is measured there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.measuring import Bench, Timing
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.pipeline.request import Request
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

#: Names of functions, and arguments.
Calls = tuple[tuple[str, Mapping[str, Any]], ...]

X = TensorSpec((32, 16, 64, 64), "float32", "pinned")
W = TensorSpec((16, 16, 3, 3), "float32", "pinned")
#: Images of a piece: a megabyte.
PIECE_IMAGES = 4
#: Passes that are bound by memory and by arithmetic, and what is gathered into columns.
CALLS: Calls = (
    ("activation_forward", {"x": X, "mode": "sigmoid"}),
    ("pooling_forward", {"x": X, "window": 2}),
    ("softmax_forward", {"x": X}),
    ("activation_backward", {"y": X, "dy": X, "x": X, "mode": "relu"}),
    ("convolution_forward", {"x": X, "w": W, "padding": 1}),
)
MOST_OPERANDS = 4
#: A quick calibration makes every so-manieth of them.
QUICK_STEP = 2
REPEATS, QUICK_REPEATS = 5, 3


def measured_losses(bench: Bench, *, quick: bool) -> dict[str, Timing]:
    """Seconds that computing loses for each second beside it, as `MachineModel.losses` has them.

    Returns
    -------
    dict
        Of "copies" the median over calls, and how far those lie from it; 1 where overlap saves
        nothing. Of "steps" 1: Python runs one thread at a time, so what issues a step holds up what
        computes. Nothing on a card, or where the memory limit leaves no room.
    """
    if bench.device.kind != "host" or not bench.fits(MOST_OPERANDS * X.nbytes):
        return {}
    calls = CALLS[:: QUICK_STEP if quick else 1]
    repeats = QUICK_REPEATS if quick else REPEATS
    found = [_loss(bench, request, repeats) for request in _requests(bench, calls)]
    return {"copies": Timing.of(found), "steps": Timing(1.0, 0.0)}


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
