"""Convolutions, their gradients and passes over memory, which `shapes` draws.

Every launch is timed by itself, on the device it will run on. A card has engines for copies, which
take some of the bandwidth of its memory: a few launches are timed while both directions are busy,
too. On the host device the same processors do both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from ooc_cudnn.calibration.copies import MOST_COPIES
from ooc_cudnn.calibration.session import Group, Session
from ooc_cudnn.calibration.shapes import DIRECTIONS, GPU_POOL, HOST_POOL, convolutions, passes
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, HostMemory, Launched, Timing, offsets_of
from ooc_cudnn.engines.autotune import Deadline, EngineTuner
from ooc_cudnn.functions.call.plan_api import tiled_call_of
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import ACCUMULATOR, TensorSpec
from perfmodel.machine import LOSSES

#: Kinds of arithmetic: dtype, and whether TF32 is allowed.
ARITHMETIC = (
    ("float32", True),
    ("float32", False),
    ("float16", True),
    ("bfloat16", True),
    ("float64", True),
)
#: Convolutions of each kind of arithmetic, memory order and direction; those that are depthwise;
#: calls of each pass.
GPU_COUNTS, HOST_COUNTS, QUICK_COUNTS = (10, 4, 3), (6, 2, 3), (1, 0, 1)
#: Types whose passes a quick calibration measures; the others are as much slower or faster.
QUICK_PASSES = ("float32", "float16")
#: Types whose filter gradients are timed by the fastest of so many engines: steps measure them
#: before they run, and what cuDNN's heuristics rank first takes up to nine times as long.
HALF_TYPES, RANKED = ("float16", "bfloat16"), 3
#: Threads that compile all kernels.
BUILDERS = 8
#: How often a launch is timed, and for how long: the fit has many launches to average over.
BATCHES, BATCH_SECONDS = 3, 0.005
#: Beside copies: x and w of launches that take longer than to launch them, with so many operands
#: of the size of x at most; and bytes of each copy. A quick calibration makes every third.
SHAPE, FILTERS, MOST_OPERANDS = (1024, 64, 32, 32), (64, 64, 3, 3), 4
COPY_BYTES, QUICK_STEP = 2**24, 3

Held = TypeVar("Held")


class TimedLaunches:
    """The launches that are timed on a device.

    A quick calibration has fewer: convolutions in one memory order, gradients of one kind of
    arithmetic, passes of two types.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.device, self.quick = session, session.device, session.quick
        limit = session.bench.limit_bytes
        self.bench = Bench(self.device, limit, batches=BATCHES, batch_seconds=BATCH_SECONDS)
        self.pool, counts = (HOST_POOL, HOST_COUNTS) if session.on_host else (GPU_POOL, GPU_COUNTS)
        counts = QUICK_COUNTS if self.quick else counts
        self.convolution_count, self.depthwise_count, self.pass_count = counts
        self.kinds = arithmetic(self.device)
        types = dict.fromkeys(dtype for dtype, _ in self.kinds)
        self.pass_types = [dtype for dtype in types if not self.quick or dtype in QUICK_PASSES]

    def groups(self) -> list[Group]:
        """The measurements, in parts."""
        groups: list[Group] = [self.build] if self.device.kind == "cuda" else []
        for dtype, tf32 in self.kinds:
            forward_alone = self.quick and (dtype, tf32) != self.kinds[0]
            layouts = () if dtype in stand_ins(self.device) else self.device.layouts(dtype)
            drawn = [
                partial(self.convolutions, dtype, layout, direction, tf32)
                for layout in (layouts[-1:] if self.quick else layouts)
                for direction in DIRECTIONS[: 1 if forward_alone else None]
            ]
            if dtype in self.pass_types and (tf32 or self.session.on_host):
                drawn.append(partial(self.passes, dtype))
            groups += [partial(self.measure, launches) for launches in drawn]
        return groups

    def build(self) -> None:
        """Let threads compile the kernels of all passes, by running each of them once."""
        asked = [launched for dtype in self.pass_types for launched in self.passes(dtype)]
        # the largest first: what is reserved for it does for all others, and stays where it is
        asked.sort(key=lambda launched: -offsets_of(launched[1])[1])
        # what does not fit is compiled when it is timed
        placed = [launch for launched in asked if (launch := self.bench.placed(launched))]
        actions = [each.run for each in placed if each.base == placed[-1].base]

        def run_all(handle: Any) -> None:
            with ThreadPoolExecutor(BUILDERS, initializer=self.device.use) as pool:
                list(pool.map(lambda action: action(handle), actions))

        self.bench.spans({"compute": [run_all]}, staged=False)

    def convolutions(
        self, dtype: str, layout: str, direction: str, tf32: bool
    ) -> Iterator[Launched]:
        """Convolutions of one kind of arithmetic, memory order and direction."""
        seed = f"{dtype} {tf32} {layout} {direction}"
        counts = {False: self.convolution_count, True: self.depthwise_count}
        for depthwise, count in counts.items():
            for operation in convolutions(
                seed, self.pool, dtype, allow_tf32=tf32, count=count, depthwise=depthwise
            ):
                yield convolution_launch(replace(operation, layout=layout), direction)

    def passes(self, dtype: str) -> Iterator[Launched]:
        """Launches of the calls that are passes over memory, each on all of its data."""
        for call in passes(dtype, self.pool, dtype, self.pass_count):
            yield from launches_of(*call)

    def measure(self, launches: Callable[[], Iterator[Launched]]) -> None:
        """Time launches, and the host at each; those that the memory limit excludes are left out.

        The largest comes first: what is reserved for it does for all others.
        """
        for launched in reversed(list(launches())):
            if (timed := self._timed(launched)) is not None:
                work, (timing, launching) = launched[0].operation.work(), timed
                self.session.record(work.key, timing, work.amount, work.features)
                if launching is not None:
                    self.session.record(f"launching/{work.key}", Timing(launching, 0.0))

    def _timed(self, launched: Launched) -> tuple[Timing, float | None] | None:
        """Time a launch as it will run, and the host at it; None if there is no room."""
        operation, engines = launched[0].operation, self.device.engines
        is_half = isinstance(operation, ConvolutionBackwardFilter) and operation.dtype in HALF_TYPES
        if engines is None or not is_half:
            return self.bench.time_launch(launched)
        try:
            return EngineTuner(self.device, self.bench, Deadline()).fastest(launched, RANKED)
        finally:
            engines.forget_built()

    def reference(self) -> float | None:
        """Seconds of one convolution that is measured first and last, to see clocks drift.

        None where the memory limit leaves no room for any.
        """
        dtype, tf32 = self.kinds[0]
        drawn = self.convolutions(dtype, self.device.layouts(dtype)[0], DIRECTIONS[0], tf32)
        timed = filter(None, map(self.bench.time_launch, drawn))
        return next((timing.seconds for timing, _ in timed), None)


def losses(session: Session) -> None:
    """Record seconds that computing loses for each second beside it, as `MachineModel` names them.

    Of a card that of "copies", the median over calls, and how far those lie from it; nothing where
    the memory limit leaves no room.
    """
    if session.on_host:
        # A second of copies costs a second of computing, and so does one of issuing steps:
        # processors do one or the other, and Python runs one thread at a time.
        for name in LOSSES:
            session.record(f"losses/{name}", Timing(1.0, 0.0))
    elif session.bench.fits(MOST_OPERANDS * 4 * math.prod(SHAPE) + 2 * COPY_BYTES):
        x, w = (TensorSpec(shape, "float32", "pinned") for shape in (SHAPE, FILTERS))
        # passes that are bound by memory and by arithmetic, and a convolution
        calls: list[tuple[str, Mapping[str, Any]]] = [
            ("activation_forward", {"x": x, "mode": "sigmoid"}),
            ("pooling_forward", {"x": x, "window": 2}),
            ("softmax_forward", {"x": x}),
            ("activation_backward", {"y": x, "dy": x, "x": x, "mode": "relu"}),
            ("convolution_forward", {"x": x, "w": w, "padding": 1}),
        ]
        lost = [_loss(session, *call) for call in calls[:: QUICK_STEP if session.quick else 1]]
        shares = [share for share in lost if share is not None]
        session.record("losses/copies", Timing.of(shares))


def _loss(session: Session, function: str, arguments: Mapping[str, Any]) -> float | None:
    """The share of its pace that a launch loses while both directions are busy, half for each.

    None where the memory limit leaves no room for its scratch.
    """
    bench, layout = session.bench, session.device.layouts("float32")[-1]
    launched = next(launches_of(function, arguments, layout))
    placed = bench.placed(launched, before_bytes=2 * COPY_BYTES)
    if placed is None:
        return None
    regions = {
        way: partial(HostMemory(memory.array[: 2 * COPY_BYTES // 4]).next, COPY_BYTES)
        for way, memory in session.hosts["pinned"].items()
    }
    computing = {"compute": lambda: placed.run}
    beside = computing | bench.copies(placed.base, COPY_BYTES, regions)
    both = bench.steady([computing, beside], staged=False, most=MOST_COPIES)
    alone, slower = (found["compute"].seconds for found in both)
    return max(1.0 - alone / slower, 0.0) / 2.0


def stand_ins(device: Device) -> Mapping[str, str]:
    """Convolutions that are computed as others are: TF32 on the host, bfloat16 on a card."""
    return {"tf32": "float32"} if device.kind == "host" else {"bfloat16": "float16"}


def add_stand_ins(device: Device, lines: Mapping[str, Held]) -> dict[str, Held]:
    """Add the lines that others stand in for, or what else is known by their keys."""
    all_lines = dict(lines)
    for arithmetic, stands_in in stand_ins(device).items():
        start = f"convolution/{stands_in}/"
        for key in filter(lambda key: key.startswith(start), lines):
            all_lines[key.replace(stands_in, arithmetic, 1)] = lines[key]
    return all_lines


def launches_of(function: str, arguments: Mapping[str, Any], layout: str) -> Iterator[Launched]:
    """Launches of a call on all of its data, in one memory order, with the buffers they take."""
    call = tiled_call_of(function, **arguments)
    orders = dict.fromkeys(call.operands, layout)
    for sweep in range(call.sweeps):
        launches, buffers = call.launches(call.whole_piece(sweep), layout=layout, orders=orders)
        for launch in launches:
            used = {name: buffers[name] for name in (*launch.inputs, launch.output) if name}
            yield launch, used


def convolution_launch(operation: Convolution, direction: str) -> Launched:
    """Return the launch of a convolution, or of one of its gradients, and its buffers."""
    dtype, layout = operation.dtype, operation.layout
    shapes = operation.x_shape, operation.w_shape, operation.output_shape
    x, w, y = (Buffer(shape, dtype, layout) for shape in shapes)
    if direction == "backward_data":
        data = ConvolutionBackwardData(operation, dtype)
        return Launch(data, ("w", "dy"), "dx"), {"w": w, "dy": y, "dx": x}
    if direction == "backward_filter":
        filters = ConvolutionBackwardFilter(operation, ACCUMULATOR[dtype])
        dw = w._replace(dtype=ACCUMULATOR[dtype])
        return Launch(filters, ("x", "dy"), "dw"), {"x": x, "dy": y, "dw": dw}
    return Launch(operation, ("x", "w"), "y"), {"x": x, "w": w, "y": y}


def arithmetic(device: Device) -> tuple[tuple[str, bool], ...]:
    """Return the kinds of arithmetic that are worth measuring: the host knows no TF32."""
    kinds = ARITHMETIC[device.kind == "host" :]
    # without ml_dtypes nobody can pass an array of bfloat16
    return tuple(kind for kind in kinds if kind[0] != "bfloat16" or find_spec("ml_dtypes"))
