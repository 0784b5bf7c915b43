"""The stored records of the suite, asked by case and contender; what is missing has a reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders.cases import CASES
from benchmarks.pages.blocks import NOT_MEASURED
from ooc_cudnn.bench import script
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.devices.base import STREAMS

FOLDER = script.RESULTS / "bench"
#: What of a case must be as it is today for its record to be shown.
FIXED = ("sizes", "memory_limit", "allow_tf32", "workload")


@dataclass(frozen=True)
class Records:
    """Records of full-size runs by the names of their cases.

    `unfit` says of cases whose stored record is not shown why it is not.
    """

    found: Mapping[str, Mapping[str, Any]]
    unfit: Mapping[str, str]

    def reason(self, case: str, contender: str = OURS) -> str | None:
        """Say why there is no time of a contender; None where there is one."""
        record = self.found.get(case)
        if record is None:
            return self.unfit.get(case, NOT_MEASURED)
        entry = record["contenders"].get(contender)
        if entry is None:
            return str(record.get("reason", NOT_MEASURED))
        if entry["status"] != "measured":
            return str(entry["reason"])
        if entry["check"] is not None and not entry["check"]["ok"]:
            return "its result is WRONG"
        return None

    def contender(self, case: str, contender: str = OURS) -> Mapping[str, Any] | None:
        """Return what is known of a contender that ran and was right; None otherwise."""
        if self.reason(case, contender) is not None:
            return None
        found: Mapping[str, Any] = self.found[case]["contenders"][contender]
        return found

    def seconds(self, case: str, contender: str = OURS) -> float | None:
        found = self.contender(case, contender)
        return None if found is None else float(found["seconds"]["median"])

    def gflops(self, case: str, contender: str = OURS) -> float | None:
        found = self.contender(case, contender)
        return None if found is None else float(found["GFLOPS"])

    def ratio(self, case: str, contender: str) -> float | None:
        """A contender's seconds over the library's; None unless both ran."""
        found = self.contender(case, contender)
        if found is None or found["ratio"] is None or self.contender(case) is None:
            return None
        return float(found["ratio"]["of_medians"])

    def details(self, case: str, contender: str = OURS) -> Mapping[str, Any]:
        """Plan, stages, peak memory; empty where the contender did not run."""
        found = self.contender(case, contender)
        return {} if found is None else found["details"]

    def of(self, cases: Iterable[str]) -> list[Mapping[str, Any]]:
        """Return those of these cases' records that are there."""
        return [self.found[name] for name in cases if name in self.found]


def load(folder: Path = FOLDER) -> Records:
    """Read every record of a folder; a quick run's, or one of other sizes, is not shown."""
    fit, unfit = {}, {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        name = record["case"]["name"]
        if name not in CASES:
            continue
        now = CASES[name].to_json()
        if record["quick"]:
            unfit[name] = "measured at its tiny size only"
        elif changed := [key for key in FIXED if record["case"][key] != now[key]]:
            unfit[name] = f"measured with other {' and '.join(changed)} than it has now"
        else:
            fit[name] = record
    return Records(fit, unfit)


def names(pattern: str) -> list[str]:
    """Return the cases whose names begin so, in the suite's order.

    Examples
    --------
    >>> names("fig10-n1-")
    ['fig10-n1-strict', 'fig10-n1-tf32']
    """
    return [name for name in CASES if name.startswith(pattern)]


def feature_bytes(case: str) -> int:
    """Bytes of x, as many as of y where there are as many channels.

    Examples
    --------
    >>> feature_bytes("fig14-4gb-tf32")
    4294967296
    """
    sizes = CASES[case].sizes
    return 4 * sizes["n"] * sizes["c_x"] * sizes["height"] * sizes["width"]


def stage_seconds(call: Mapping[str, Any]) -> dict[str, float]:
    """Seconds for which each stream of a profiled call was at work."""
    streams = call["streams"]
    return {name: streams[name]["covered_seconds"] if name in streams else 0.0 for name in STREAMS}
