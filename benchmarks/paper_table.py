"""Write docs/paper.md's table from benchmarks/results: ``python -m benchmarks.paper_table``.

`--check` says whether the page is up to date, and changes nothing; a test runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import common
from benchmarks.paper_model import NAME
from benchmarks.readme import checks, fill
from ooc_cudnn.bench.environment import ROOT

BEGIN, END = "<!-- table: begin (python -m benchmarks.paper_table) -->", "<!-- table: end -->"


def shown(value: float | str | None, unit: str) -> str:
    """Return a figure as the table prints it: a share in percent, anything else whole.

    Examples
    --------
    >>> shown(2574.3, "GFLOPS"), shown(0.424, "%"), shown("at most", "%"), shown(None, "%")
    ('2574 GFLOPS', '42.4 %', 'at most', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value * 100:.1f} %" if unit == "%" else f"{value:.0f} {unit}"


def table(folder: Path = common.RESULTS) -> str:
    """Return the table of everything that `paper_model` compared, in its order."""
    result = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
    lines = ["| | paper | simulated | simulated / paper |", "|---|---:|---:|---:|"]
    for name, row in result["measurements"].items():
        simulated, paper, unit = row["simulated"], row["paper"], row["unit"]
        ratio = f"{simulated / paper:.3f}" if isinstance(paper, float) else ""
        lines.append(f"| {name} | {shown(paper, unit)} | {shown(simulated, unit)} | {ratio} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Write or check the table; return the exit status."""
    check = checks(__doc__, argv)
    return fill(ROOT / "docs" / "paper.md", BEGIN, END, table(), check=check)


if __name__ == "__main__":
    sys.exit(main())
