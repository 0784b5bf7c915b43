"""A benchmark's measurements, claims and checks: printed, and written as one record."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.bench import placing
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.diagnosis import diagnosis, format_diagnosis, limit_kept, record_calls
from ooc_cudnn.bench.environment import effective_settings, environment
from ooc_cudnn.bench.record import dump_record, table
from ooc_cudnn.bench.sources import digests, sources_of
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.devices import get_device


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
        """True if the bound is kept; None without one. NaN keeps no bound."""
        if self.bound is None:
            return None
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound

    def row(self) -> tuple[str, str, str, str]:
        """Return name, value, bound and verdict, as a table has them."""
        verdict = {None: "", True: "PASS", False: "MISS"}[self.holds]
        bound = "" if self.bound is None else f"{self.relation} {self.bound:g} {self.unit}"
        return self.name, f"{self.value:.4g} {self.unit}".strip(), bound.strip(), verdict


class Report:
    """Collects what a benchmark measures; prints it and writes it as JSON."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.arguments = name, arguments
        self.file = name  # a benchmark of host and card alike has one for each
        self.begin = time.perf_counter()
        self.claims: list[Claim] = []
        self.measurements: dict[str, Any] = {}
        self.checks: dict[str, Any] = {}
        self.notes: list[str] = []

    @property
    def quick(self) -> bool:
        """True if sizes are tiny, and times mean nothing."""
        return bool(self.arguments.quick)

    @property
    def synchronize(self) -> Callable[[], None]:
        """Return the function that waits for the whole device."""
        return get_device(self.arguments.device).synchronize

    def to_device(self, array: np.ndarray[Any, Any]) -> Any:
        """Copy an array to the device, as the user's own array outside the library's limit."""
        return placing.to_device(array, cuda=self.arguments.cuda)

    def say(self, line: str) -> None:
        """Print a line, after the seconds since it began."""
        _print(f"[{time.perf_counter() - self.begin:6.1f} s] {line}")

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
        if self.quick:
            relation, bound = "", None
        found = Claim(name, float(value), relation, bound, unit)
        self.claims.append(found)
        self.say("  ".join(part for part in found.row() if part))

    def check(self, name: str, found: Mapping[str, Any]) -> None:
        """Keep a check, whose "ok" says whether it held; print it if it did not."""
        self.checks[name] = dict(found)
        if not found["ok"]:
            self.say(f"WRONG CONTENTS in {name}: {dict(found)}")

    def profile(
        self, name: str, call: Callable[[], Any], limit: str | int | None = None
    ) -> tuple[dict[str, Any], Any]:
        """Run once more, profiled: keep what the call did, and hold it to its memory limit.

        Returns what it did, as plain values, and the call as it was recorded.
        """
        with record_calls() as calls:
            call()
        record = diagnosis(calls[0])
        self.measure(f"{name}: call", record, spoken=format_diagnosis(record))
        if limit is not None:
            self.check(f"{name}: memory limit", limit_kept(record, limit))
        return record, calls[0]

    def profile_and_verify(
        self,
        name: str,
        call: Callable[[], Any],
        on: Operands,
        limit: str | int | None = None,
        *,
        fused: bool = True,
    ) -> tuple[dict[str, Any], Any]:
        """`profile` a convolution on a poisoned result, and account for every output."""
        poison(on.y)
        found, record = self.profile(name, call, limit)
        split = record.plan.split
        self.check(f"{name}: contents", on.verified(on.y, split=split, fused=fused))
        return found, record

    def predicted(self, name: str, found: Mapping[str, Any], seconds: float) -> None:
        """Claim how near a call's prediction was."""
        self.claim(f"{name}: predicted / measured", found["predicted_seconds"] / seconds)

    @property
    def verified(self) -> bool:
        """True if contents were checked, and every check held."""
        return bool(self.checks) and all(check["ok"] for check in self.checks.values())

    def write(self) -> Path:
        """Write what was measured so far."""
        path = Path(self.arguments.output) / f"{self.file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "benchmark": self.name,
            "quick": self.quick,
            "verified": self.verified,
            "claims": [asdict(claim) | {"holds": claim.holds} for claim in self.claims],
            "checks": self.checks,
            "measurements": self.measurements,
            "notes": self.notes,
            "seconds": time.perf_counter() - self.begin,
            "files": digests(sources_of(self.file)),
            "environment": environment(self.arguments.device),
            "settings": effective_settings(),
        }
        path.write_text(dump_record(report) + "\n", encoding="utf-8")
        return path

    def finish(self) -> int:
        """Write the file, print the table, return the exit status."""
        path = self.write()
        _print(f"\n{self.name}" + (" (quick: the times mean nothing)" if self.quick else ""))
        _print(table(("claim", "measured", "bound", ""), [claim.row() for claim in self.claims]))
        _print(f"contents {'verified' if self.verified else 'WRONG OR NOT VERIFIED'}; {path}")
        missed = any(claim.holds is False for claim in self.claims)
        return 1 if not self.verified else 2 if missed and self.arguments.strict else 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
