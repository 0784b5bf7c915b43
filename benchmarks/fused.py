"""Fused convolution, bias and activation against the three functions one after the other.

The paper's size: n=1 and n=64 images of 64 channels, 1024x1024, 3x3 filters to 64 channels,
float32, all large operands in pinned memory, limit 4 GiB; with TF32 and strict. The three functions
are the library's own, each out of core: intermediates go to the host and come back, as they must
where tensors do not fit the card. The paper's fused function took 42 % of their time (section 6).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.limits import Link
from ooc_cudnn.bench.timing import interleave, paired_ratio

NAME = "fused"
BOUND = 0.45
HostArray = np.ndarray[Any, Any]


class Case:
    """The operands of one size, and both ways to the same result."""

    def __init__(
        self, images: Images, memory: list[HostArray], parameters: tuple[Any, Any], limit: Any
    ) -> None:
        size = int(np.prod(images.shape))
        self.x, self.between, self.y = (m[:size].reshape(images.shape) for m in memory)
        self.w, self.b = parameters
        self.images, self.limit = images, limit

    def fused(self, tf32: bool) -> None:
        with ooc_cudnn.settings(memory_limit=self.limit, allow_tf32=tf32):
            ooc_cudnn.convolution_add_activation_forward(
                self.x, self.w, self.b, padding=1, activation="relu", out=self.y
            )

    def three(self, tf32: bool) -> None:
        with ooc_cudnn.settings(memory_limit=self.limit, allow_tf32=tf32):
            ooc_cudnn.convolution_forward(self.x, self.w, padding=1, out=self.between)
            ooc_cudnn.add_tensor(self.b, self.between)
            ooc_cudnn.activation_forward(self.between, mode="relu", out=self.y)


def compare(report: common.Report, case: Case, name: str, w: Any, b: Any, *, tf32: bool) -> None:
    """Time both ways and the link in turns; look at what each of them wrote."""
    quick = report.arguments.quick
    link = Link(cuda=report.arguments.cuda).copies((case.x,), (case.y,))
    ways = {"fused": lambda: case.fused(tf32), "three": lambda: case.three(tf32)}
    times = interleave(
        {"link": link, **ways},
        common.synchronizer(report.arguments),
        repeats=2 if quick else 11 if case.images.shape[0] == 1 else 3,
    )
    for way, timing in times.items():
        report.measure(f"{name}: {way}: seconds", timing)
    for way, call in ways.items():
        poison(case.y)
        with common.profiled() as calls:
            call()
        for made in calls:
            found = common.diagnosis(made)
            title = f"{name}: {way}: {made.function}"
            report.measure(title, found, spoken=common.spoken(found))
            common.check_limit(report, title, found, case.limit)
        contents = verify(case.images, w, b, case.y, tf32=tf32, split=calls[0].plan.split)
        report.check(f"{name}: {way}: contents", contents)
        predicted = sum(made.predicted_seconds for made in calls)
        report.claim(f"{name}: {way}: predicted / measured", predicted / times[way].median)
    ratio = paired_ratio(times["fused"], times["three"])
    report.measure(f"{name}: fused / three functions, repeat by repeat", ratio)
    report.claim(f"{name}: fused / three functions", ratio["of_medians"], "<=", BOUND)
    share = times["link"].median / times["fused"].median
    report.claim(f"{name}: fused: fraction of the duplex link", share)


def body(report: common.Report) -> None:
    arguments = report.arguments
    shape = (4, 8, 24, 32) if arguments.quick else (64, 64, 1024, 1024)
    # Filters on the host device count against its limit.
    limit = "48kB" if arguments.quick else "4GiB"
    w, b = filters(shape[1], shape[1])
    parameters = (common.to_device(w, arguments), common.to_device(b, arguments))
    begin = time.perf_counter()
    memory = [common.pinned((int(np.prod(shape)),)) for _ in range(3)]
    report.measure("seconds to allocate the pinned operands", time.perf_counter() - begin)
    images = Images.of(shape)
    images.fill(memory[0].reshape(shape))
    for count in (1, shape[0]):
        case = Case(Images((count, *shape[1:]), images.pool), memory, parameters, limit)
        for tf32 in (True, False):
            name = f"n={count}, {'TF32' if tf32 else 'strict'}"
            compare(report, case, name, w, b, tf32=tf32)


def main(argv: list[str] | None = None) -> int:
    return common.run(NAME, body, __doc__, argv)


if __name__ == "__main__":
    common.main(main)
