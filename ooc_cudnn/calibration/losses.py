"""What computing loses to what runs beside it.

A card has engines for copies, which take some of the bandwidth of its memory: launches are timed
alone and while both directions are busy. On the host device the same processors do both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.calibration.compute import launches_of
from ooc_cudnn.calibration.link import MOST_COPIES
from ooc_cudnn.calibration.session import DIRECTIONS
from ooc_cudnn.devices.measuring import Bench, HostMemory, Next, Timing
from ooc_cudnn.tensor import TensorSpec

#: On the host device a second of copies costs a second of computing, and so does one of issuing
#: steps: processors do one or the other, and Python runs one thread at a time.
HOST_LOSSES = {"copies": Timing(1.0, 0.0), "steps": Timing(1.0, 0.0)}
#: Of x and w, for launches that take longer than to launch them.
SHAPE, FILTERS = (1024, 64, 32, 32), (64, 64, 3, 3)
#: Operands of the size of x, at most.
MOST_OPERANDS = 4
#: Bytes of each of the copies beside launches.
COPY_BYTES = 2**24
#: A quick calibration makes every so-manieth of the calls.
QUICK_STEP = 3


def measured_losses(bench: Bench, *, quick: bool) -> Mapping[str, Timing]:
    """Seconds that computing loses for each second beside it, as `MachineModel.losses` has them.

    Returns
    -------
    mapping
        Of a card that of "copies", the median over calls, and how far those lie from it; nothing
        where the memory limit leaves no room.
    """
    if bench.device.kind == "host":
        return HOST_LOSSES
    if not bench.fits(MOST_OPERANDS * 4 * math.prod(SHAPE) + 2 * COPY_BYTES):
        return {}
    pinned = (bench.device.allocate_pinned(2 * COPY_BYTES).view(np.float32) for _ in DIRECTIONS)
    memory = {way: HostMemory(array) for way, array in zip(DIRECTIONS, pinned, strict=True)}
    lost = [_loss(bench, memory, *call) for call in _calls()[:: QUICK_STEP if quick else 1]]
    return {"copies": Timing.of([share for share in lost if share is not None])}


def _calls() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Passes that are bound by memory and by arithmetic, and a convolution."""
    x, w = (TensorSpec(shape, "float32", "pinned") for shape in (SHAPE, FILTERS))
    return (
        ("activation_forward", {"x": x, "mode": "sigmoid"}),
        ("pooling_forward", {"x": x, "window": 2}),
        ("softmax_forward", {"x": x}),
        ("activation_backward", {"y": x, "dy": x, "x": x, "mode": "relu"}),
        ("convolution_forward", {"x": x, "w": w, "padding": 1}),
    )


def _loss(
    bench: Bench, memory: Mapping[str, HostMemory], function: str, arguments: Mapping[str, Any]
) -> float | None:
    """The share of its pace that a launch loses while both directions are busy, half for each.

    None where the memory limit leaves no room for its scratch.
    """
    layout = bench.device.layouts("float32")[-1]
    launch, buffers = next(launches_of(function, arguments, layout))
    placed = bench.placed(launch, buffers, beside_bytes=2 * COPY_BYTES)
    if placed is None:
        return None
    computing, copying = {"compute": placed.action}, dict[str, Next]()
    for at, way in enumerate(DIRECTIONS):
        region = partial(memory[way].next, COPY_BYTES)
        copying[way] = bench.copies(way, placed.beside + at * COPY_BYTES, region)
    at_once = computing, computing | copying
    measures = [bench.prepare(of, staged=False, most=MOST_COPIES) for of in at_once]
    alone, beside = bench.in_turns(measures)
    return max(1.0 - alone["compute"].seconds / beside["compute"].seconds, 0.0) / 2.0
