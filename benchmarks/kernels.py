"""The kernels that move memory, beside a device-to-device copy of the same bytes, and PyTorch.

Re-layouts, softmax and pooling of float32 on the layers of Li et al. (SC 2016). A kernel's launch
is timed through the device's contract, several in a row while the stream is held, so that the host
is no part of it; PyTorch's call and the copy are timed alike and take turns with it. Beside that
stands the public function, as a user calls it. What lies in the cache is no measure of memory:
small tensors are there several times, and launches go from one to the next. Contents are compared
on a small map, with what the host device makes of it; of the large one every element is written.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks.kernel_cases import UNWRITTEN, Case, cases, filled, view_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.clock import Clock, Runs
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device

NAME = "kernels"
#: Of numbers that are smaller than this no relative error is asked.
TINY = 1e-12
#: Bytes that launches go over before they meet the same again, and sets of tensors at the most.
BEYOND_CACHE, MOST_SETS = 256 * 10**6, 32
#: Calls of the public function, whose host's part counts.
PUBLIC_CALLS, PUBLIC_BATCHES = 10, 3
COMPILERS = 16


class Bench:
    """Measures and checks one case after the other."""

    def __init__(self, report: script.Report, torch: Any) -> None:
        self.report, self.torch = report, torch
        self.clock = Clock(report.arguments.device, quick=report.quick)
        self.place = "cuda" if report.arguments.cuda else "cpu"
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def ours(
        self, case: Case, tensors: Mapping[str, Any], on: Device | None = None
    ) -> Callable[[], Any]:
        """The launch on the device, or on another one; its workspace is kept with it."""
        device, launch = on or self.clock.device, case.launch
        answer = device.workspace(((launch, {}),), None)
        nbytes, place = answer[0] if answer else 0, tensors[launch.output].device
        scratch = self.torch.empty(max(nbytes, 1), dtype=self.torch.uint8, device=place)
        views = {name: view_of(tensor) for name, tensor in tensors.items()}

        def run(_kept: Any = (scratch, tensors)) -> None:
            device.run(launch, views, (scratch.data_ptr(), nbytes), None)

        return run

    def copies(self, nbytes: int, sets: int) -> Runs:
        """Copies that read and write as many bytes together."""
        floats = max(nbytes // 8, 1)
        memory = self.torch.ones((sets, 2, floats), device=self.place)
        return [partial(pair[1].copy_, pair[0]) for pair in memory]

    def warm(self, case: Case) -> None:
        """Run once, so that the kernel is compiled."""
        tensors = filled(self.torch, case, self.place)
        self.ours(case, tensors)()

    def contents(self, case: Case) -> dict[str, Any]:
        """Run on a result of NaN, and compare every tensor with the host device's, in NumPy."""
        tensors = filled(self.torch, case, self.place)
        on_host = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        self.ours(case, tensors)()
        self.ours(case, on_host, get_device("host"))()
        self.report.synchronize()
        errors = [self.error(tensors[name].cpu(), each, case) for name, each in on_host.items()]
        return {"ok": max(errors) <= case.tolerance, "error": max(errors)}

    def error(self, found: Any, expected: Any, case: Case) -> float:
        """The largest difference, as a share of the largest element; of integers 0, or all."""
        if not case.tolerance or not found.dtype.is_floating_point:
            return 0.0 if self.torch.equal(found, expected) else math.inf
        # States have rows of very different sizes, so each of their numbers is judged by itself.
        size = expected.double().abs()
        size = size.clamp_min(TINY) if found.dtype == self.torch.float64 else size.max()
        error = float(((found.double() - expected.double()).abs() / size).max())
        return error if math.isfinite(error) else math.inf

    def unwritten(self, case: Case, tensors: Mapping[str, Any]) -> int:
        """Run on a result of NaN, and count what is still NaN."""
        result = tensors[case.launch.output]
        result.fill_(math.nan if result.dtype.is_floating_point else UNWRITTEN)
        self.ours(case, tensors)()
        return int(self.torch.isnan(result).sum())

    def measure(self, case: Case) -> None:
        report = self.report
        number = min(max(-(-BEYOND_CACHE // case.nbytes), 1), 2 if report.quick else MOST_SETS)
        sets = [filled(self.torch, case, self.place) for _ in range(number)]
        found = self.contents(case.small or case) | {"unwritten": self.unwritten(case, sets[0])}
        found["ok"] &= not found["unwritten"]
        report.check(f"{case.name}: contents", found)
        ways: dict[str, Runs] = {
            "ours": [self.ours(case, tensors) for tensors in sets],
            "copy": self.copies(case.nbytes, number),
        }
        if case.theirs is not None:
            ways["PyTorch"] = [case.theirs(self.torch, tensors) for tensors in sets]
        timings = self.clock.measure(ways)
        row: dict[str, Any] = {"name": case.name, "kind": case.kind, "bytes": case.nbytes}
        row |= {"share_bound": case.share, "time_bound": case.time}
        row |= {way: {"median": t.median, "p10": t.percentile(10), "p90": t.percentile(90)}
                for way, t in timings.items()}  # fmt: skip
        if case.public is not None:
            call = [partial(case.public, tensors) for tensors in sets]
            calls, batches = (1, 1) if report.quick else (PUBLIC_CALLS, PUBLIC_BATCHES)
            self.clock.batch(call, 1, held=False)
            samples = [self.clock.batch(call, calls, held=False) for _ in range(batches)]
            row["public"] = Timing(tuple(samples)).median
        self.rows.setdefault(case.group, []).append(row)

    def judge(self) -> None:
        """Work out shares and ratios, print them, and hold them to their bounds."""
        for group, rows in self.rows.items():
            best: dict[str, float] = {}
            for row in rows:
                if "PyTorch" in row:
                    kind = row["kind"] or row["name"]
                    best[kind] = min(best.get(kind, math.inf), row["PyTorch"]["median"])
            for row in rows:
                ours, kind = row["ours"]["median"], row["kind"] or row["name"]
                row["GB/s"] = row["bytes"] / ours / 1e9
                row["share"] = row["copy"]["median"] / ours
                theirs = row["PyTorch"]["median"] if "PyTorch" in row else best.get(kind)
                row["over_pytorch"] = None if theirs is None else ours / theirs
                row["holds"] = holds(row)
            self.report.measure(group, rows, spoken=f"{len(rows)} cases")
            self.claims(group, rows)

    def claims(self, group: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """The worst of a group against each bound."""
        claim = self.report.claim
        shares = [row for row in rows if row["share_bound"] is not None]
        if shares:
            worst = min(shares, key=lambda row: row["share"])
            claim(f"{group}: least share of the copy", worst["share"], ">=", worst["share_bound"])
        times = [row for row in rows if row["time_bound"] and row["over_pytorch"] is not None]
        if times:
            worst = max(times, key=lambda row: row["over_pytorch"])
            claim(f"{group}: most time over PyTorch's", worst["over_pytorch"], "<=",
                  worst["time_bound"])  # fmt: skip
        claim(f"{group}: share of cases that hold", sum(row["holds"] for row in rows) / len(rows))

    def table(self) -> str:
        """One line a case, those that miss a bound last."""
        rows = [row for found in self.rows.values() for row in found]
        rows.sort(key=lambda row: not row["holds"])
        head = ("case", "GB/s", "of copy", "PyTorch/ours", "public us", "bound", "")
        return script.table(head, [line(row) for row in rows])


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a case keeps all of its bounds."""
    shared = row["share_bound"] is None or row["share"] >= row["share_bound"]
    ratio = row["over_pytorch"]
    return bool(shared and (not row["time_bound"] or ratio is None or ratio <= row["time_bound"]))


def line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A case as the table prints it."""
    ratio, bounds = row["over_pytorch"], []
    if row["share_bound"] is not None:
        bounds.append(f">={row['share_bound']:.0%}")
    if row["time_bound"]:
        bounds.append(f">={1 / row['time_bound']:.2f}x")
    return (
        row["name"], f"{row['GB/s']:.0f}", f"{row['share']:.0%}",
        "" if ratio is None else f"{1 / ratio:.2f}",
        f"{1e6 * row['public']:.0f}" if "public" in row else "",
        " ".join(bounds), "PASS" if row["holds"] else "MISS",
    )  # fmt: skip


def compiled(bench: Bench, wanted: Sequence[Case], until: float) -> None:
    """Compile the kernels of all cases side by side, as far as time allows."""
    pool = ThreadPoolExecutor(COMPILERS)
    waiting = [pool.submit(bench.warm, case) for case in wanted]
    done, _ = wait(waiting, timeout=max(until - time.perf_counter(), 0))
    pool.shutdown(cancel_futures=True)
    bench.torch.cuda.empty_cache()
    bench.report.note(f"{len(done)} of {len(waiting)} kernels compiled ahead")


def measured(report: script.Report, every: Sequence[Case]) -> None:
    """Measure the cases that are asked for, as far as time allows, and print them."""
    import torch

    arguments = report.arguments
    bench = Bench(report, torch)
    until = report.begin + arguments.seconds
    wanted = [
        case for case in every
        if not arguments.only or any(word in f"{case.group} {case.name}" for word in arguments.only)
    ]  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad(), ooc_cudnn.settings(memory_limit="32GiB"):
        if arguments.cuda:
            compiled(bench, wanted, report.begin + arguments.seconds / 2)
        for index, case in enumerate(wanted):
            if time.perf_counter() > until:
                report.note(f"no time for {len(wanted) - index} cases, from {case.name} on")
                break
            try:
                bench.measure(case)
            except Exception as error:  # the others are still worth their time on the card
                failure = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                report.check(f"{case.name}: contents", failure)
    bench.judge()
    print(bench.table())


def body(report: script.Report) -> None:
    measured(report, cases(quick=report.quick))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=70, help="no case is begun after so many")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose name has a word")


main = partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
