"""Strict float32 on one image of 2**31 elements, against the one unsplit cuDNN call.

n=1, 64 -> 64 channels, 4096x8192, 3x3, `allow_tf32=False`, limit 16 GiB: 8.6 GB in and 8.6 GB out,
from CuPy arrays and from pinned memory. cuDNN's only strict engine for a tensor of this size takes
seconds; the library's pieces are small enough for its fast ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.timing import Timing, interleave, timed

NAME = "convolution_large"


def body(report: common.Report) -> None:
    cuda = report.arguments.cuda
    shape = (1, 8, 64, 96) if report.quick else (1, 64, 4096, 8192)
    limit = "96kB" if report.quick else "16GiB"
    images = Images.of(shape)
    w, _ = filters(shape[1], shape[1])
    device_w = report.to_device(w)
    synchronize = report.synchronize

    def call(x: Any, y: Any, memory_limit: Any = limit) -> None:
        with ooc_cudnn.settings(memory_limit=memory_limit, allow_tf32=False):
            ooc_cudnn.convolution_forward(x, device_w, padding=1, out=y)

    def on_device() -> tuple[Any, Any]:
        if not cuda:
            with ooc_cudnn.settings(memory_limit="64GiB"):
                return ooc_cudnn.empty(shape), ooc_cudnn.empty(shape)
        import cupy

        return cupy.empty(shape, np.float32), cupy.empty(shape, np.float32)

    def check(name: str, y: Any, split: Any = None) -> None:
        report.check(name, verify(images, w, None, y, tf32=False, split=split, relu=False))

    def measure(name: str, x: Any, y: Any, memory_limit: Any) -> Timing:
        found = interleave(
            {name: lambda: call(x, y, memory_limit)},
            synchronize,
            repeats=2 if report.quick else 5,
        )[name]
        poison(y)
        report.measure(f"{name}: seconds", found)
        did, record = report.profile(name, lambda: call(x, y, memory_limit), memory_limit)
        check(f"{name}: contents", y, record.plan.split)
        report.predicted(name, did, found.median)
        return found

    x, y = on_device()
    images.fill(x)
    poison(y)
    if cuda:
        from ooc_cudnn.bench.direct import DirectConvolution

        unsplit: Any = DirectConvolution(x, device_w, y, tf32=False)
        report.measure("unsplit: engine", unsplit.engine)
        # It takes seconds and its time does not scatter; the first run loads the engine.
        seconds = Timing(tuple(timed(unsplit, synchronize) for _ in range(2)))
        baseline = min(seconds.samples)
    else:
        seconds = interleave({"u": lambda: call(x, y, "64GiB")}, synchronize, repeats=2)["u"]
        baseline = seconds.median
    report.measure("unsplit: seconds", seconds)
    check("unsplit: contents", y)

    # Arrays of the host device count against its limit; a GPU user's own arrays do not.
    held = 0 if report.arguments.cuda else 2 * images.nbytes + device_w.nbytes
    times = {"device": measure("device", x, y, held + 96_000 if held else limit)}
    del x, y
    if cuda:
        import cupy

        del unsplit
        cupy.get_default_memory_pool().free_all_blocks()
    x, y = common.pinned(shape), common.pinned(shape)
    images.fill(x)
    times["pinned"] = measure("pinned", x, y, device_w.nbytes + 96_000 if held else limit)
    for name, timing in times.items():
        title = f"{name}: times faster than the unsplit cuDNN call"
        report.claim(title, baseline / timing.median, ">=", 10)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
