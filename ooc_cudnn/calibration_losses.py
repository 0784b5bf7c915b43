"""What a calibration measures of computing beside copies, where the same processors do both.

Each launch is timed alone, and while copies stream past in both directions. On a card, copies and
the steps that the host issues leave computing alone, and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.functions.plan import described
from ooc_cudnn.measuring import Action, Bench, Timing
from ooc_cudnn.operations.splittable import Buffer, Launch, Piece
from ooc_cudnn.pipeline.pricing import aligned
from ooc_cudnn.tensor import TensorSpec

#: Names of functions, and arguments.
Calls = tuple[tuple[str, Mapping[str, Any]], ...]

DIRECTIONS = ("copy_in", "copy_out")
X = TensorSpec((4, 32, 64, 64), "float32", "pinned")
W = TensorSpec((32, 32, 3, 3), "float32", "pinned")
#: Passes that are bound by memory and by arithmetic, and what is gathered into columns.
CALLS: Calls = (
    ("activation_forward", {"x": X, "mode": "sigmoid"}),
    ("pooling_forward", {"x": X, "window": 2}),
    ("softmax_forward", {"x": X}),
    ("activation_backward", {"y": X, "dy": X, "x": X, "mode": "relu"}),
    ("convolution_forward", {"x": X, "w": W, "padding": 1}),
)
#: A quick calibration makes every so-manieth of them.
QUICK_STEP = 2
#: Bytes of a copy, and of what it streams through: more than processors cache.
COPY_BYTES, HOST_BYTES = 2**20, 2**25
BATCHES, BATCH_SECONDS, MOST_STEPS = 3, 0.01, 256


def measured_losses(bench: Bench, *, quick: bool) -> dict[str, Timing]:
    """Seconds that computing loses for each second beside it, as `MachineModel.losses` has them.

    Returns
    -------
    dict
        Of "copies" the median over launches, and how far those lie from it. Of "steps" 1: Python
        runs one thread at a time, so what issues a step holds up what computes. Nothing on a card,
        or where the memory limit leaves no room.
    """
    if bench.device.kind != "host":
        return {}
    host = {
        direction: bench.device.allocate_pinned(HOST_BYTES).view(np.float32)
        for direction in DIRECTIONS
    }
    for memory in host.values():
        memory[:] = 1.0
    bench = Bench(bench.device, bench.limit_bytes, batches=BATCHES, batch_seconds=BATCH_SECONDS)
    calls = CALLS[:: QUICK_STEP if quick else 1]
    losses = [_loss(bench, *each, host) for each in _launches(calls)]
    found = [loss for loss in losses if loss is not None]
    if not found:
        return {}
    return {"copies": Timing.of([min(loss, 1.0) for loss in found]), "steps": Timing(1.0, 0.0)}


def _launches(calls: Calls) -> Iterator[tuple[Launch, Mapping[str, Buffer]]]:
    """The first launch of each call, on all of its data."""
    for function, arguments in calls:
        call = described(function, **arguments)
        whole = call.extents
        piece = Piece((0, whole.n), (0, whole.c_y), (0, whole.h_y), (0, whole.c_x), 0)
        orders = dict.fromkeys(call.operands, "channels_first")
        launches, buffers = call.launches(piece, layout="channels_first", orders=orders)
        names = (*launches[0].inputs, launches[0].output)
        yield launches[0], {name: buffers[name] for name in names if name}


def _loss(
    bench: Bench, launch: Launch, buffers: Mapping[str, Buffer], host: Mapping[str, HostArray]
) -> float | None:
    """Seconds that a launch loses for each second that copies take alone; None without room."""
    sizes = {name: aligned(buffer.nbytes) for name, buffer in buffers.items()}
    held = sum(sizes.values()) + len(DIRECTIONS) * COPY_BYTES
    scratch = bench.workspace(launch, buffers, held) if bench.fits(held) else None
    if scratch is None:
        return None
    pointers, at = {}, bench.reserve(held + aligned(scratch))
    for name, size in sizes.items():
        bench.fill(at, buffers[name].nbytes, buffers[name].dtype)
        pointers[name], at = at, at + size
    copies: dict[str, Callable[[int], Action]] = {}
    for direction, memory in host.items():
        copies[direction] = bench.copy(direction, at, memory, COPY_BYTES // 4)
        at += COPY_BYTES
    compute = {"compute": bench.action(launch, buffers, pointers, (at, scratch))}
    measures = [
        bench.prepare(actions, staged=False, most=MOST_STEPS)
        for actions in (compute, copies, {**compute, **copies})
    ]
    alone, copying, together = bench.in_turns(measures)
    seconds = together["compute"].seconds
    beside = sum(
        seconds * copying[direction].seconds / together[direction].seconds
        for direction in DIRECTIONS
    )
    return max(seconds - alone["compute"].seconds, 0.0) / beside
