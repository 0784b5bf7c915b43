"""Results that the library makes itself: a call without `out`, beside cuDNN's own engine.

Everything is on the device, channels-last, in TF32: 3x3 convolutions of 64 images. Each is timed
with `out`, without it (as in ``y = convolution_forward(x, w)``, where the last result is dropped
when the new one is there), and as cuDNN's engine alone, launched by hand on memory of its own; one
by one from an idle device to an idle device, and back to back, the device waited for at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.direct import view
from ooc_cudnn.bench.placing import on_device
from ooc_cudnn.bench.timing import Timing, interleave
from ooc_cudnn.devices import get_device
from ooc_cudnn.operations.convolution.forward import Convolution

NAME = "results_pool"
SHAPES = ((64, 64, 224, 224), (64, 128, 112, 112), (64, 512, 14, 14))
QUICK = ((2, 4, 9, 8),)
#: Microseconds that a repeated call may take beside cuDNN's own time.
BOUND_MICROSECONDS = 100


class InCore:
    """Operands on the device, channels-last, and the call in each way."""

    def __init__(self, shape: tuple[int, int, int, int], report: common.Report) -> None:
        place = partial(on_device, cuda=report.arguments.cuda, order="channels_last")
        self.on = Operands.of(place(shape), place(shape), cuda=report.arguments.cuda)
        self.w = place(self.on.w.shape)
        self.w[...] = self.on.device_w
        self.result: Any = None

    def given(self) -> None:
        ooc_cudnn.convolution_forward(self.on.x, self.w, padding=1, out=self.on.y)

    def fresh(self) -> None:
        self.result = ooc_cudnn.convolution_forward(self.on.x, self.w, padding=1)

    def engine(self) -> tuple[Callable[[], None], str]:
        """cuDNN's engine alone, and its name: the one that the library takes."""
        import cupy

        convolutions: Any = get_device("cuda").convolutions  # type: ignore[attr-defined]
        operation = replace(
            Convolution.of(self.on.x.shape, self.w.shape, padding=1), layout="channels_last"
        )
        found = convolutions.executable(operation, None)
        scratch = cupy.cuda.alloc(max(found.workspace_bytes, 1))
        workspace, stream = (scratch.ptr, found.workspace_bytes), cupy.cuda.get_current_stream()
        inputs, output = (view(self.on.x), view(self.w)), view(self.on.y)

        def launch(_kept: Any = scratch) -> None:
            convolutions.run(operation, inputs, output, workspace, stream)

        return launch, found.engine

    def check(self, report: common.Report, name: str, y: Any) -> None:
        report.check(f"{name}: contents", self.on.verified(y, fused=False))


@contextmanager
def driver_asked(arguments: Any) -> Iterator[list[int]]:
    """Sizes that the driver is asked for meanwhile."""
    arena: Any = get_device(arguments.device).arena
    asked, allocate = list[int](), arena._allocate

    def noted(nbytes: int) -> Any:
        asked.append(nbytes)
        return allocate(nbytes)

    arena._allocate = noted
    try:
        yield asked
    finally:
        arena._allocate = allocate


def measure(report: common.Report, shape: tuple[int, int, int, int]) -> None:
    arguments = report.arguments
    quick, title = report.quick, "x".join(map(str, shape))
    operands = InCore(shape, report)
    functions: dict[str, Callable[[], None]] = {
        "with out": operands.given,
        "without out": operands.fresh,
    }
    if arguments.cuda:
        functions["cuDNN's engine"], name = operands.engine()
        report.measure(f"{title}: engine", name)
    for way, function in functions.items():
        if way == "without out":
            function()
            poison(operands.result)
            function()  # the last result is still there when this one is made
            function()  # in the poisoned memory
            operands.check(report, f"{title}, {way}", operands.result)
        else:
            poison(operands.on.y)
            function()
            operands.check(report, f"{title}, {way}", operands.on.y)

    synchronize = report.synchronize
    calls = 3 if quick else 50

    def batch(function: Callable[[], None]) -> Callable[[], None]:
        def several() -> None:
            for _ in range(calls):
                function()

        return several

    with driver_asked(arguments) as asked:
        single = interleave(functions, synchronize, repeats=3 if quick else 201, warmup=10)
        found = interleave(
            {way: batch(function) for way, function in functions.items()},
            synchronize,
            repeats=2 if quick else 31,
        )
    together = {
        way: Timing(tuple(seconds / calls for seconds in timing.samples))
        for way, timing in found.items()
    }
    report.check(f"{title}: no memory asked of the driver", {"ok": not asked, "bytes": asked})
    report.measure(f"{title}: bytes that lie ready", get_device(arguments.device).arena.ready_bytes)
    operands.check(report, f"{title}, without out, after the timing", operands.result)
    for how, times in (("one by one", single), ("back to back", together)):
        for way, timing in times.items():
            report.measure(f"{title}, {how}: seconds a call, {way}", timing)
        own = times.get("cuDNN's engine")
        for way in ("with out", "without out"):
            if own is None:
                report.claim(f"{title}, {how}, {way}", 1e6 * times[way].median, unit="us")
                continue
            beside = 1e6 * (times[way].median - own.median)
            report.claim(
                f"{title}, {how}, {way}: beside cuDNN's own", beside, "<=", BOUND_MICROSECONDS, "us"
            )


def body(report: common.Report) -> None:
    with ooc_cudnn.settings(memory_limit="32GiB", allow_tf32=True):
        for shape in QUICK if report.quick else SHAPES:
            measure(report, shape)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
