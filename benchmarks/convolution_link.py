"""Convolution + bias + ReLU against the link: data far larger than the memory limit.

float32 with TF32, n=512, 64 -> 64 channels, 256x256, 3x3: 8.6 GB in and 8.6 GB out, with X and Y in
pinned memory, in plain NumPy arrays, and in NumPy arrays that `pin` has page-locked. The measure is
the duplex link: raw copies of the same bytes in both directions at once, in turns with the calls,
whole and in pieces; the faster of the two counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.limits import Link
from ooc_cudnn.bench.placing import release_pinned
from ooc_cudnn.bench.timing import Timing, interleave, paired_ratio

NAME = "convolution_link"
#: Sizes of the link's copies; None is one copy each way.
LINK_PIECES = {"link, whole": None, "link, pieces of 32 MiB": 2**25}


class Case:
    """The operands, and what is done with them again and again."""

    def __init__(self, report: script.Report, x: Any, y: Any) -> None:
        self.report, self.cuda = report, report.arguments.cuda
        self.limits = ("48kB", "32kB") if report.quick else ("16GiB", "1GiB")
        self.repeats = 2 if report.quick else 7
        self.on = Operands.of(x, y, cuda=self.cuda)
        self.synchronize = report.synchronize

    def call(self, limit: str) -> None:
        o = self.on
        with ooc_cudnn.settings(memory_limit=limit):
            ooc_cudnn.convolution_add_activation_forward(
                o.x, o.device_w, o.device_b, padding=1, activation="relu", out=o.y
            )

    def profile_and_verify(self, name: str, limit: str) -> dict[str, Any]:
        return self.report.profile_and_verify(name, partial(self.call, limit), self.on, limit)[0]

    def links(self) -> dict[str, Any]:
        """Each way of copying x in and NaN out to y."""
        x, y, links = self.on.x, self.on.y, {}
        for name, piece_bytes in LINK_PIECES.items():
            whole = {"piece_bytes": x.nbytes, "ring_pieces": 1}
            pieces = {"piece_bytes": min(piece_bytes, x.nbytes)} if piece_bytes else whole
            links[name] = Link(cuda=self.cuda, **pieces).copies((x,), (y,))
        return links

    def faster_link(self, name: str, times: dict[str, Timing]) -> Timing:
        """Keep the links' times; return those of the faster way."""
        for way in LINK_PIECES:
            rate = self.on.feature_bytes / 1e9 / times[way].median
            self.report.measure(f"{name}: {way}", times[way])
            self.report.measure(f"{name}: {way}: GB/s both ways together", rate)
        return min((times[way] for way in LINK_PIECES), key=lambda timing: timing.median)

    def in_turns_with_link(
        self, kind: str, limits: Mapping[str, str], bounds: Sequence[float]
    ) -> float:
        """Time calls under some limits in turns with the link; return the link's seconds."""
        report = self.report
        calls = {name: partial(self.call, limit) for name, limit in limits.items()}
        times = interleave(self.links() | calls, self.synchronize, repeats=self.repeats)
        link = self.faster_link(kind, times)
        for (name, limit), bound in zip(limits.items(), bounds, strict=True):
            diagnosis, _ = report.profile_and_verify(name, calls[name], self.on, limit)
            ratio = paired_ratio(link, times[name])
            report.measure(f"{name}: seconds", times[name])
            report.measure(f"{name}: fraction of the link", ratio)
            report.claim(f"{name}: fraction of the duplex link", ratio["of_medians"], ">=", bound)
            report.predicted(name, diagnosis, times[name].median)
        return link.median


def pinned_cases(report: script.Report, shape: tuple[int, ...]) -> float:
    """X and Y in pinned memory, under each limit. Returns the link's seconds."""
    begin = time.perf_counter()
    x, y = script.allocate_pinned(shape), script.allocate_pinned(shape)
    report.measure("seconds to allocate pinned x and y", time.perf_counter() - begin)
    case = Case(report, x, y)
    limits = {f"pinned, limit {limit}": limit for limit in case.limits}
    return case.in_turns_with_link("pinned", limits, (0.95, 0.93))


def pageable_cases(report: script.Report, shape: tuple[int, ...], link_seconds: float) -> None:
    """The same in NumPy arrays, as they are and page-locked in place; the driver's own copies."""
    x, y = np.empty(shape, np.float32), np.empty(shape, np.float32)
    case = Case(report, x, y)
    limit = case.limits[0]
    poison(y)

    # The driver's own copies of pageable memory are slow: an eighth of the images tells their rate.
    part = shape[0] // 8 or 1
    driver = interleave(
        {"driver": one_after_the_other(x[:part], y[:part], cuda=case.cuda)},
        case.synchronize,
        repeats=2,
    )["driver"]
    scaled = driver.median * shape[0] / part
    report.measure("pageable: driver's copies one after the other, an eighth", driver)
    report.claim("driver's pageable copies: fraction of the duplex link", link_seconds / scaled)

    name = "pageable"
    call, repeats = partial(case.call, limit), max(2, case.repeats - 2)
    ours = interleave({name: call}, case.synchronize, repeats=repeats)[name]
    diagnosis, _ = report.profile_and_verify(name, call, case.on, limit)
    report.measure(f"{name}: seconds", ours)
    report.claim(f"{name}: fraction of the duplex link", link_seconds / ours.median, ">=", 0.33)
    report.claim(f"{name}: times faster than the driver's copies", scaled / ours.median)
    report.predicted(name, diagnosis, ours.median)

    name = "page-locked by pin()"
    begin = time.perf_counter()
    pins = [ooc_cudnn.pin(x), ooc_cudnn.pin(y)]
    report.measure("seconds to pin x and y", time.perf_counter() - begin)
    case.in_turns_with_link(name, {name: limit}, (0.90,))
    begin = time.perf_counter()
    for pin in pins:
        pin.close()
    report.measure("seconds to unpin x and y", time.perf_counter() - begin)


def one_after_the_other(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], *, cuda: bool) -> Any:
    """Return the driver's own synchronous copies: all of x in, then as many bytes out to y."""
    if not cuda:
        held = np.empty_like(x)
        return lambda: (np.copyto(held, x), np.copyto(y, held))
    import cupy

    runtime, memory = cupy.cuda.runtime, cupy.cuda.Memory(max(x.nbytes, y.nbytes))

    def driver_copies() -> None:
        runtime.memcpy(memory.ptr, x.ctypes.data, x.nbytes, 1)
        runtime.memcpy(y.ctypes.data, memory.ptr, y.nbytes, 2)

    return driver_copies


def body(report: script.Report) -> None:
    shape = (12, 8, 24, 32) if report.quick else (512, 64, 256, 256)
    link_seconds = pinned_cases(report, shape)
    release_pinned(report.arguments.device)
    pageable_cases(report, shape, link_seconds)


main = partial(script.run, NAME, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
