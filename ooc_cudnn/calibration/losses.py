"""What computing loses to what runs beside it.

Where the same processors do both, calls are run with overlap and without, in small pieces and in
large ones: what overlap saves the less of, the longer copies last, computing lost to them. A card
has engines for copies, which take some of the bandwidth of its memory: there, launches are timed
alone and while both directions are busy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.calibration.compute import launches_of
from ooc_cudnn.calibration.link import MOST_COPIES
from ooc_cudnn.calibration.session import DIRECTIONS
from ooc_cudnn.calibration.steps import cut_into_images
from ooc_cudnn.devices.measuring import Bench, HostMemory, Next, Timing
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.pipeline.trace import Trace
from ooc_cudnn.tensor import TensorSpec

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
    calls = [_calls(shape)[:: QUICK_STEP if quick else 1] for shape in shapes]
    if on_host:
        repeats = QUICK_REPEATS if quick else REPEATS
        found = [_loss(bench, alike, repeats) for alike in zip(*calls, strict=True)]
        return {"copies": Timing.of(found), "steps": Timing(1.0, 0.0)}
    pinned = (bench.device.allocate_pinned(2 * COPY_BYTES).view(np.float32) for _ in DIRECTIONS)
    memory = {way: HostMemory(array) for way, array in zip(DIRECTIONS, pinned, strict=True)}
    lost = [_loss_on_card(bench, memory, *call) for call in calls[0]]
    return {"copies": Timing.of([share for share in lost if share is not None])}


def _calls(shape: tuple[int, ...]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
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


def _loss_on_card(
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
    alone, beside = bench.in_turns(
        [
            bench.prepare(actions, staged=False, most=MOST_COPIES)
            for actions in (computing, computing | copying)
        ]
    )
    return max(1.0 - alone["compute"].seconds / beside["compute"].seconds, 0.0) / 2.0


def _loss(bench: Bench, alike: tuple[tuple[str, Mapping[str, Any]], ...], repeats: int) -> float:
    """Of each second that longer copies overlap for, what overlap does not save.

    What it takes whatever the size of pieces, as threads hand them on, is no loss to copies.
    """
    calls = [_Overlapping(bench, *call) for call in alike]
    for _ in range(repeats):
        for call in calls:
            call.run()
    (small_beside, small), (beside, not_saved) = (call.seconds() for call in calls)
    return min(max((not_saved - small) / (beside - small_beside), 0.0), 1.0)


class _Overlapping:
    """A call in pieces, run without overlap and with it."""

    def __init__(self, bench: Bench, function: str, arguments: Mapping[str, Any]) -> None:
        self.bench = bench
        request, plan = cut_into_images(bench, function, arguments, PIECES)
        self.arrays = {name: _random(bench, spec.shape) for name, spec in plan.operands}
        self.executors = [
            make_executor(request, replace(plan, overlap=overlap)) for overlap in (False, True)
        ]
        self.traces: tuple[list[Trace], list[Trace]] = [], []

    def run(self) -> None:
        """Run it once in either way."""
        for executor, traces in zip(self.executors, self.traces, strict=True):
            trace = executor.run(
                self.bench.device, self.arrays, staged=False, wait=True, timed=True,
                limit_bytes=self.bench.limit_bytes,
            )  # fmt: skip
            traces += [trace] if trace else []

    def seconds(self) -> tuple[float, float]:
        """Of copies that can overlap, and of those what overlap does not save."""
        in_turn, overlapped = (
            statistics.median(trace.seconds for trace in traces) for traces in self.traces
        )
        copying = statistics.median(
            sum(trace.busy_seconds(way) for way in DIRECTIONS) for trace in self.traces[0]
        )
        # the first copy in and the last copy out have nothing to overlap with
        beside = copying * (1.0 - 1.0 / PIECES)
        return beside, beside - (in_turn - overlapped)


def _random(bench: Bench, shape: tuple[int, ...]) -> Any:
    array = bench.device.allocate_pinned(4 * math.prod(shape)).view(np.float32)
    few = np.random.default_rng(0).standard_normal(min(array.size, FEW_NUMBERS), np.float32)
    array[:] = np.resize(few, array.size)
    return array.reshape(shape)
