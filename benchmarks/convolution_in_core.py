"""Everything on the device and everything fits: what a call costs beside cuDNN itself.

Small shapes show the host's part: thousands of calls in a row, never waiting for the device,
against executing the same cuDNN plan (and the same kernel for bias and ReLU) directly. Large shapes
are those of `results_pool`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.timing import host_seconds_per_call

NAME = "convolution_in_core"


class Operands:
    """x, w, b and y on the device, and the two functions on them."""

    def __init__(self, shape: tuple[int, int, int, int], report: common.Report) -> None:
        self.images = Images.of(shape)
        self.host_w, self.host_b = filters(shape[1], shape[1])
        self.w = report.to_device(self.host_w)
        self.b = report.to_device(self.host_b)
        if report.arguments.cuda:
            import cupy

            self.x = self.images.fill(cupy.empty(shape, np.float32))
        else:
            self.x = report.to_device(self.images.fill(np.empty(shape, np.float32)))
        self.y = report.to_device(np.empty(shape, np.float32))

    def convolution(self) -> None:
        ooc_cudnn.convolution_forward(self.x, self.w, padding=1, out=self.y)

    def fused(self) -> None:
        ooc_cudnn.convolution_add_activation_forward(
            self.x, self.w, self.b, padding=1, activation="relu", out=self.y
        )

    def functions(self) -> dict[str, Any]:
        return {"convolution_forward": self.convolution, "fused": self.fused}

    def direct(self) -> dict[str, Any]:
        """The same by hand."""
        from ooc_cudnn.bench.direct import DirectBiasActivation, DirectConvolution

        convolution = DirectConvolution(self.x, self.w, self.y, tf32=True)
        pointwise = DirectBiasActivation(self.y, self.b)

        def fused() -> None:
            convolution()
            pointwise()

        self.engine = convolution.engine
        return {"convolution_forward": convolution, "fused": fused}

    def check(self, report: common.Report, name: str, function: str) -> None:
        """Run once, poisoned and profiled: no copies, one compute step, right contents."""
        poison(self.y)
        _, record = report.profile(name, self.functions()[function])
        kinds = [step.stream for step in record.steps]
        copied = record.bytes_in + record.bytes_out
        report.check(
            f"{name}: no copies, one compute step",
            {"ok": kinds == ["compute"] and not copied, "steps": kinds, "bytes": copied},
        )
        self.check_contents(report, name, function)

    def check_contents(self, report: common.Report, name: str, function: str) -> None:
        bias = self.host_b if function == "fused" else None
        report.check(
            f"{name}: contents",
            verify(self.images, self.host_w, bias, self.y, tf32=True, relu=bias is not None),
        )


def host_part(report: common.Report) -> None:
    """Host time of a call at shapes where the device has next to nothing to do."""
    shapes = [(1, 8, 16, 16)] if report.quick else [(1, 64, 32, 32), (1, 16, 8, 8)]
    # A batch stays under the driver's queue of about a thousand launches, so the host never waits.
    calls, batches = (3, 2) if report.quick else (100, 41)
    synchronize = report.synchronize
    for shape in shapes:
        operands = Operands(shape, report)
        title = "x".join(map(str, shape))
        direct = operands.direct() if report.arguments.cuda else {}
        for function, call in operands.functions().items():
            name = f"{title} {function}"
            functions = {"ours": call}
            if direct:
                functions["direct"] = direct[function]
                poison(operands.y)
                direct[function]()
                operands.check_contents(report, f"{name}, by hand", function)
                report.measure(f"{name}: engine by hand", operands.engine)
            times = host_seconds_per_call(functions, synchronize, calls=calls, batches=batches)
            for kind, timing in times.items():
                report.measure(f"{name}: seconds a call, {kind}", timing)
            operands.check(report, name, function)
            if direct:
                overhead = 1e6 * (times["ours"].median - times["direct"].median)
                report.claim(f"{name}: host overhead", overhead, "<=", 100, "us")
            else:
                report.claim(f"{name}: host time of a call", 1e6 * times["ours"].median, unit="us")


def body(report: common.Report) -> None:
    with ooc_cudnn.settings(memory_limit="32GiB"):
        host_part(report)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
