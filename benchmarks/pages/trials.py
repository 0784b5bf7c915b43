"""docs/reliability.md and docs/maintaining.md: what was tried, and where each record is from.

What was tried is in the records of drawn calls (``python -m tests.fuzz --record``), of
interruptions (``python -m tests.fuzz.interruptions``) and of compute-sanitizer (``python -m
tests.fuzz.sanitized --record``, ``python -m tests.gpu.shards --sanitizer memcheck --record``),
whatever their files are called: "benchmark" in them says what they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block, machine_of
from ooc_cudnn.bench import script, sources
from ooc_cudnn.bench.record import markdown

Record = Mapping[str, Any]
#: What was tried, where, how often, and how much of it went wrong.
Row = tuple[str, str, str, str]


def _drawn(record: Record) -> Row:
    """Drawn calls, and a finding for each case that something is wrong with."""
    functions = record["cases_by_function"]
    about = f"drawn cases of {len(functions)} kinds: functions, and chains forward and backward"
    if "--tune" in record.get("command", ""):
        about += "; with engines that were measured"
    cases = f"{record['cases']:,} cases, {record['calls']:,} calls"
    return about, machine_of(record), cases, f"{len(record['findings'])}"


def _interrupted(record: Record) -> Row:
    checked = [check for check in record["checks"].values() if "interruptions" in check]
    count = sum(check["interruptions"] for check in checked)
    wrong = sum(len(check["wrong"]) for check in checked)
    about = "Ctrl-C at random moments of ten kinds of calls"
    return about, machine_of(record), f"{count:,} interruptions", f"{wrong}"


def _sanitized(record: Record) -> Row:
    about = f"compute-sanitizer, {record['tool']}, on "
    if "tests" in record:
        on, count, failed = "the kernels' tests", "tests", record["failed_shards"]
    else:
        on, count, failed = "drawn cases", "cases", len(record["findings"])
    wrong = record["errors"] + failed
    return f"{about}{on}", machine_of(record), f"{record[count]:,} {count}", f"{wrong}"


#: What a record calls itself -> what is tried, and how the record is read.
KINDS: dict[str, tuple[str, Callable[[Record], Row]]] = {
    "fuzz": ("drawn cases of every function", _drawn),
    "interruptions": ("Ctrl-C at random moments", _interrupted),
    "sanitizer": ("compute-sanitizer on drawn cases", _sanitized),
}


def _rows(folder: Path) -> Iterator[Row]:
    """A row for each record; a kind of which there is none is not measured yet."""
    stored = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    for kind, (about, read) in KINDS.items():
        records = [
            record
            for record in stored
            if record.get("benchmark") == kind and not record.get("quick")
        ]
        yield from map(read, records)
        if not records:
            yield about, NOT_MEASURED, "", ""


def trials_table(folder: Path = script.RESULTS) -> str:
    return markdown(("what was tried", "on", "how much", "wrong"), _rows(folder), align="llr")


def _stored(folder: Path) -> dict[str, Record]:
    """Every record that says where it was measured, by its file below the folder."""
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): json.loads(path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.json"))
    }
    return {name: record for name, record in found.items() if "environment" in record}


def records_table(folder: Path = script.RESULTS) -> str:
    """Every stored record: machine, day, commit, how far the library's own seconds drifted."""
    rows = []
    for name, record in _stored(folder).items():
        where = record["environment"]
        gpu, commit = where.get("gpu"), where["commit"]
        machine = gpu["name"] if gpu else f"host, {where['cores']} cores"
        changed = " with changes" if commit.endswith("-dirty") else ""
        drift = f"{record['drift'] - 1:+.1%}" if "drift" in record else NOTHING
        closed = "[closed](closed-studies.md)" if sources.is_closed(name) else ""
        row = (f"`{name}`", machine, where["date"][:10], f"`{commit[:7]}`{changed}", drift, closed)
        rows.append(row)
    return markdown(("record", "machine", "date", "commit", "drift", "study"), rows, align="llllrl")


def older_table(folder: Path = script.RESULTS) -> str:
    """The records of which something has changed since they were measured, and what that is.

    Not on a page: each change of a source would change it.
    """
    found = {name: r for name, r in _stored(folder).items() if not sources.is_closed(name)}
    now = sources.digests({file for record in found.values() for file in record.get("files", ())})
    rows = [
        (name, record["environment"]["date"][:10], ", ".join(changed))
        for name, record in found.items()
        if (changed := sources.changed_sources(record.get("files", {}), now=now))
    ]
    return markdown(("record", "date", "changed since"), rows, align="lll")


BLOCKS = (
    Block("docs/reliability.md", "trials", trials_table),
    Block("docs/maintaining.md", "records", records_table),
)
