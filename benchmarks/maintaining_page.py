"""Write docs/maintaining.md's table of records: ``python -m benchmarks.maintaining_page``.

`--check` says whether the page is up to date, and changes nothing; a test runs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.figures.words import NOTHING, markdown
from benchmarks.readme import checks, fill
from ooc_cudnn.bench.environment import ROOT

PAGE = ROOT / "docs" / "maintaining.md"
BEGIN = "<!-- records: begin (python -m benchmarks.maintaining_page) -->"
END = "<!-- records: end -->"


def records_table(folder: Path = common.RESULTS) -> str:
    """Every stored record: machine, day, commit, how far the library's own seconds drifted."""
    rows = []
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        where = record.get("environment")
        if where is not None:
            name = path.relative_to(folder).with_suffix("").as_posix()
            rows.append((f"`{name}`", *_origin(where), _drift(record)))
    return markdown(("record", "machine", "date", "commit", "drift"), rows, left=4)


def _origin(where: Mapping[str, Any]) -> tuple[str, str, str]:
    """Machine, day and commit."""
    gpu = where.get("gpu")
    machine = gpu["name"] if gpu else f"host, {where['cores']} cores"
    changed = " with changes" if where["commit"].endswith("-dirty") else ""
    return machine, where["date"][:10], f"`{where['commit'][:7]}`{changed}"


def _drift(record: Mapping[str, Any]) -> str:
    """By how much the library's last rounds took longer than its first ones, if both were timed."""
    return f"{record['drift'] - 1:+.1%}" if "drift" in record else NOTHING


def main(argv: list[str] | None = None) -> int:
    """Write or check the table; return the exit status."""
    return fill(PAGE, BEGIN, END, records_table(), check=checks(__doc__, argv))


if __name__ == "__main__":
    sys.exit(main())
