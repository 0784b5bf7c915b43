"""Everything on the device and everything fits: what a call costs beside cuDNN itself.

Small shapes show the host's part: thousands of calls in a row, never waiting for the device,
against executing the same cuDNN plan (and the same kernel for bias and ReLU) directly. Large shapes
are those of `results_pool`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.direct import DirectBiasActivation, DirectConvolution
from ooc_cudnn.bench.placing import on_device
from ooc_cudnn.bench.timing import host_seconds_per_call

NAME = "convolution_in_core"


class InCore:
    """Operands on the device, and the two functions on them."""

    def __init__(self, shape: tuple[int, int, int, int], report: common.Report) -> None:
        cuda = report.arguments.cuda
        self.on = Operands.of(on_device(shape, cuda=cuda), on_device(shape, cuda=cuda), cuda=cuda)

    def convolution(self) -> None:
        o = self.on
        ooc_cudnn.convolution_forward(o.x, o.device_w, padding=1, out=o.y)

    def fused(self) -> None:
        o = self.on
        ooc_cudnn.convolution_add_activation_forward(
            o.x, o.device_w, o.device_b, padding=1, activation="relu", out=o.y
        )

    def functions(self) -> dict[str, Any]:
        return {"convolution_forward": self.convolution, "fused": self.fused}

    def direct(self) -> dict[str, Any]:
        """The same by hand."""
        o = self.on
        convolution = DirectConvolution(o.x, o.device_w, o.y, tf32=True)
        pointwise = DirectBiasActivation(o.y, o.device_b)

        def fused() -> None:
            convolution()
            pointwise()

        self.engine = convolution.engine
        return {"convolution_forward": convolution, "fused": fused}

    def check(self, report: common.Report, name: str, function: str) -> None:
        """Run once, poisoned and profiled: no copies, one compute step, right contents."""
        call, fused = self.functions()[function], function == "fused"
        _, record = report.profile_and_verify(name, call, self.on, fused=fused)
        kinds = [step.stream for step in record.steps]
        copied = record.bytes_in + record.bytes_out
        report.check(
            f"{name}: no copies, one compute step",
            {"ok": kinds == ["compute"] and not copied, "steps": kinds, "bytes": copied},
        )


def host_part(report: common.Report) -> None:
    """Host time of a call at shapes where the device has next to nothing to do."""
    shapes = [(1, 8, 16, 16)] if report.quick else [(1, 64, 32, 32), (1, 16, 8, 8)]
    # A batch stays under the driver's queue of about a thousand launches, so the host never waits.
    calls, batches = (3, 2) if report.quick else (100, 41)
    synchronize = report.synchronize
    for shape in shapes:
        operands = InCore(shape, report)
        title = "x".join(map(str, shape))
        direct = operands.direct() if report.arguments.cuda else {}
        for function, call in operands.functions().items():
            name = f"{title} {function}"
            functions = {"ours": call}
            if direct:
                functions["direct"] = direct[function]
                poison(operands.on.y)
                direct[function]()
                found = operands.on.verified(operands.on.y, fused=function == "fused")
                report.check(f"{name}, by hand: contents", found)
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
