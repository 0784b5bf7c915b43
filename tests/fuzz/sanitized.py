"""Drawn calls under compute-sanitizer: `python -m tests.fuzz.sanitized --tool racecheck`."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ooc_cudnn.bench.environment import ROOT, environment
from ooc_cudnn.bench.record import dump_record
from ooc_cudnn.bench.sources import digests, sources_of

#: How many times as long a case may take under the tool.
PATIENCE = 20
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitized", description=__doc__)
    parser.add_argument("--tool", choices=TOOLS, default="memcheck")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--functions", nargs="+", metavar="FUNCTION")
    parser.add_argument("--record", metavar="FILE", help="store what was found as JSON")
    chosen = parser.parse_args(argv)
    try:
        under = sanitizer(chosen.tool)
    except FileNotFoundError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "fuzz.json"
        command = [
            *under, sys.executable, "-m",
            "tests.fuzz", "--device", "cuda", "--count", str(chosen.count), "--first",
            str(chosen.first), "--jobs", "1", "--patience", str(PATIENCE), "--record", str(record),
        ]  # fmt: skip
        if chosen.functions:
            command += ["--functions", *chosen.functions]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        said = done.stdout + done.stderr
        print(said[-6000:])
        drawn = json.loads(record.read_text("utf-8")) if record.exists() else None
    summaries = SUMMARY.findall(said)
    if drawn is None or not summaries:
        print(f"compute-sanitizer ended with status {done.returncode}, before its summary")
        return 1
    errors = sum(map(int, summaries))
    if chosen.record:
        kept = {
            "benchmark": "sanitizer", "tool": chosen.tool, "errors": errors,
            "cases": drawn["cases"], "calls": drawn["calls"], "findings": drawn["findings"],
            "cases_by_function": drawn["cases_by_function"],
            "files": digests(sources_of("sanitizer_")),
            "environment": environment("cuda"),
        }  # fmt: skip
        Path(chosen.record).write_text(dump_record(kept) + "\n", encoding="utf-8")
    print(f"{chosen.tool}: {errors} errors in {drawn['calls']} calls")
    return 1 if errors or drawn["findings"] else 0


def sanitizer(tool):
    """The command that runs what follows it under one of the tools."""
    found = next(filter(None, (shutil.which("compute-sanitizer", path=p) for p in places())), None)
    if found is None:
        raise FileNotFoundError(f"compute-sanitizer is not in PATH, nor in {' or '.join(PLACES)}")
    return [
        # CUDA's own libraries ask for entry points that a driver has not, and bear the answer.
        found, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9",
        # Its backtraces keep Python's frames at each launch, and with them users' arrays.
        "--show-backtrace", "no",
    ]  # fmt: skip


def places():
    """Where the tool may be: the PATH, and CUDA's folders."""
    return (None, *PLACES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
