"""Run the card's tests in many processes side by side: `python3 -m tests.gpu.shards [COUNT]`.

Most of their time is the host's, which builds cuDNN's plans: one process takes half an hour, 14 on
16 cores two minutes. Of several cards, each shard has one. Needs nothing but pytest. What is not
an option goes to pytest. With `--sanitizer racecheck` the kernels alone are tested, under
compute-sanitizer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ooc_cudnn.bench.environment import environment
from ooc_cudnn.bench.record import dump_record
from ooc_cudnn.bench.sources import digests, sources_of
from tests.fuzz.sanitized import SUMMARY, TOOLS, sanitizer

#: A shard that takes more than its part of so many seconds hangs, if `--seconds` says nothing else:
#: it is killed, and what it said is shown. One process takes 1,800.
MOST_SECONDS = 7000.0
#: And so many times as long under compute-sanitizer.
TIMES_UNDER_TOOL = 4.0
FOLDERS = ("tests/gpu", "tests/kernels")
#: The first folder's conftest.py takes the shard, so it is named even where none of its tests runs.
#: What measures seconds cannot do so under the tool.
KERNELS_ALONE = (
    *FOLDERS,
    "--ignore-glob=tests/gpu/test_*",
    "--deselect=tests/kernels/test_kernels.py::test_a_stream_is_held_for_so_long",
)
#: A race does not depend on how many elements there are, and these seem to be slow: the shard that
#: had the first of them, by its number, had not ended after 420 s, where all before it had.
WITHOUT_LARGEST = {"racecheck": ("-k", "not beyond_two_to_the_31")}
PASSED = re.compile(r"(\d+) passed")


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.shards", description=__doc__)
    parser.add_argument(
        "count", nargs="?", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes"
    )
    parser.add_argument("--sanitizer", choices=TOOLS)
    parser.add_argument("--record", metavar="FILE", help="store what was found as JSON")
    parser.add_argument("--seconds", type=float, help="after so many, a shard hangs, and is killed")
    chosen, arguments = parser.parse_known_args(argv)
    tool = chosen.sanitizer
    if chosen.record and (arguments or not tool):
        parser.error("--record is of --sanitizer and all of its tests: nothing goes to pytest then")
    part = MOST_SECONDS * (TIMES_UNDER_TOOL if tool else 1) / chosen.count
    seconds = chosen.seconds or part
    of = [*(KERNELS_ALONE if tool else FOLDERS), *WITHOUT_LARGEST.get(tool, ()), *arguments]
    traces = ("-o", f"faulthandler_timeout={min(200.0, 0.4 * seconds)}")
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *traces, *of]
    said, failed = run([*(sanitizer(tool) if tool else ()), *pytest], chosen.count, seconds)
    passed = sum(int(number) for each in said for number in PASSED.findall(each))
    summaries = [[int(number) for number in SUMMARY.findall(each)] for each in said]
    errors = sum(map(sum, summaries))
    if tool:
        failed |= {at for at, each in enumerate(summaries) if not each}  # it ended before it knew
    told = f", {errors} errors of {tool}" if tool else ""
    print(f"{chosen.count} shards, {len(failed)} failed: {passed} tests passed{told}")
    if chosen.record:
        kept = {
            "benchmark": "sanitizer", "tool": tool, "errors": errors, "tests": passed,
            "failed_shards": len(failed), "files": digests(sources_of("sanitizer_kernels_")),
            "environment": environment("cuda"),
        }  # fmt: skip
        Path(chosen.record).write_text(dump_record(kept) + "\n", encoding="utf-8")
    return 1 if failed or errors or not passed else 0


def run(command, count, seconds):
    """Run it for each shard, and print how each ended; what each said, and which failed."""
    until, of_card = time.monotonic() + seconds, cards()
    statuses, said = {}, {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        paths = [Path(folder, f"{at}.log") for at in range(count)]
        running = [
            subprocess.Popen(
                command,
                env=os.environ
                | {"OOC_TESTS_SHARD": f"{at}/{count}"}
                | ({"CUDA_VISIBLE_DEVICES": of_card[at % len(of_card)]} if of_card else {}),
                stdout=files.enter_context(path.open("w")),
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what a tool runs ends with it
            )
            for at, path in enumerate(paths)
        ]
        try:
            while len(statuses) < count:
                hangs = time.monotonic() >= until
                for at, (process, path) in enumerate(zip(running, paths, strict=True)):
                    if at in statuses or (process.poll() is None and not hangs):
                        continue
                    statuses[at] = "hangs" if process.returncode is None else process.returncode
                    if process.returncode is None:
                        end(process)
                    said[at] = path.read_text(errors="replace")
                    lines = said[at].splitlines()
                    shown = lines[-1:] if statuses[at] == 0 else lines
                    print(f"shard {at}: exit {statuses[at]}", *shown, sep="\n  ", flush=True)
                time.sleep(0.05)
        finally:
            for process in running:
                if process.poll() is None:
                    end(process)
    failed = {at for at, status in statuses.items() if status not in (0, 5)}  # 5: it has no test
    return [said[at] for at in range(count)], failed


def cards():
    """The numbers of the cards that a shard may have; none where there is no driver."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return given.split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(at) for at, _ in enumerate(listed.stdout.splitlines())]


def end(process):
    """Kill a shard and all that it runs; what hangs in the driver may not let itself be killed."""
    os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
