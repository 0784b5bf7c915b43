"""What every benchmark needs: arguments, the device, claims, and the report that is written."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn.bench.environment import environment
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.settings import describe
from ooc_cudnn.units import parse_limit

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Claim:
    """A figure and the bound it is to keep; without a bound it is only reported."""

    name: str
    value: float
    relation: str = ""
    bound: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if self.relation not in (("",) if self.bound is None else (">=", "<=")):
            raise ValueError(f"relation {self.relation!r} does not go with bound {self.bound}")

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None without one. NaN keeps no bound."""
        if self.bound is None:
            return None
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound

    def row(self) -> tuple[str, str, str, str]:
        verdict = {None: "", True: "PASS", False: "MISS"}[self.holds]
        bound = "" if self.bound is None else f"{self.relation} {self.bound:g} {self.unit}"
        return self.name, f"{self.value:.4g} {self.unit}".strip(), bound.strip(), verdict


class Report:
    """Collects what a benchmark measures; prints it and writes it as JSON."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.arguments = name, arguments
        self.begin = time.perf_counter()
        self.claims: list[Claim] = []
        self.measurements: dict[str, Any] = {}
        self.checks: dict[str, Any] = {}
        self.notes: list[str] = []

    def say(self, line: str) -> None:
        """Print, with the seconds since the start."""
        print(f"[{time.perf_counter() - self.begin:6.1f} s] {line}", flush=True)

    def note(self, line: str) -> None:
        """Print, and keep in the file."""
        self.notes.append(line)
        self.say(line)

    def measure(self, name: str, value: Any, *, spoken: str | None = None) -> None:
        """Keep a measurement: a `Timing` or whatever JSON knows."""
        if name in self.measurements:
            raise ValueError(f"{name!r} is measured already")
        self.measurements[name] = value.to_json() if isinstance(value, Timing) else value
        self.say(f"{name}: {spoken if spoken is not None else value}")

    def claim(
        self,
        name: str,
        value: float,
        relation: str = "",
        bound: float | None = None,
        unit: str = "",
    ) -> None:
        """Keep a claim and print it. At the quick size no figure is held to its bound."""
        if self.arguments.quick:
            relation, bound = "", None
        found = Claim(name, float(value), relation, bound, unit)
        self.claims.append(found)
        self.say("  ".join(part for part in found.row() if part))

    def check(self, name: str, found: Mapping[str, Any]) -> None:
        """Keep what a verification found: a mapping with "ok"."""
        self.checks[name] = dict(found)
        if not found["ok"]:
            self.say(f"WRONG CONTENTS in {name}: {dict(found)}")

    @property
    def verified(self) -> bool:
        """Whether contents were checked, and every check held."""
        return bool(self.checks) and all(check["ok"] for check in self.checks.values())

    def write(self, path: Path) -> None:
        """Write what was measured so far."""
        path.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "benchmark": self.name,
            "quick": self.arguments.quick,
            "verified": self.verified,
            "claims": [asdict(claim) | {"holds": claim.holds} for claim in self.claims],
            "checks": self.checks,
            "measurements": self.measurements,
            "notes": self.notes,
            "seconds": time.perf_counter() - self.begin,
            "environment": environment(self.arguments.device),
            "settings": {row.name: _plain(row.value) for row in describe()},
        }
        path.write_text(json.dumps(report, indent=1, default=_plain) + "\n", encoding="utf-8")

    def finish(self) -> int:
        """Write the file, print the table, return the exit status."""
        path = Path(self.arguments.output) / f"{self.name}.json"
        self.write(path)
        print(
            f"\n{self.name}" + (" (quick: the times mean nothing)" if self.arguments.quick else "")
        )
        print(table(("claim", "measured", "bound", ""), [claim.row() for claim in self.claims]))
        print(f"contents {'verified' if self.verified else 'WRONG OR NOT VERIFIED'}; {path}")
        missed = any(claim.holds is False for claim in self.claims)
        return 1 if not self.verified else 2 if missed and self.arguments.strict else 0


def _plain(value: Any) -> Any:
    """Make a value JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(getattr(value, "name", value))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Lay rows out in columns."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, tuple("-" * width for width in widths), *rows]
    )


def parse(
    description: str | None, argv: list[str] | None, *, needs_card: bool = True
) -> argparse.Namespace:
    """Read the arguments that every benchmark takes; `device` becomes "cuda" or "host"."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; times mean nothing")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if a bound is missed")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1 or host")
    parser.add_argument("--machine", help="machine model; by default the device's shipped profile")
    parser.add_argument("--output", default=str(RESULTS), help="folder for the JSON file")
    parser.add_argument("--scratch", help="folder for large files; by default the system's")
    arguments = parser.parse_args(argv)
    if arguments.device == "auto":
        from ooc_cudnn.devices import get_device

        arguments.device = get_device("auto").kind
    arguments.cuda = arguments.device != "host"
    if arguments.machine is None:
        arguments.machine = "h200" if arguments.cuda else "host"
    if needs_card and not (arguments.quick or arguments.cuda):
        parser.error("this benchmark needs a GPU; without one, only --quick runs")
    return arguments


def run(
    name: str,
    body: Callable[[Report], None],
    description: str | None,
    argv: list[str] | None,
    *,
    needs_card: bool = True,
) -> int:
    """Run a benchmark's body under its device's settings and report."""
    arguments = parse(description, argv, needs_card=needs_card)
    report = Report(name, arguments)
    with ooc_cudnn.settings(
        device=arguments.device, machine=arguments.machine, progress=False, verify=0
    ):
        body(report)
        return report.finish()


def synchronizer(arguments: argparse.Namespace) -> Callable[[], None]:
    """Return what waits for the whole device."""
    from ooc_cudnn.devices import get_device

    return get_device(arguments.device).synchronize


def to_device(array: np.ndarray[Any, Any], arguments: argparse.Namespace) -> Any:
    """Copy an array to the device, as the user's own array outside the library's limit."""
    if arguments.cuda:
        import cupy

        return cupy.asarray(array)
    with ooc_cudnn.settings(memory_limit="64GiB"):
        placed = ooc_cudnn.empty(array.shape, array.dtype)
    placed[...] = array
    return placed


def pinned(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return uninitialised pinned memory, by the library's own rule."""
    with ooc_cudnn.settings(memory_limit=1):
        array = ooc_cudnn.empty(shape, dtype)
    if ooc_cudnn.placement(array) != "pinned":
        raise RuntimeError(f"expected pinned memory, got {ooc_cudnn.placement(array)}")
    return array


def release_pinned(arguments: argparse.Namespace) -> None:
    """Give pinned memory that no array uses back to the system."""
    import gc

    from ooc_cudnn.devices import get_device
    from ooc_cudnn.memory.pinned import release

    gc.collect()
    release(get_device(arguments.device))


def release_device(arguments: argparse.Namespace) -> None:
    """Give the library's device memory back to the driver."""
    from ooc_cudnn.devices import get_device

    get_device(arguments.device).release_caches()


@contextmanager
def profiled() -> Iterator[list[Any]]:
    """Record calls; give the list of them."""
    with ooc_cudnn.profile() as profile:
        yield profile.calls


def diagnosis(call: Any) -> dict[str, Any]:
    """Say what a profiled call did: the plan, what the streams were busy with, where they idled."""
    plan, trace = call.plan, call.trace
    streams = {}
    for name in ("copy_in", "compute", "copy_out"):
        spans = sorted((s.start_seconds, s.stop_seconds) for s in trace.steps if s.stream == name)
        if not spans:
            continue
        covered, gap, end = 0.0, 0.0, spans[0][0]
        for start, stop in spans:
            gap = max(gap, start - end)
            covered += max(0.0, stop - max(start, end))
            end = max(end, stop)
        streams[name] = {
            "steps": len(spans),
            "first_start": spans[0][0],
            "last_stop": end,
            "covered_seconds": covered,
            "idle_seconds": end - spans[0][0] - covered,
            "longest_gap_seconds": gap,
            "bytes": trace.moved_bytes(name),
        }
    return {
        "function": call.function,
        "seconds_while_profiled": call.seconds,
        "predicted_seconds": call.predicted_seconds,
        "predicted_stages": {
            "copy_in": plan.copy_in_seconds,
            "compute": plan.compute_seconds,
            "copy_out": plan.copy_out_seconds,
        },
        "binding_stage": plan.binding_stage,
        "pieces": plan.pieces,
        "split": plan.split.to_json(),
        "order": list(plan.order),
        "rings": dict(plan.rings),
        "layout": plan.layout,
        "algorithms": list(plan.algorithms),
        "memory": dict(plan.memory),
        "memory_limit": plan.memory_limit,
        "peak_device_bytes": call.peak_device_bytes,
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "streams": streams,
    }


def spoken(found: Mapping[str, Any]) -> str:
    """Give a diagnosis in one line."""
    busy = ", ".join(
        f"{name} {s['covered_seconds'] * 1e3:.1f} ms (idle {s['idle_seconds'] * 1e3:.1f})"
        for name, s in found["streams"].items()
    )
    return (
        f"{found['pieces']} pieces {found['split']} {found['layout']} rings {found['rings']}, "
        f"profiled {found['seconds_while_profiled'] * 1e3:.1f} ms, predicted "
        f"{found['predicted_seconds'] * 1e3:.1f} ms, "
        f"peak {found['peak_device_bytes'] / 2**20:.0f} MiB; {busy}"
    )


def check_limit(report: Report, name: str, found: Mapping[str, Any], limit: str | int) -> None:
    """The library held no more than the limit it was given (counted by the arena)."""
    allowed = int(parse_limit(limit, name="limit"))
    peak = found["peak_device_bytes"]
    report.check(f"{name}: memory limit", {"ok": peak <= allowed, "peak": peak, "limit": allowed})


def folder_of(arguments: argparse.Namespace) -> str:
    """Where large files go."""
    import tempfile

    return str(arguments.scratch or os.environ.get("TMPDIR") or tempfile.gettempdir())


def main(function: Callable[[list[str] | None], int]) -> None:
    """Run a benchmark's `main` as a script."""
    sys.exit(function(None))
