"""Seconds of operations and re-layouts in each layout: what `benchmarks.layouts` chooses by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from benchmarks import common
from benchmarks.kernel_cases import LAYOUTS, Laid
from benchmarks.layout_cases import Operation
from benchmarks.layout_ways import (
    ORDERS,
    Choice,
    Timer,
    Ways,
    direct_plan,
    tiles_of,
)
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.kernels import compiling
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.pointwise import plan_pointwise
from ooc_cudnn.devices.kernels.pooling import plan_pooling
from ooc_cudnn.devices.kernels.relayout import plan_relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import is_faster_fused
from ooc_cudnn.pricing.layouts import Step

#: Batches of a first timing, which tells what is chosen; and of the judged ones.
RATE_BATCHES, JUDGED_BATCHES = 3, 9
#: What takes so many times as long as another way is not timed again, unless it is short.
HOPELESS, SHORT_SECONDS = 2.0, 2e-4
#: Errors against PyTorch's convolution, as a share of the largest result.
TOLERANCE = {"tf32": 5e-3, "strict": 5e-5, "float16": 1e-2}
COMPILERS = 16
WAYS = tuple(itertools.permutations(LAYOUTS, 2))


class Rates:
    """Seconds of operations in each layout, and of re-layouts: each measured once."""

    def __init__(self, report: common.Report, torch: Any) -> None:
        self.report, self.torch = report, torch
        device = get_device(report.arguments.device)
        self.ways = Ways(torch, device, "cuda" if report.arguments.cuda else "cpu")
        self.timer = Timer(device)
        self._known: dict[tuple[Operation, str], dict[Choice, float]] = {}
        self._entering: dict[tuple[tuple[int, ...], str], dict[tuple[str, str], float]] = {}
        self._fused: dict[Convolution, float] = {}
        self._relu: dict[tuple[tuple[int, ...], str, str], float] = {}
        self.batches = 1 if report.quick else RATE_BATCHES

    def of(self, operation: Operation, layout: str) -> dict[Choice, float]:
        """Seconds by each way to compute an operation in a layout, the fastest first."""
        if (operation, layout) not in self._known:
            on, found = self.ways.operands(operation, layout), dict[Choice, float]()
            known = (self._known.get((operation, each), {}) for each in LAYOUTS)
            others = [took for of in known for took in of.values()]
            for choice in self.ways.choices(operation, layout, on):
                run = self.ways.by(operation, layout, on, choice)
                found[choice] = self.timer.batch([run], 1)
                most = max(HOPELESS * min([*others, *found.values()]), SHORT_SECONDS)
                if found[choice] <= most:
                    found[choice] = self.timer.medians({"": [run]}, self.batches)[""]
            fastest = dict(sorted(found.items(), key=lambda each: each[1]))
            self._known[operation, layout] = fastest
        return self._known[operation, layout]

    def kept(self, operation: Operation, layout: str) -> dict[Choice, float]:
        """The same without the direct convolution, which is a trial: what is chosen from."""
        found = self.of(operation, layout)
        return {choice: took for choice, took in found.items() if choice.tile is None}

    def seconds(self, operation: Operation, *, relu: bool = False) -> dict[str, float]:
        """Seconds in each layout by its fastest way, with bias and ReLU after a convolution."""
        found = {}
        for layout in LAYOUTS:
            if by := self.kept(operation, layout):
                found[layout] = min(by.values())
                if relu and isinstance(operation, Convolution):
                    found[layout] += self.relu(operation, layout)
                    if layout == "NHWC" and (fused := self.fused(operation)) is not None:
                        found[layout] = min(found[layout], fused)
        return found

    def fused(self, operation: Convolution) -> float | None:
        """Seconds in NHWC with bias and ReLU as one launch; None where the library has none."""
        if not is_faster_fused(operation, ORDERS["NHWC"]):
            return None
        if operation not in self._fused:
            run = self.ways.fused(operation, self.ways.operands(operation, "NHWC"))
            self._fused[operation] = self.timer.medians({"": [run]}, self.batches)[""]
        return self._fused[operation]

    def is_fused(self, operation: Operation, layout: str) -> bool:
        """Whether a convolution in a layout is fastest as one launch with bias and ReLU."""
        if layout != "NHWC" or not isinstance(operation, Convolution):
            return False
        apart = min(self.kept(operation, layout).values()) + self.relu(operation, layout)
        fused = self.fused(operation)
        return fused is not None and fused < apart

    def relu(self, operation: Convolution, layout: str) -> float:
        key = operation.output_shape, operation.dtype, layout
        if key not in self._relu:
            on = self.ways.operands(operation, layout)
            runs = [self.ways.bias_relu(on)]
            self._relu[key] = self.timer.medians({"": runs}, self.batches)[""]
        return self._relu[key]

    def entering(self, shape: tuple[int, ...], dtype: str) -> dict[tuple[str, str], float]:
        """Seconds of bringing a tensor from each layout into each other one."""
        if (shape, dtype) not in self._entering:
            held = {each: self.ways.tensor(shape, each, dtype, fill=True) for each in LAYOUTS}
            runs = {(a, b): self.ways.brought(held[a], b)[0] for a, b in WAYS}
            took = self.timer.medians(
                {" ".join(way): run for way, run in runs.items() if run}, self.batches
            )
            self._entering[shape, dtype] = {way: took.get(" ".join(way), 0.0) for way in WAYS}
        return self._entering[shape, dtype]

    def step(self, name: str, operation: Operation, *, relu: bool = False) -> Step:
        """What the choice is made by."""
        entering = self.entering(operation.x_shape, operation.dtype)
        return Step(name, self.seconds(operation, relu=relu), entering)


def kernels_of(operation: Operation) -> Iterator[Launch | None]:
    """The launches of kernels that an operation and its re-layouts may need."""
    dtype = operation.dtype

    def view(shape: tuple[int, ...], layout: str) -> DeviceView:
        return DeviceView(2**20, dtype, shape, Laid(shape, layout).strides())

    shapes = operation.x_shape, operation.output_shape
    for (source, target), shape in itertools.product(WAYS, shapes):
        yield plan_relayout(view(shape, target), view(shape, source))
    for layout in LAYOUTS:
        x, y = (view(shape, layout) for shape in shapes)
        if not isinstance(operation, Convolution):
            yield plan_pooling(operation, x, y)
            continue
        shift = view(operation.w_shape[:1], "")
        yield plan_pointwise(y, y, None, None, shift, None, "relu", dtype)
        for tile in tiles_of(operation):
            yield direct_plan(operation, x, y, *tile)


def compiled(rates: Rates, operations: Iterable[Operation], seconds: float) -> None:
    """Compile kernels side by side."""
    planned = itertools.chain.from_iterable(map(kernels_of, set(operations)))
    wanted = {(launch.source, launch.expression) for launch in planned if launch is not None}
    device, pool = compiling.current_device(), ThreadPoolExecutor(COMPILERS)
    waiting = [pool.submit(compiling.function, device, *each) for each in sorted(wanted)]
    done, _ = wait(waiting, timeout=seconds)
    pool.shutdown(cancel_futures=True)
    rates.report.note(f"{len(done)} of {len(waiting)} kernels compiled ahead")
