"""What a run of many cases found: counted, printed, stored."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from ooc_cudnn.bench.environment import environment
from ooc_cudnn.bench.record import dump_record
from ooc_cudnn.bench.sources import digests, sources_of


class Record:
    """Collects outcomes; prints findings as they come and a table last."""

    def __init__(self, device, arguments, told):
        self.device, self.arguments, self.told = device, arguments, told
        self.begin = time.perf_counter()
        self.cases, self.calls = Counter(), Counter()
        self.findings, self.refused = [], Counter()
        self.seconds = []

    def add(self, outcome):
        self.cases[outcome.function] += 1
        self.calls[outcome.function] += outcome.calls
        self.seconds.append(outcome.seconds)
        if outcome.refused:
            self.refused[outcome.refused] += 1
        if outcome.findings:
            self.findings.append(outcome)
            print(self.repeat(outcome.seed), flush=True)
            if outcome.description:
                print(outcome.description)
            for line in outcome.findings:
                print(f"  {line}", flush=True)
        elif sum(self.cases.values()) % 500 == 0:
            print(self.line(), flush=True)

    def repeat(self, seed):
        """The command that repeats a case."""
        return " ".join(["python -m tests.fuzz", *self.told, "--seed", str(seed)])

    def line(self):
        return (
            f"{sum(self.cases.values())} cases, {sum(self.calls.values())} calls in "
            f"{time.perf_counter() - self.begin:.0f} s, {len(self.findings)} with findings"
            + (f", {self.refused.total()} refused" if self.refused else "")
        )

    def finish(self):
        """Print the table; 1 if anything was found, or nothing was run."""
        if self.findings:
            print(f"\n{'seed':>8}  {'function':<44}  what")
            for outcome in sorted(self.findings):
                print(f"{outcome.seed:>8}  {outcome.function:<44}  {outcome.findings[0][:110]}")
        for reason, count in self.refused.most_common():
            print(f"{count:>8} refused: {reason}")
        print(self.line())
        return 1 if self.findings or not self.cases else 0

    def write(self, path):
        """Store it as the benchmarks do."""
        seconds = sorted(self.seconds) or [0.0]
        record = {
            "benchmark": "fuzz",
            "command": "python -m tests.fuzz " + " ".join(self.arguments),
            "cases": sum(self.cases.values()),
            "calls": sum(self.calls.values()),
            "cases_by_function": dict(sorted(self.cases.items())),
            "calls_by_function": dict(sorted(self.calls.items())),
            **({"refused": dict(self.refused.most_common())} if self.refused else {}),
            "findings": [
                {
                    "seed": o.seed, "function": o.function, "case": o.description,
                    "found": o.findings,
                }
                for o in sorted(self.findings)
            ],
            "seconds": time.perf_counter() - self.begin,
            "seconds_of_a_case": {
                "median": seconds[len(seconds) // 2], "longest": seconds[-1]
            },
            "files": digests(sources_of(f"fuzz_{self.device}")),
            "environment": environment(self.device),
        }  # fmt: skip
        Path(path).write_text(dump_record(record) + "\n", encoding="utf-8")
