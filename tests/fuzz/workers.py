"""Many cases, in this process or in several, each under a watchdog.

A worker is a process of its own that prints a JSON line as it begins a case and one as it ends it.
If a case takes too long, faulthandler writes where every thread stands and ends the process; so a
hang is told from a crash, and the next worker goes on behind the case.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Seconds that a case may take; `--patience` multiplies them.
LONGEST_SECONDS = 120.0
#: Cases between two counts of what is held, and those before the first.
CASES_BETWEEN_COUNTS, FIRST_CASES = 50, 30
#: What a worker runs.
MODULE = ["-m", "tests.fuzz"]


class Outcome(NamedTuple):
    """A case that was run: what it was, what was wrong, how long it took."""

    seed: int
    function: str
    seconds: float
    calls: int
    findings: list[str]
    description: str = ""
    refused: str = ""


def run_here(seeds: Iterable[int], chosen) -> Iterator[Outcome]:
    """Run cases in this process; a hang ends it."""
    import torch

    from tests.fuzz.leaks import Leaks

    one = one_module if chosen.modules else one_call

    torch.set_num_threads(1)
    leaks = Leaks(chosen.device)
    for number, seed in enumerate(seeds):
        if chosen.worker:
            print(json.dumps({"begins": seed}), flush=True)
        begin = time.perf_counter()
        faulthandler.dump_traceback_later(
            LONGEST_SECONDS * chosen.patience, exit=True, file=sys.__stderr__
        )
        outcome = one(seed, chosen)
        if number < FIRST_CASES:
            leaks.settle()
        elif number % CASES_BETWEEN_COUNTS == 0:
            outcome.findings.extend(leaks.findings())
        faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - begin
        yield outcome._replace(seconds=seconds)


def one_call(seed, chosen) -> Outcome:
    """Draw a call, and run it."""
    from tests.fuzz.cases import draw_case
    from tests.fuzz.runner import run

    case = draw_case(seed, chosen.device, functions=chosen.functions, special=not chosen.no_special)
    found, calls = run(case, rounded_twice=chosen.rounded_twice, tuned=chosen.tune)
    return Outcome(seed, case.function, 0.0, calls, found, str(case) if found else "")


def one_module(seed, chosen) -> Outcome:
    """Draw a program of a PyTorch module, and run it."""
    from tests.fuzz.draw_module import draw_module
    from tests.fuzz.modules import reproduction, run_module

    program = draw_module(seed)
    verdict = run_module(program, chosen.device, eager=chosen.eager)
    told = reproduction(program, verdict, chosen.device) if verdict.findings else ""
    return Outcome(
        seed, program.function, 0.0, verdict.calls, verdict.findings, told, verdict.refused
    )


def run_apart(seeds: range, chosen, arguments: list[str]) -> Iterator[Outcome]:
    """Run cases in `chosen.jobs` processes, the outcomes as they come."""
    import queue

    outcomes: queue.Queue[Outcome | None] = queue.Queue()
    shares = [seeds[job :: chosen.jobs] for job in range(chosen.jobs)]
    stop, processes = threading.Event(), []
    threads = [
        threading.Thread(
            target=_serve, args=(share, arguments, outcomes, stop, processes), daemon=True
        )
        for share in shares
        if share
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            outcome = outcomes.get()
            if outcome is None:
                running -= 1
            else:
                yield outcome
    finally:
        stop.set()
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()


def _serve(share: range, arguments, outcomes, stop, processes) -> None:
    """Run a share of the seeds; start another process behind a case that ended one."""
    try:
        while len(share) and not stop.is_set():
            seeds = f"{share.start}:{share.stop}:{share.step}"
            command = [sys.executable, *MODULE, "--worker", *arguments, "--seeds", seeds]
            with tempfile.TemporaryFile("w+") as errors:
                at, status = _follow(command, errors, outcomes, processes)
                if (at is None and status == 0) or stop.is_set():
                    return
                errors.seek(0)
                outcomes.put(_ended(at, status, errors.read()))
                if at is None:
                    return
            share = range(at + share.step, share.stop, share.step)
    finally:
        outcomes.put(None)


def _follow(command, errors, outcomes, processes) -> tuple[int | None, int]:
    """Hand on what a worker finds; the seed that it ended within, if it did, and its status."""
    at = None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True,
        cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        processes.append(process)
        for line in process.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if "begins" in told:
                at = told["begins"]
            elif "seed" in told:
                outcomes.put(Outcome(**told))
                at = None
    return at, process.returncode


def _ended(seed, status, errors) -> Outcome:
    """What a worker that ended within a case, or could not start, has left."""
    lines = [line for line in errors.splitlines() if line.strip()]
    hang = any(line.startswith("Timeout (") for line in lines)
    what = "hangs" if hang else f"ends the process with status {status}"
    kept = [line for line in lines if line.lstrip().startswith(("File", "Thread"))] or lines
    return Outcome(
        seed if seed is not None else -1, "?", 0.0, 0, [what, *(kept[:12] if hang else lines[-12:])]
    )
