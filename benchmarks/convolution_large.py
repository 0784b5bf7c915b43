"""Strict float32 on one image of 2**31 elements, against the one unsplit cuDNN call.

n=1, 64 -> 64 channels, 4096x8192, 3x3, `allow_tf32=False`, limit 16 GiB: 8.6 GB in and 8.6 GB out,
from CuPy arrays and from pinned memory. cuDNN's only strict engine for a tensor of this size takes
seconds; the library's pieces are small enough for its fast ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.direct import DirectConvolution
from ooc_cudnn.bench.placing import free_cupy, on_device
from ooc_cudnn.bench.timing import Timing, interleave, timed

NAME = "convolution_large"


def body(report: common.Report) -> None:
    cuda = report.arguments.cuda
    shape = (1, 8, 64, 96) if report.quick else (1, 64, 4096, 8192)
    limit = "96kB" if report.quick else "16GiB"
    synchronize = report.synchronize

    def operands(allocate: Callable[..., Any]) -> Operands:
        return Operands.of(allocate(shape), allocate(shape), cuda=cuda, tf32=False)

    def call(memory_limit: Any) -> None:
        with ooc_cudnn.settings(memory_limit=memory_limit, allow_tf32=False):
            ooc_cudnn.convolution_forward(on.x, on.device_w, padding=1, out=on.y)

    def measure(name: str, memory_limit: Any) -> Timing:
        run, repeats = partial(call, memory_limit), 2 if report.quick else 5
        found = interleave({name: run}, synchronize, repeats=repeats)[name]
        report.measure(f"{name}: seconds", found)
        did, _ = report.profile_and_verify(name, run, on, memory_limit, fused=False)
        report.predicted(name, did, found.median)
        return found

    on = operands(partial(on_device, cuda=cuda))
    poison(on.y)
    if cuda:
        unsplit: Any = DirectConvolution(on.x, on.device_w, on.y, tf32=False)
        report.measure("unsplit: engine", unsplit.engine)
        # It takes seconds and its time does not scatter; the first run loads the engine.
        seconds = Timing(tuple(timed(unsplit, synchronize) for _ in range(2)))
        baseline = min(seconds.samples)
        del unsplit  # it holds the arrays
    else:
        seconds = interleave({"u": partial(call, "64GiB")}, synchronize, repeats=2)["u"]
        baseline = seconds.median
    report.measure("unsplit: seconds", seconds)
    report.check("unsplit: contents", on.verified(on.y, fused=False))

    # Arrays of the host device count against its limit; a GPU user's own arrays do not.
    held = 0 if cuda else on.feature_bytes + on.device_w.nbytes
    times = {"device": measure("device", held + 96_000 if held else limit)}
    on.drop()
    free_cupy(cuda=cuda)
    on = operands(common.pinned)
    times["pinned"] = measure("pinned", on.device_w.nbytes + 96_000 if held else limit)
    for name, timing in times.items():
        title = f"{name}: times faster than the unsplit cuDNN call"
        report.claim(title, baseline / timing.median, ">=", 10)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
