"""The host device, on a machine without a GPU: what splitting costs, and what memory it takes.

n=8, 64 -> 64 channels, 128x128, 3x3, float32 in NumPy memory: in one piece, and in many under small
limits. And a call from one file to another in a process of its own, whose anonymous memory is
watched from outside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.bench.timing import interleave, paired_ratio
from ooc_cudnn.units import parse_limit

NAME = "host_split"


def splitting(report: common.Report) -> None:
    """The same computation whole and in pieces, in turns."""
    quick = report.arguments.quick
    shape = (4, 8, 24, 32) if quick else (8, 64, 128, 128)
    limits = ("128kB", "96kB") if quick else ("64MiB", "16MiB", "4MiB")
    images = Images.of(shape)
    w, b = filters(shape[1], shape[1])
    x, y = images.fill(np.empty(shape, np.float32)), np.empty(shape, np.float32)

    def call(limit: str, overlap: bool) -> None:
        with ooc_cudnn.settings(memory_limit=limit, overlap=overlap):
            ooc_cudnn.convolution_add_activation_forward(
                x, w, b, padding=1, activation="relu", out=y
            )

    cases = {"whole": ("2GiB", False)}
    for limit in limits:
        cases |= {f"limit {limit}, overlap {'on' if overlap else 'off'}": (limit, overlap)
                  for overlap in (False, True)}  # fmt: skip
    cases["limit 2GiB, overlap on"] = ("2GiB", True)
    for name, case in cases.items():
        poison(y)
        with common.profiled() as calls:
            call(*case)
        found = common.diagnosis(calls[0])
        report.measure(f"{name}: call", found, spoken=common.spoken(found))
        common.check_limit(report, name, found, case[0])
        report.check(
            f"{name}: contents", verify(images, w, b, y, tf32=True, split=calls[0].plan.split)
        )
    pieces = {name: report.measurements[f"{name}: call"]["pieces"] for name in cases}
    if pieces["whole"] != 1:
        raise RuntimeError(f"the unsplit computation was split into {pieces['whole']} pieces")
    times = interleave(
        {name: lambda case=case: call(*case) for name, case in cases.items()},
        lambda: None,
        repeats=2 if quick else 15,
    )
    for name, timing in times.items():
        report.measure(f"{name}: seconds", timing)
        predicted = report.measurements[f"{name}: call"]["predicted_seconds"]
        report.claim(f"{name}: predicted / measured", predicted / timing.median)
        if name != "whole":
            ratio = paired_ratio(timing, times["whole"])
            report.measure(f"{name}: time / whole", ratio)
            report.claim(
                f"{name} ({pieces[name]} pieces): time / whole", ratio["of_medians"], "<=", 1.15
            )


def anonymous_bytes(process: str = "self") -> int:
    """Memory of a process that no file backs."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report RssAnon")


def child(x_path: str, y_path: str, shape: list[int], limit: str) -> None:
    """In a process of its own: one call between files, with a parent that watches."""
    w, b = filters(shape[1], shape[1])
    x = np.memmap(x_path, np.float32, "r", shape=tuple(shape))
    y = np.memmap(y_path, np.float32, "r+", shape=tuple(shape))
    with ooc_cudnn.settings(device="host", machine="host", memory_limit=limit, progress=False):
        print(json.dumps({"before": anonymous_bytes()}), flush=True)
        sys.stdin.readline()  # the parent watches from here on
        ooc_cudnn.convolution_add_activation_forward(x, w, b, padding=1, activation="relu", out=y)
    print(json.dumps({"after": anonymous_bytes()}), flush=True)


def memory(report: common.Report) -> None:
    """Anonymous memory of a call between two files, sampled every few milliseconds from outside."""
    quick = report.arguments.quick
    shape = (4, 8, 24, 32) if quick else (64, 64, 128, 128)
    limit = "96kB" if quick else "64MiB"
    images = Images.of(shape)
    w, b = filters(shape[1], shape[1])
    folder = Path(tempfile.mkdtemp(prefix="ooc_cudnn_", dir=common.folder_of(report.arguments)))
    try:
        x_path, y_path = folder / "x", folder / "y"
        x = np.memmap(x_path, np.float32, "w+", shape=shape)
        y = np.memmap(y_path, np.float32, "w+", shape=shape)
        images.fill(x)
        poison(y)
        command = [
            sys.executable, "-c",
            "from benchmarks.host_split import child; "
            f"child({str(x_path)!r}, {str(y_path)!r}, {list(shape)!r}, {limit!r})",
        ]  # fmt: skip
        surroundings = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")])
        }
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            before = json.loads(process.stdout.readline())["before"]
            samples: list[int] = []
            stop = threading.Event()

            def watch() -> None:
                while not stop.is_set():
                    try:
                        samples.append(anonymous_bytes(str(process.pid)))
                    except (OSError, RuntimeError):
                        return
                    time.sleep(0.002)

            watcher = threading.Thread(target=watch)
            watcher.start()
            begin = time.perf_counter()
            process.stdin.write("\n")
            process.stdin.flush()
            after = json.loads(process.stdout.readline())["after"]
            seconds = time.perf_counter() - begin
            stop.set()
            watcher.join()
        if process.returncode != 0:
            raise RuntimeError(f"the call's process ended with {process.returncode}")
        report.check("files: contents", verify(images, w, b, y, tf32=True))
        allowed = int(parse_limit(limit, name="limit")) + 200_000_000
        most = max([*samples, after])
        report.measure(
            "files: anonymous memory",
            {
                "data_bytes": 2 * images.nbytes,
                "limit": limit,
                "before_bytes": before,
                "most_bytes": most,
                "samples": len(samples),
                "seconds": seconds,
            },
        )
        report.claim(
            f"files of {2 * images.nbytes / 1e6:.0f} MB, limit {limit}: anonymous memory gained",
            (most - before) / 1e6, "<=", allowed / 1e6, "MB",
        )  # fmt: skip
    finally:
        shutil.rmtree(folder)


def body(report: common.Report) -> None:
    if report.arguments.device != "host":
        raise SystemExit("host_split measures the host device: --device host")
    memory(report)
    splitting(report)


def main(argv: list[str] | None = None) -> int:
    arguments: Any = sys.argv[1:] if argv is None else argv
    return common.run(NAME, body, __doc__, ["--device", "host", *arguments], needs_card=False)


if __name__ == "__main__":
    common.main(main)
