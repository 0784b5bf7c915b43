"""What a calibration measures of the host: how long it takes to issue the steps of a call.

Pieces of a few bytes cost the device nothing; what a call of many of them takes is the host's.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.measuring import Bench, Timing
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

#: Images of a few bytes, each a piece of its own.
SHAPE = (256, 1, 1, 64)
#: How often they are gone through.
REPEATS = 7


def step_seconds(bench: Bench) -> Timing:
    """Seconds of one step of a call whose pieces are next to nothing."""
    device = bench.device
    x = TensorSpec(SHAPE, "float32", "pinned")
    request = plan_request(
        "activation_forward", x=x, out=x, machine=shipped("host"), memory_limit=bench.limit_bytes
    )
    plan = make_plan(request, split=replace(request.chain.extents, n=1))
    executor = make_executor(request, plan)
    operands = {
        name: device.allocate_pinned(x.nbytes).view(np.float32).reshape(SHAPE)
        for name in request.chain.operands
    }
    operands["x"][...] = 1.0

    def measure() -> float:
        began = time.perf_counter()
        executor.run(device, operands, staged=False, wait=True, limit_bytes=bench.limit_bytes)
        return (time.perf_counter() - began) / len(executor.schedule.steps)

    measure()
    return Timing.of([measure() for _ in range(REPEATS)])
