"""What a calibration measures of computing beside copies.

Where the same processors do both, calls are run with overlap and without, in small pieces and in
large ones: what overlap saves the less of, the longer copies last, computing lost to them. A card
has engines for copies, which take some of the bandwidth of its memory: there, launches are timed
alone and while both directions are busy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.calibration.compute import launches_of
from ooc_cudnn.calibration.link import DIRECTIONS, MOST_COPIES
from ooc_cudnn.devices.measuring import Bench, Timing, offsets_of
from ooc_cudnn.functions.plan import plan_request
from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.planner import make_plan
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


#: Of x on the host, in so many pieces: of one megabyte and of eight.
HOST_SHAPES, PIECES = ((32, 16, 64, 64), (256, 16, 64, 64)), 8
#: Of x on a card, for launches that take longer than to launch them.
CARD_SHAPE = (1024, 64, 32, 32)
#: Operands of the size of x, at most.
MOST_OPERANDS = 4
#: Random numbers that are repeated: making them takes longer than computing with them.
FEW_NUMBERS = 2**16
#: Bytes of each of the copies beside launches.
COPY_BYTES = 2**24
#: A quick calibration makes every so-manieth of the calls.
QUICK_STEP = 3
REPEATS, QUICK_REPEATS = 5, 3


def measured_losses(bench: Bench, *, quick: bool) -> dict[str, Timing]:
    """Seconds that computing loses for each second beside it, as `MachineModel.losses` has them.

    Returns
    -------
    dict
        Of "copies" the median over calls, and how far those lie from it; 1 where overlap saves
        nothing more of longer copies. Of "steps", on the host device, 1: Python runs one thread at
        a time, so what issues a step holds up what computes. Nothing where the memory limit leaves
        no room.
    """
    on_host = bench.device.kind == "host"
    shapes = HOST_SHAPES if on_host else (CARD_SHAPE,)
    if not bench.fits(MOST_OPERANDS * 4 * math.prod(shapes[-1]) + 2 * COPY_BYTES):
        return {}
    step = QUICK_STEP if quick else 1
    if not on_host:
        calls = _calls(CARD_SHAPE)[::step]
        memory = [bench.device.allocate_pinned(2 * COPY_BYTES).view(np.float32) for _ in range(2)]
        lost = [_loss_on_card(bench, memory, *call) for call in calls]
        return {"copies": Timing.of([share for share in lost if share is not None])}
    repeats = QUICK_REPEATS if quick else REPEATS
    sizes = [_requests(bench, _calls(shape)[::step]) for shape in shapes]
    found = [_loss(bench, requests, repeats) for requests in zip(*sizes, strict=True)]
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


def _loss(bench: Bench, requests: Sequence[Request], repeats: int) -> float:
    """Of each second that longer copies overlap for, what overlap does not save.

    What it takes whatever the size of pieces, as threads hand them on, is no loss to copies.
    """
    calls = [_Overlapping(bench, request) for request in requests]
    for _ in range(repeats):
        for call in calls:
            call.run()
    (small_beside, small), (beside, not_saved) = (call.seconds() for call in calls)
    return min(max((not_saved - small) / (beside - small_beside), 0.0), 1.0)


class _Overlapping:
    """A call in pieces, run without overlap and with it."""

    def __init__(self, bench: Bench, request: Request) -> None:
        self.bench = bench
        whole = request.chain.extents
        plan = make_plan(request, bench.device.workspace, replace(whole, n=whole.n // PIECES))
        self.arrays = {name: _random(bench, spec.shape) for name, spec in request.operands}
        self.executors = [
            make_executor(request, replace(plan, overlap=overlap)) for overlap in (False, True)
        ]
        self.taken: tuple[list[float], list[float]] = [], []
        self.copying: list[float] = []

    def run(self) -> None:
        """Run it once in either way."""
        for executor, taken in zip(self.executors, self.taken, strict=True):
            began = time.perf_counter()
            trace = executor.run(
                self.bench.device, self.arrays, staged=False, wait=True, timed=True,
                limit_bytes=self.bench.limit_bytes,
            )  # fmt: skip
            taken.append(time.perf_counter() - began)
            if executor is self.executors[0] and trace is not None:
                self.copying.append(trace.busy_seconds("copy_in") + trace.busy_seconds("copy_out"))

    def seconds(self) -> tuple[float, float]:
        """Of copies that can overlap, and of those what overlap does not save."""
        # the first copy in and the last copy out have nothing to overlap with
        beside = float(np.median(self.copying)) * (1.0 - 1.0 / PIECES)
        in_turn, overlapped = (float(np.median(taken)) for taken in self.taken)
        return beside, beside - (in_turn - overlapped)


def _random(bench: Bench, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    array = bench.device.allocate_pinned(4 * count).view(np.float32)
    few = np.random.default_rng(0).standard_normal(min(count, FEW_NUMBERS), np.float32)
    array[:] = np.resize(few, count)
    return array.reshape(shape)
