"""``ooc-cudnn bench``: which cases, on what device, and the table at the end."""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ooc_cudnn.bench.case import OURS, Case
from ooc_cudnn.bench.record import dump_record, table
from ooc_cudnn.bench.runner import Say, failed_contenders, run_case
from ooc_cudnn.bench.steadiness import disagreements
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceUnavailableError
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_seconds

HEAD = ("case", "contender", "median", "spread", "of the library's", "GFLOPS", "contents")


def select(patterns: Sequence[str], cases: Mapping[str, Case]) -> list[Case]:
    """Return the cases that names or globs mean, in the suite's order; all without any.

    Raises
    ------
    ValueError
        If one means none: the message suggests the nearest.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = fnmatch.filter(cases, pattern.lower())
        if not matches:
            near = difflib.get_close_matches(pattern.lower(), cases, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"no case is named {pattern!r}; {hint}`ooc-cudnn bench --list` has all"
            )
        chosen.update(matches)
    return [case for name, case in cases.items() if not patterns or name in chosen]


def list_cases(cases: Sequence[Case]) -> str:
    """The cases, one a line."""
    rows = [(case.name, case.memory_limit, case.about, case.source) for case in cases]
    return table(("case", "limit", "what", "from"), rows)


def run_cases(
    cases: Sequence[Case],
    *,
    quick: bool,
    device: str | None,
    output: Path | None,
    say: Say,
    **options: Any,
) -> list[dict[str, Any]]:
    """Run cases one after the other, with other options of `run_case`; write each record as made.

    Raises
    ------
    DeviceUnavailableError
        Without a card, where the full sizes are asked for.
    """
    device = _resolved(device if device is not None else current().device)
    if device == "host" and not quick:
        raise DeviceUnavailableError(
            "the suite's full sizes need an NVIDIA GPU, and none is used here",
            remedy="Run `ooc-cudnn bench --quick` for tiny sizes on the host device.",
        )
    records = []
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.name}: {case.about}")
        for last in (False, True):
            record = run_case(case, quick=quick, device=device, say=say, **options)
            record["disturbed"] += _against_other_precision(record, output)
            if not record["disturbed"] or last:
                break
            say(f"{case.name}: measured again, since {'; '.join(record['disturbed'])}")
        records.append(record)
        if output is not None:
            write(record, output)
    return records


def write(record: dict[str, Any], folder: Path) -> None:
    """Write a record to a folder; one of a disturbed machine to its folder "disturbed".

    What was stored before stays then: a figure that cannot be believed replaces none.
    """
    place = folder / "disturbed" if record["disturbed"] else folder
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{record['case']['name']}.json"
    path.write_text(dump_record(record) + "\n", encoding="utf-8")


def _against_other_precision(record: dict[str, Any], folder: Path | None) -> list[str]:
    """Compare with the stored record of the same case in the other precision, if there is one."""
    name, _, precision = record["case"]["name"].rpartition("-")
    other = {"strict": "tf32", "tf32": "strict"}.get(precision)
    path = folder / f"{name}-{other}.json" if folder is not None else None
    if other is None or path is None or not path.exists():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))
    return disagreements(*((record, stored) if precision == "strict" else (stored, record)))


def report(records: Sequence[dict[str, Any]]) -> str:
    """Every contender of every case in a row, and what is to be known beside it."""
    rows: list[tuple[str, ...]] = []
    noted: dict[str, list[str]] = {}
    for record in records:
        name = record["case"]["name"]
        if not record["contenders"]:
            rows.append((name, OURS, "", "", "", "", f"not run: {record['reason']}"))
        for contender, result in record["contenders"].items():
            rows.append((name, contender, *_cells(result)))
        for note in record["notes"]:
            noted.setdefault(note, []).append(name)
    parts = [table(HEAD, rows)]
    parts += [f"{', '.join(names)}: {note}" for note, names in noted.items()]
    if any(record["quick"] for record in records):
        parts.append("tiny sizes (--quick): the times mean nothing")
    return "\n".join(parts)


def status_of(records: Sequence[dict[str, Any]], complain: Callable[[str], None]) -> int:
    """Exit status: 1 if a result is wrong, a machine disturbed, or nothing could be measured."""
    wrong = [(r["case"]["name"], name) for r in records for name in failed_contenders(r)]
    for case, contender in wrong:
        complain(f"WRONG CONTENTS: {contender} in {case}")
    disturbed = [record for record in records if record["disturbed"]]
    for record in disturbed:
        complain(
            f"DISTURBED, not stored: {record['case']['name']}: {'; '.join(record['disturbed'])}"
        )
    measured = any(record["status"] == "measured" for record in records)
    return int(bool(wrong) or bool(disturbed) or not measured)


def _cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    if result["status"] != "measured":
        return "", "", "", "", f"not run: {result['reason']}"
    seconds, ratio, check = result["seconds"], result["ratio"], result["check"]
    spread = f"{format_seconds(seconds['min'])} to {format_seconds(seconds['max'])}"
    times = "" if ratio is None else f"{ratio['of_medians']:.3g} x"
    contents = "a bound" if check is None else "verified" if check["ok"] else "WRONG"
    return format_seconds(seconds["median"]), spread, times, f"{result['GFLOPS']:.4g}", contents


def _resolved(device: str) -> str:
    """The device by name: "auto" is the card where there is one, else "host"."""
    return get_device(device).kind if device == "auto" else device
