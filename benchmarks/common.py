"""What every benchmark needs: arguments, the device, claims, and the report that is written."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn.bench import placing
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.diagnosis import diagnosis, limit_kept, profiled, spoken
from ooc_cudnn.bench.environment import effective_settings, environment
from ooc_cudnn.bench.placing import pinned
from ooc_cudnn.bench.record import table, written
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.call.call_cache import forget_calls

__all__ = ["Claim", "Report", "pinned", "profiled", "table"]

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
        self.file = name  # a benchmark of host and card alike has one for each
        self.begin = time.perf_counter()
        self.claims: list[Claim] = []
        self.measurements: dict[str, Any] = {}
        self.checks: dict[str, Any] = {}
        self.notes: list[str] = []

    @property
    def quick(self) -> bool:
        """Whether sizes are tiny, and times mean nothing."""
        return bool(self.arguments.quick)

    @property
    def synchronize(self) -> Callable[[], None]:
        """What waits for the whole device."""
        return get_device(self.arguments.device).synchronize

    def to_device(self, array: np.ndarray[Any, Any]) -> Any:
        """Copy an array to the device, as the user's own array outside the library's limit."""
        return placing.to_device(array, cuda=self.arguments.cuda)

    def say(self, line: str) -> None:
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
        if self.quick:
            relation, bound = "", None
        found = Claim(name, float(value), relation, bound, unit)
        self.claims.append(found)
        self.say("  ".join(part for part in found.row() if part))

    def check(self, name: str, found: Mapping[str, Any]) -> None:
        self.checks[name] = dict(found)
        if not found["ok"]:
            self.say(f"WRONG CONTENTS in {name}: {dict(found)}")

    def profile(
        self, name: str, call: Callable[[], Any], limit: str | int | None = None
    ) -> tuple[dict[str, Any], Any]:
        """Run once more, profiled: keep what the call did, and hold it to its memory limit.

        Returns what it did, as plain values, and the call as it was recorded.
        """
        with profiled() as calls:
            call()
        found = diagnosis(calls[0])
        self.measure(f"{name}: call", found, spoken=spoken(found))
        if limit is not None:
            self.check(f"{name}: memory limit", limit_kept(found, limit))
        return found, calls[0]

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
        """Whether contents were checked, and every check held."""
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
            "environment": environment(self.arguments.device),
            "settings": effective_settings(),
        }
        path.write_text(written(report) + "\n", encoding="utf-8")
        return path

    def finish(self) -> int:
        """Write the file, print the table, return the exit status."""
        path = self.write()
        print(f"\n{self.name}" + (" (quick: the times mean nothing)" if self.quick else ""))
        print(table(("claim", "measured", "bound", ""), [claim.row() for claim in self.claims]))
        print(f"contents {'verified' if self.verified else 'WRONG OR NOT VERIFIED'}; {path}")
        missed = any(claim.holds is False for claim in self.claims)
        return 1 if not self.verified else 2 if missed and self.arguments.strict else 0


def parse(
    description: str | None,
    argv: list[str] | None,
    *,
    needs_card: bool = True,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """Read the arguments that every benchmark takes; `device` becomes "cuda" or "host".

    `more` adds those of one benchmark.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; times mean nothing")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if a bound is missed")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1 or host")
    parser.add_argument("--machine", help="machine model; by default the device's shipped profile")
    parser.add_argument("--output", default=str(RESULTS), help="folder for the JSON file")
    parser.add_argument("--scratch", help="folder for large files; by default the system's")
    if more is not None:
        more(parser)
    arguments = parser.parse_args(argv)
    if arguments.device == "auto":
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
    argv: list[str] | None = None,
    *,
    first: Sequence[str] = (),
    needs_card: bool = True,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> int:
    """Run a benchmark's body under its device's settings and report.

    `first` are arguments of its own, ahead of those that are given.
    """
    given = [*first, *(sys.argv[1:] if argv is None else argv)]
    arguments = parse(description, given, needs_card=needs_card, more=more)
    report = Report(name, arguments)
    with ooc_cudnn.settings(
        device=arguments.device,
        machine=arguments.machine,
        plan_cache=False,  # seconds of planning are those of planning
        progress=False,
        verify=0,
    ):
        body(report)
        return report.finish()


@contextmanager
def no_stored_engines() -> Iterator[None]:
    """Keep what users have stored out of it, and what is stored here out of theirs."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        forget_calls()
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
            forget_calls()


def folder_of(arguments: argparse.Namespace) -> str:
    """Where large files go."""
    return str(arguments.scratch or os.environ.get("TMPDIR") or tempfile.gettempdir())


def main(function: Callable[[list[str] | None], int]) -> None:
    sys.exit(function(None))
