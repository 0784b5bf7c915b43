"""Run drawn calls under NVIDIA's compute-sanitizer, and store how many errors it saw.

``python -m benchmarks.sanitizer --tool memcheck --count 300``: reads and writes outside of memory;
``--tool racecheck``: threads of a kernel that race for shared memory. A card and the program
compute-sanitizer (of the CUDA toolkit) are needed. Calls are those of ``python -m tests.fuzz``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from ooc_cudnn.bench.environment import ROOT

#: As the program sums up; racecheck counts hazards.
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
#: It slows calls down, so the watchdog over a case has to wait.
PATIENCE = 50


def command(program: str, tool: str, record: Path, *, first: int, count: int) -> list[str]:
    """Return the command line: the drawn calls, looked at by a tool."""
    drawn = [
        sys.executable, "-m", "tests.fuzz", "--device", "cuda", "--first", str(first),
        "--count", str(count), "--patience", str(PATIENCE), "--record", str(record),
    ]  # fmt: skip
    return [program, "--tool", tool, *drawn]


def summed_up(output: str) -> int:
    """Return the errors that the program counted.

    Raises
    ------
    ValueError
        If it never summed up: it did not run to its end.

    Examples
    --------
    >>> summed_up("========= ERROR SUMMARY: 0 errors")
    0
    >>> summed_up("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)")
    2
    """
    found = SUMMARY.findall(output)
    if not found:
        raise ValueError("compute-sanitizer printed no summary")
    return sum(map(int, found))


def run(program: str, tool: str, *, first: int, count: int) -> dict[str, Any]:
    """Run it; return the record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.json"
        line = command(program, tool, path, first=first, count=count)
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
        drawn = json.loads(path.read_text(encoding="utf-8"))
    return {
        "benchmark": "sanitizer",
        "tool": tool,
        "command": " ".join(line),
        "cases": drawn["cases"],
        "calls": drawn["calls"],
        "findings": drawn["findings"],
        "errors": summed_up(done.stdout + done.stderr),
        "seconds": drawn["seconds"],
        "environment": drawn["environment"],
    }


def main(argv: list[str] | None = None) -> int:
    """Run and store; 1 if there is an error, or a result was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tool", choices=("memcheck", "racecheck"), default="memcheck")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="how many cases")
    parser.add_argument("--program", default="compute-sanitizer", help="where it is")
    parser.add_argument("--output", default=str(common.RESULTS), help="folder for the JSON file")
    arguments = parser.parse_args(argv)
    program = shutil.which(arguments.program)
    if program is None:
        parser.error(f"{arguments.program} is not here: it is part of the CUDA toolkit")
    record = run(program, arguments.tool, first=arguments.first, count=arguments.count)
    path = Path(arguments.output) / f"sanitizer-{arguments.tool}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['cases']} cases, {record['errors']} errors; {path}")
    return int(bool(record["errors"] or record["findings"]))


if __name__ == "__main__":
    common.main(main)
