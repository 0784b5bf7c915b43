"""The loop a user would write today, against one call.

Chunks of images go to the card, PyTorch convolves them there (TF32 allowed), and they come back
into the output array: n=128, 64 -> 64 channels, 256x256, 3x3, float32, 2.1 GB each way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.naive import torch_loop
from ooc_cudnn.bench.timing import interleave

NAME = "naive_loop"


def cupy_loop(x: Any, w: Any, b: Any, y: Any, chunk: int) -> None:
    """Chunks carried by CuPy, which has no convolution of its own; PyTorch computes."""
    import cupy
    import torch

    w, b = torch.from_numpy(w).cuda(), torch.from_numpy(b).cuda()
    for start in range(0, len(x), chunk):
        piece = torch.from_dlpack(cupy.asarray(x[start : start + chunk]))
        result = torch.nn.functional.conv2d(piece, w, b, padding=1).relu()
        y[start : start + chunk] = cupy.from_dlpack(result).get()


def body(report: common.Report) -> None:
    arguments = report.arguments
    try:
        import torch
    except ImportError:
        torch = None
    shape = (12, 8, 24, 32) if arguments.quick else (128, 64, 256, 256)
    limit = "96kB" if arguments.quick else "1GiB"
    images = Images.of(shape)
    w, b = filters(shape[1], shape[1])
    device_w, device_b = common.to_device(w, arguments), common.to_device(b, arguments)
    synchronize = common.synchronizer(arguments)
    x, y = images.fill(np.empty(shape, np.float32)), np.empty(shape, np.float32)
    locked_x, locked_y = images.fill(common.pinned(shape)), common.pinned(shape)

    def call(x: Any, y: Any) -> None:
        with ooc_cudnn.settings(memory_limit=limit):
            ooc_cudnn.convolution_add_activation_forward(
                x, device_w, device_b, padding=1, activation="relu", out=y
            )

    functions: dict[str, tuple[Any, Any]] = {
        "pageable": (lambda: call(x, y), y),
        "pinned": (lambda: call(locked_x, locked_y), locked_y),
    }
    loops = []
    if torch is None:
        report.note("PyTorch is not installed: no loop to compare with")
    else:
        torch.backends.cudnn.allow_tf32 = True
        for chunk in (4, 16):
            name = f"loop, PyTorch, {chunk} images at a time"
            functions[name] = (
                lambda chunk=chunk: torch_loop(x, w, b, y, chunk, cuda=arguments.cuda), y
            )  # fmt: skip
            loops.append(name)
        if arguments.cuda:
            name = "loop, CuPy and PyTorch, 4 images at a time"
            functions[name] = (lambda: cupy_loop(x, w, b, y, 4), y)
            loops.append(name)
    times = interleave(
        {name: function for name, (function, _) in functions.items()},
        synchronize,
        repeats=2 if arguments.quick else 5,
    )
    for name, (function, output) in functions.items():
        report.measure(f"{name}: seconds", times[name])
        poison(output)
        split = None
        if name in loops:
            function()
        else:
            with common.profiled() as calls:
                function()
            found = common.diagnosis(calls[0])
            report.measure(f"{name}: call", found, spoken=common.spoken(found))
            common.check_limit(report, name, found, limit)
            split = calls[0].plan.split
            report.claim(f"{name}: predicted / measured",
                         found["predicted_seconds"] / times[name].median)  # fmt: skip
        synchronize()
        report.check(f"{name}: contents", verify(images, w, b, output, tf32=True, split=split))
    if not loops:
        return
    best = min(loops, key=lambda name: times[name].median)
    for ours in ("pageable", "pinned"):
        for name in loops:
            mark = " (the fastest loop)" if name == best else ""
            ratio = times[name].median / times[ours].median
            report.claim(f"{ours}: times faster than {name}{mark}", ratio)


def main(argv: list[str] | None = None) -> int:
    return common.run(NAME, body, __doc__, argv)


if __name__ == "__main__":
    common.main(main)
