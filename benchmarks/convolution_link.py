"""Convolution + bias + ReLU against the link: data far larger than the memory limit.

float32 with TF32, n=512, 64 -> 64 channels, 256x256, 3x3: 8.6 GB in and 8.6 GB out, with X and Y in
pinned memory, in plain NumPy arrays, in NumPy arrays that `pin` has page-locked, and in files. The
measure is the duplex link: raw copies of the same bytes in both directions at once, in turns with
the calls, whole and in pieces; the faster of the two counts.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from benchmarks.raw_copies import DuplexLink, one_after_the_other
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.timing import Timing, interleave, paired_ratio, timed

NAME = "convolution_link"
#: Sizes of the link's copies; None is one copy each way.
LINK_PIECES = {"link, whole": None, "link, pieces of 32 MiB": 2**25}


class Case:
    """The operands, and what is done with them again and again."""

    def __init__(self, report: common.Report) -> None:
        self.report, self.arguments = report, report.arguments
        quick = report.arguments.quick
        self.shape = (12, 8, 24, 32) if quick else (512, 64, 256, 256)
        self.limits = ("48kB", "32kB") if quick else ("16GiB", "1GiB")
        self.repeats = 2 if quick else 7
        self.images = Images.of(self.shape)
        self.w, self.b = filters(self.shape[1], self.shape[1])
        self.device_w = common.to_device(self.w, self.arguments)
        self.device_b = common.to_device(self.b, self.arguments)
        self.synchronize = common.synchronizer(self.arguments)

    def call(self, x: Any, y: Any, limit: str, **settings: Any) -> None:
        with ooc_cudnn.settings(memory_limit=limit, **settings):
            ooc_cudnn.convolution_add_activation_forward(
                x, self.device_w, self.device_b, padding=1, activation="relu", out=y
            )

    def profile_and_verify(
        self, name: str, x: Any, y: Any, limit: str, before: Any = None
    ) -> dict[str, Any]:
        """Run once more, on poisoned memory: profiled, and every output accounted for."""
        poison(y)
        if before is not None:
            before()
        with common.profiled() as calls:
            self.call(x, y, limit)
        found = common.diagnosis(calls[0])
        self.report.measure(f"{name}: call", found, spoken=common.spoken(found))
        common.check_limit(self.report, name, found, limit)
        split = calls[0].plan.split
        images = Images((y.shape[0], *self.shape[1:]), self.images.pool)
        self.report.check(
            f"{name}: contents", verify(images, self.w, self.b, y, tf32=True, split=split)
        )
        return found

    def links(self, x: Any, y: Any) -> dict[str, Any]:
        """Each way of copying x in and NaN out to y."""
        return {
            name: DuplexLink(x, y, cuda=self.arguments.cuda, piece_bytes=piece_bytes)
            for name, piece_bytes in LINK_PIECES.items()
        }

    def faster_link(self, name: str, times: dict[str, Timing]) -> Timing:
        """Keep the links' times; return those of the faster way."""
        gigabytes = 2 * self.images.nbytes / 1e9
        for way in LINK_PIECES:
            rate = gigabytes / times[way].median
            self.report.measure(f"{name}: {way}", times[way])
            self.report.measure(f"{name}: {way}: GB/s both ways together", rate)
        return min((times[way] for way in LINK_PIECES), key=lambda timing: timing.median)

    def compare(
        self, name: str, link: Timing, ours: Timing, found: dict[str, Any], bound: float
    ) -> None:
        """Claim the fraction of the link, and set the prediction beside the measurement."""
        self.report.measure(f"{name}: seconds", ours)
        ratio = paired_ratio(link, ours)
        self.report.measure(f"{name}: fraction of the link", ratio)
        self.report.claim(f"{name}: fraction of the duplex link", ratio["of_medians"], ">=", bound)
        self.report.claim(f"{name}: predicted / measured", found["predicted_seconds"] / ours.median)


def pinned_cases(case: Case) -> float:
    """X and Y in pinned memory, under each limit. Returns the link's seconds."""
    report = case.report
    begin = time.perf_counter()
    x, y = common.pinned(case.shape), common.pinned(case.shape)
    report.measure("seconds to allocate pinned x and y", time.perf_counter() - begin)
    case.images.fill(x)
    names = {f"pinned, limit {limit}": limit for limit in case.limits}
    times = interleave(
        case.links(x, y)
        | {name: lambda limit=limit: case.call(x, y, limit) for name, limit in names.items()},
        case.synchronize,
        repeats=case.repeats,
    )
    link = case.faster_link("pinned", times)
    for (name, limit), bound in zip(names.items(), (0.95, 0.93), strict=True):
        found = case.profile_and_verify(name, x, y, limit)
        case.compare(name, link, times[name], found, bound)
    return link.median


def pageable_cases(case: Case, link_seconds: float) -> None:
    """The same in NumPy arrays, as they are and page-locked in place; the driver's own copies."""
    report, limit = case.report, case.limits[0]
    x, y = np.empty(case.shape, np.float32), np.empty(case.shape, np.float32)
    case.images.fill(x)
    poison(y)

    # The driver's own copies of pageable memory are slow: an eighth of the images tells their rate.
    part = case.shape[0] // 8 or 1
    driver = interleave(
        {"driver": one_after_the_other(x[:part], y[:part], cuda=case.arguments.cuda)},
        case.synchronize,
        repeats=2,
    )["driver"]
    scaled = driver.median * case.shape[0] / part
    report.measure("pageable: driver's copies one after the other, an eighth", driver)
    report.claim("driver's pageable copies: fraction of the duplex link", link_seconds / scaled)

    name = "pageable"
    ours = interleave(
        {name: lambda: case.call(x, y, limit)},
        case.synchronize,
        repeats=max(2, case.repeats - 2),
    )[name]
    found = case.profile_and_verify(name, x, y, limit)
    report.measure(f"{name}: seconds", ours)
    report.claim(f"{name}: fraction of the duplex link", link_seconds / ours.median, ">=", 0.33)
    report.claim(f"{name}: times faster than the driver's copies", scaled / ours.median)
    report.claim(f"{name}: predicted / measured", found["predicted_seconds"] / ours.median)

    # How the figure depends on the limit and on the number of images.
    others = {
        f"pageable, limit {case.limits[1]}": lambda: case.call(x, y, case.limits[1]),
        "pageable, a quarter of the images": lambda: case.call(
            x[: case.shape[0] // 4], y[: case.shape[0] // 4], limit
        ),
    }
    for other, timing in interleave(others, case.synchronize, repeats=3).items():
        part = 4 if "quarter" in other else 1
        report.measure(f"{other}: seconds", timing)
        report.claim(f"{other}: fraction of the duplex link", link_seconds / part / timing.median)

    name = "page-locked by pin()"
    begin = time.perf_counter()
    pins = [ooc_cudnn.pin(x), ooc_cudnn.pin(y)]
    report.measure("seconds to pin x and y", time.perf_counter() - begin)
    times = interleave(
        case.links(x, y) | {name: lambda: case.call(x, y, limit)},
        case.synchronize,
        repeats=max(2, case.repeats - 2),
    )
    found = case.profile_and_verify(name, x, y, limit)
    case.compare(name, case.faster_link(name, times), times[name], found, 0.90)
    begin = time.perf_counter()
    for pin in pins:
        pin.close()
    report.measure("seconds to unpin x and y", time.perf_counter() - begin)


def forget_cached(path: Path) -> None:
    """Write a file's pages to the disk and drop them from memory: reading it reads the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def bytes_read_from_disk() -> int:
    """Bytes that this process has had fetched from storage, by reads and by page faults."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("this system does not report read_bytes")


def write_file(path: Path, array: np.ndarray[Any, Any]) -> float:
    """Seconds to write an array to a new file and to the disk behind it."""
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        view = memoryview(array).cast("B")
        for start in range(0, len(view), 2**24):
            file.write(view[start : start + 2**24])
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def read_file(path: Path) -> float:
    """Seconds to read a file in order, from the disk."""
    forget_cached(path)
    buffer = bytearray(2**24)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, found, *_ = line.split()
        if str(folder.resolve()).startswith(place) and len(place) > len(best):
            best, kind = place, found
    return kind


def disk_case(case: Case) -> None:
    """x and y in files that are not in memory; compared with the disk and with the serial call."""
    report = case.report
    count = 12 if case.arguments.quick else 64
    limit = "96kB" if case.arguments.quick else "2GiB"
    images = Images((count, *case.shape[1:]), case.images.pool)
    folder = Path(tempfile.mkdtemp(prefix="ooc_cudnn_", dir=common.folder_of(case.arguments)))
    report.measure("disk: file system", file_system(folder))
    try:
        x_path, y_path = folder / "x", folder / "y"
        content = images.fill(np.empty(images.shape, np.float32))
        written = Timing(tuple(write_file(x_path, content) for _ in range(2)))
        del content
        read = Timing(tuple(read_file(x_path) for _ in range(3)))
        report.measure("disk: write and fsync of x", written)
        report.measure("disk: read of x, uncached", read)
        gigabytes = images.nbytes / 1e9
        report.measure("disk: GB/s written", gigabytes / written.median)
        report.measure("disk: GB/s read", gigabytes / read.median)
        x = np.memmap(x_path, np.float32, "r", shape=images.shape)
        y = np.memmap(y_path, np.float32, "w+", shape=images.shape)
        poison(y)
        y.flush()

        def cold() -> None:
            # Pages that are mapped are not dropped, so they are unmapped first.
            x._mmap.madvise(mmap.MADV_DONTNEED)
            forget_cached(x_path)

        def cold_and_new() -> None:
            """As a user's call finds it: x on the disk alone, y a new file without content."""
            cold()
            os.truncate(y_path, 0)
            os.truncate(y_path, images.nbytes)

        ways = {"overlapped": True, "one after the other": False}
        times = interleave(
            {n: lambda o=o: case.call(x, y, limit, overlap=o) for n, o in ways.items()},
            case.synchronize,
            repeats=3,
            before=dict.fromkeys(ways, cold_and_new),
        )
        warm = interleave({"warm": lambda: case.call(x, y, limit)}, case.synchronize, repeats=3)[
            "warm"
        ]
        cold_and_new()
        begin = bytes_read_from_disk()
        case.call(x, y, limit)
        fetched = bytes_read_from_disk() - begin
        flush = timed(y.flush, case.synchronize)
        report.measure("disk: bytes fetched by a call, of x's bytes", fetched / images.nbytes)
        for name, timing in times.items():
            report.measure(f"disk: {name}, files not cached", timing)
        report.measure("disk: overlapped, files cached", warm)
        report.measure("disk: flush of y after a call", flush)
        ours = times["overlapped"].median
        found = case.profile_and_verify("disk", x, y, limit, before=cold)
        stages = sum(s["covered_seconds"] for s in found["streams"].values())
        report.measure("disk: sum of the stages of the profiled call", stages)
        report.claim("disk: GB/s in (as many out at once)", gigabytes / ours, unit="GB/s")
        report.claim("disk: call / reading x alone", ours / read.median)
        report.claim(
            "disk: call and flush / (reading x + writing y)",
            (ours + flush) / (read.median + written.median),
        )
        report.claim(
            "disk: profiled call / sum of its stages on the device",
            found["seconds_while_profiled"] / stages,
        )
        report.claim(
            "disk: overlapped / same call with overlap off",
            ours / times["one after the other"].median, "<=", 0.9,
        )  # fmt: skip
        report.claim("disk: predicted / measured", found["predicted_seconds"] / ours)
    finally:
        shutil.rmtree(folder)


def body(report: common.Report) -> None:
    case = Case(report)
    link_seconds = pinned_cases(case)
    common.release_pinned(report.arguments)
    pageable_cases(case, link_seconds)
    disk_case(case)


def main(argv: list[str] | None = None) -> int:
    return common.run(NAME, body, __doc__, argv)


if __name__ == "__main__":
    common.main(main)
