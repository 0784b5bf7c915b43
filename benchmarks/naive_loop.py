"""Loops written by hand, plain and double-buffered, against one call.

A convolution with bias and ReLU in TF32, from host memory to host memory: n=128, 64 -> 64 channels,
256x256, 3x3, float32, 2.1 GB each way. The plain loops are what one writes first: a few images to
the card, convolved there, and back, on pageable memory. The double-buffered ones are the best that
one writes: pinned memory, two or three streams, pieces of 16 or 32 MiB, in PyTorch and in CuPy.
Every name says which memory it is: where x and y are pageable, the buffers alone are pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.contenders.double_buffered import DoubleBufferedCupy, DoubleBufferedTorch
from benchmarks.contenders.naive import torch_loop
from benchmarks.contenders.torch_convolution import release_torch, torch_settings
from ooc_cudnn.bench.attempt import Attempt
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contender import Contender
from ooc_cudnn.bench.contents import Images, filters, poison
from ooc_cudnn.bench.convolution_contender import ConvolutionContender, Operands
from ooc_cudnn.bench.convolution_library import Library
from ooc_cudnn.bench.timing import Timing, interleave

NAME = "naive_loop"
MEMORIES = ("pinned", "pageable")


def cupy_loop(x: Any, w: Any, b: Any, y: Any, chunk: int, *, cuda: bool) -> None:
    """Chunks carried by CuPy, which has no convolution of its own; PyTorch computes."""
    import cupy
    import torch

    w, b = torch.from_numpy(w).cuda(), torch.from_numpy(b).cuda()
    for start in range(0, len(x), chunk):
        piece = torch.from_dlpack(cupy.asarray(x[start : start + chunk]))
        result = torch.nn.functional.conv2d(piece, w, b, padding=1).relu()
        y[start : start + chunk] = cupy.from_dlpack(result).get()


class Plain(ConvolutionContender):
    """A plain loop, four images at a time."""

    about = "a plain loop"

    def __init__(self, operands: Operands, loop: Callable[..., None]) -> None:
        super().__init__(operands)
        self._loop = loop

    def prepare(self) -> None:
        """See whether PyTorch is installed."""
        import torch  # noqa: F401

    def run(self) -> None:
        """Loop."""
        o = self.operands
        with torch_settings(tf32=True):
            self._loop(o.x, o.w, o.b, o.y, 4, cuda=o.cuda)

    def check(self) -> dict[str, Any]:
        """Look at the result."""
        poison(self.operands.y)
        self.run()
        return self.operands.verified(self.operands.y)

    def release(self) -> None:
        """Give back what PyTorch keeps."""
        release_torch(cuda=self.operands.cuda)


def loops(operands: dict[str, Operands], cuda: bool) -> dict[str, dict[str, Any]]:
    """By kind and by name: what makes each loop."""
    pageable = operands["pageable"]
    image_bytes = operands["pinned"].images.nbytes // len(pageable.x)
    plain: dict[str, Any] = {"plain loop, PyTorch, pageable": partial(Plain, pageable, torch_loop)}
    if cuda:
        plain["plain loop, CuPy and PyTorch, pageable"] = partial(Plain, pageable, cupy_loop)
    doubled = {
        f"double-buffered loop, {form}, {streams} streams, {images} image"
        f"{'s' if images > 1 else ''} at a time, {memory}": partial(
            kind, operands[memory], lanes=streams, piece_bytes=images * image_bytes
        )
        for memory in MEMORIES
        for form, kind in (("PyTorch", DoubleBufferedTorch), ("CuPy", DoubleBufferedCupy))
        if cuda or form == "PyTorch"
        for streams in ((2, 3) if memory == "pinned" else (3,))
        for images in (1, 2)
    }
    return {"plain": plain, "double-buffered": doubled}


def measure(
    report: common.Report, ways: dict[str, Callable[[], Contender]], repeats: int
) -> dict[str, Timing]:
    """Time ways in turns, then check each; what cannot run is noted."""
    synchronize = common.synchronizer(report.arguments)
    attempts = [Attempt(name, make) for name, make in ways.items()]
    for attempt in attempts:
        attempt.prepare(synchronize)
    ready = {each.name: each for each in attempts if each.reason is None}
    times = interleave(
        {name: each.run for name, each in ready.items()}, synchronize, repeats=repeats, warmup=0
    )
    for attempt in attempts:
        attempt.check()
        if attempt.reason is not None:
            report.note(f"{attempt.name}: not run: {attempt.reason}")
            times.pop(attempt.name, None)
        else:
            report.measure(f"{attempt.name}: seconds", times[attempt.name])
            report.check(f"{attempt.name}: contents", attempt.checked or {"ok": False})
            _tell_call(report, attempt)
        attempt.release()
    return times


def _tell_call(report: common.Report, attempt: Attempt) -> None:
    """Of the library's call: what it did, and whether it kept its limit."""
    for found in attempt.details.get("calls", ()):
        report.measure(f"{attempt.name}: call", found, spoken=common.spoken(found))


def body(report: common.Report) -> None:
    arguments = report.arguments
    quick = arguments.quick
    shape = (12, 8, 24, 32) if quick else (128, 64, 256, 256)
    images = Images.of(shape)
    w, b = filters(shape[1], shape[1])
    operands = {}
    for memory in MEMORIES:
        make = common.pinned if memory == "pinned" else partial(np.empty, dtype=np.float32)
        operands[memory] = Operands(
            images=images, w=w, b=b, x=images.fill(make(shape)), y=make(shape),
            limit="96kB" if quick else "1GiB", tf32=True, cuda=arguments.cuda,
            pageable=memory == "pageable",
        )  # fmt: skip
    kinds = loops(operands, arguments.cuda)
    ours = {f"{OURS}, {memory}": partial(Library, operands[memory]) for memory in MEMORIES}
    times = measure(report, ours | kinds["double-buffered"], 2 if quick else 5)
    times |= measure(report, kinds["plain"], 2 if quick else 3)
    for memory in MEMORIES:
        seconds = times[f"{OURS}, {memory}"].median
        for kind, theirs in (("plain", "pageable"), ("double-buffered", memory)):
            measured = [name for name in kinds[kind] if name in times and name.endswith(theirs)]
            if measured:
                best = min(measured, key=lambda name: times[name].median)
                report.note(f"{memory}, the fastest loop of its kind: {best}")
                report.claim(
                    f"{memory}: times faster than the fastest {kind} loop, {theirs} memory",
                    times[best].median / seconds,
                )


def main(argv: list[str] | None = None) -> int:
    return common.run(NAME, body, __doc__, argv)


if __name__ == "__main__":
    common.main(main)
