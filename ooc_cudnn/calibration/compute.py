"""Convolutions, their gradients and passes over memory; `shapes` draws them.

Every launch is timed by itself, on the device it will run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ooc_cudnn.calibration.session import Group, Session
from ooc_cudnn.calibration.shapes import DIRECTIONS, GPU_POOL, HOST_POOL, convolutions, passes
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.measuring import Bench, Timing, offsets_of
from ooc_cudnn.functions.plan import splittable_of
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.operations.splittable import Buffer, Launch, Piece
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype

#: Kinds of arithmetic: dtype, and whether TF32 is allowed.
ARITHMETIC = (
    ("float32", True),
    ("float32", False),
    ("float16", True),
    ("bfloat16", True),
    ("float64", True),
)
#: Convolutions of each kind of arithmetic, memory order and direction; calls of each pass.
GPU_COUNTS, HOST_COUNTS, QUICK_COUNTS = (10, 3), (6, 3), (1, 1)
#: Types whose passes a quick calibration measures; the others are as much slower or faster.
QUICK_PASSES = ("float32", "float16")
#: Threads that compile all kernels.
BUILDERS = 8
#: How often a launch is timed, and for how long: the fit has many launches to average over.
BATCHES, BATCH_SECONDS = 3, 0.005

Held = TypeVar("Held")
#: Launches, and the buffers they take.
Launches = Iterator[tuple[Launch, Mapping[str, Buffer]]]


class Computing:
    """The launches that are timed on a device.

    A quick calibration has fewer: convolutions in one memory order, gradients of one kind of
    arithmetic, passes of two types.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.device, self.quick = session, session.device, session.quick
        self.bench = Bench(
            self.device, session.bench.limit_bytes, batches=BATCHES, batch_seconds=BATCH_SECONDS
        )
        self.pool = HOST_POOL if session.on_host else GPU_POOL
        counts = QUICK_COUNTS if self.quick else HOST_COUNTS if session.on_host else GPU_COUNTS
        self.convolution_count, self.pass_count = counts

    def groups(self) -> list[Group]:
        """What is to be measured, in parts."""
        found: list[Group] = [self.build] if self.device.kind == "cuda" else []
        kinds = arithmetic(self.device)
        for dtype, tf32 in kinds:
            forward_alone = self.quick and (dtype, tf32) != kinds[0]
            directions = DIRECTIONS[:1] if forward_alone else DIRECTIONS
            layouts = () if dtype in stand_ins(self.device) else self.device.layouts(dtype)
            drawn = [
                partial(self.convolutions, dtype, layout, direction, tf32)
                for layout in (layouts[-1:] if self.quick else layouts)
                for direction in directions
            ]
            if (dtype, tf32) in self.pass_kinds:
                drawn.append(partial(self.passes, dtype))
            found += [partial(self.measure, launches) for launches in drawn]
        return found

    @property
    def pass_kinds(self) -> list[tuple[str, bool]]:
        """Kinds of arithmetic of which passes are measured: one of each type."""
        return [
            (dtype, tf32)
            for dtype, tf32 in arithmetic(self.device)
            if (tf32 or self.session.on_host) and (not self.quick or dtype in QUICK_PASSES)
        ]

    def build(self) -> None:
        """Let threads compile the kernels of all passes, by running each of them once."""
        asked = [launched for dtype, _ in self.pass_kinds for launched in self.passes(dtype)]
        # the largest first: what is reserved for it does for all others, and stays where it is
        asked.sort(key=lambda launched: -offsets_of(launched[1])[1])
        # what does not fit is compiled when it is timed
        placed = [each for launched in asked if (each := self.bench.placed(*launched))]
        actions = [each.action() for each in placed if each.base == placed[-1].base]

        def run_all(handle: Any) -> None:
            with ThreadPoolExecutor(BUILDERS, initializer=self.device.use) as pool:
                list(pool.map(lambda action: action(handle), actions))

        self.bench.spans({"compute": [run_all]}, staged=False)

    def convolutions(self, dtype: str, layout: str, direction: str, tf32: bool) -> Launches:
        """Convolutions of one kind of arithmetic, memory order and direction."""
        seed, count = f"{dtype} {tf32} {layout} {direction}", self.convolution_count
        for operation in convolutions(seed, self.pool, dtype, allow_tf32=tf32, count=count):
            yield convolution_launch(replace(operation, layout=layout), direction)

    def passes(self, dtype: str) -> Launches:
        """Launches of the calls that are passes over memory, each on all of its data."""
        for function, arguments, layout in passes(dtype, self.pool, dtype, self.pass_count):
            yield from launches_of(function, arguments, layout)

    def measure(self, launches: partial[Launches]) -> None:
        """Time launches, and the host at each; those that the memory limit excludes are left out.

        The largest comes first: what is reserved for it does for all others.
        """
        for launch, buffers in reversed(list(launches())):
            if (placed := self.bench.placed(launch, buffers)) is not None:
                work, timing = launch.operation.work(), self.bench.time("compute", placed.action)
                self.session.record(work.key, work.amount, timing, work.features)
                if (launching := placed.launching_seconds) is not None:
                    self.session.record(f"launching/{work.key}", 1.0, Timing(launching, 0.0))

    def reference(self) -> float | None:
        """Seconds of one convolution that is measured first and last, to see clocks drift.

        None where the memory limit leaves no room for any.
        """
        dtype, tf32 = arithmetic(self.device)[0]
        drawn = self.convolutions(dtype, self.device.layouts(dtype)[0], DIRECTIONS[0], tf32)
        fitting = (placed for each in drawn if (placed := self.bench.placed(*each)) is not None)
        return next((self.bench.time("compute", each.action).seconds for each in fitting), None)


def stand_ins(device: Device) -> Mapping[str, str]:
    """Convolutions that are computed as others are: TF32 on the host, bfloat16 on a card."""
    return {"tf32": "float32"} if device.kind == "host" else {"bfloat16": "float16"}


def with_stand_ins(device: Device, lines: Mapping[str, Held]) -> dict[str, Held]:
    """Add the lines that others stand in for, or what else is known by their keys."""
    found = dict(lines)
    for arithmetic, stands_in in stand_ins(device).items():
        start = f"convolution/{stands_in}/"
        for key in filter(lambda key: key.startswith(start), lines):
            found[key.replace(stands_in, arithmetic, 1)] = lines[key]
    return found


def launches_of(function: str, arguments: Mapping[str, Any], layout: str) -> Launches:
    """Launches of a call on all of its data, in one memory order, with the buffers they take."""
    call = splittable_of(function, **arguments)
    whole = call.extents
    for sweep in range(call.sweeps):
        launches, buffers = call.launches(
            Piece((0, whole.n), (0, whole.c_y), (0, whole.h_y), (0, whole.c_x), sweep),
            layout=layout,
            orders=dict.fromkeys(call.operands, layout),
        )
        for launch in launches:
            used = {name: buffers[name] for name in (*launch.inputs, launch.output) if name}
            yield launch, used


def convolution_launch(
    operation: Convolution, direction: str
) -> tuple[Launch, Mapping[str, Buffer]]:
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
    kinds: tuple[tuple[str, bool], ...] = ARITHMETIC[device.kind == "host" :]
    try:
        numpy_dtype("bfloat16")
    except TypeError:  # without ml_dtypes nobody can pass such an array
        return tuple(kind for kind in kinds if kind[0] != "bfloat16")
    return kinds
