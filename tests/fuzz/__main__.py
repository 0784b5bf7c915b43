"""Draw calls or modules, run them, print what is wrong: `python -m tests.fuzz --count 500`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time

from tests.fuzz.cases import DRAWERS, draw_case
from tests.fuzz.record import Record
from tests.fuzz.workers import run_apart, run_here


def parse(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--seed", type=int, help="run this one case, and show it")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="how many seeds (default 500)")
    parser.add_argument("--seconds", type=float, help="stop after so long instead")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes; 1 is this process")
    parser.add_argument("--functions", nargs="+", choices=sorted(DRAWERS), metavar="FUNCTION")
    parser.add_argument(
        "--modules", action="store_true", help="draw PyTorch's modules, and compare with PyTorch"
    )
    parser.add_argument(
        "--eager", action="store_true",
        help="compare PyTorch with itself: whatever that finds is a fault of the comparison",
    )  # fmt: skip
    parser.add_argument("--no-special", action="store_true", help="no infinities and NaN")
    parser.add_argument(
        "--rounded-twice", action="store_true",
        help="let half types be rounded before alpha and beta as well",
    )  # fmt: skip
    parser.add_argument(
        "--tune", action="store_true",
        help="measure the engines of each call first, so that it runs with them; no infinities "
        "and NaN, which some engines spread",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=1.0, help="how many times as long a case may take"
    )
    parser.add_argument("--record", metavar="FILE", help="store what was found as JSON")
    parser.add_argument("--shrink", action="store_true", help="look for a simpler case that fails")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    chosen.no_special |= chosen.tune
    chosen.modules |= chosen.eager
    return chosen


def main(argv):
    chosen = parse(argv)
    if chosen.tune and not chosen.worker:
        with tempfile.TemporaryDirectory() as folder:  # for tables of engines: none of a user's
            os.environ["XDG_CACHE_HOME"] = folder
            return draw(chosen, argv)
    return draw(chosen, argv)


def draw(chosen, argv):
    """Run what was chosen, and print and store what was found; the exit status."""
    if chosen.worker:
        for outcome in run_here(range(*map(int, chosen.seeds.split(":"))), chosen):
            print(json.dumps(outcome._asdict()), flush=True)
        return 0
    if chosen.seed is not None:
        print(case_of(chosen, chosen.seed))
        seeds = range(chosen.seed, chosen.seed + 1)
    else:
        endless = chosen.seconds is not None and chosen.count is None
        count = 10**7 if endless else 500 if chosen.count is None else chosen.count
        seeds = range(chosen.first, chosen.first + count)
    record = Record(chosen.device, argv, worker_arguments(chosen))
    outcomes = run_here(seeds, chosen)
    if chosen.jobs > 1:
        outcomes = run_apart(seeds, chosen, worker_arguments(chosen))
    for outcome in outcomes:
        record.add(outcome)
        if chosen.seconds is not None and time.perf_counter() - record.begin > chosen.seconds:
            break
    outcomes.close()
    status = record.finish()
    if chosen.record:
        record.write(chosen.record)
    if chosen.shrink:
        from tests.fuzz import module_shrinking, shrinking

        shrunk = module_shrinking.shrunk if chosen.modules else shrinking.shrunk
        for outcome in record.findings[:5]:
            print(f"\nsmallest form of seed {outcome.seed} that still fails:")
            print(f"  {shrunk(case_of(chosen, outcome.seed), chosen)}")
    return status


def case_of(chosen, seed):
    if chosen.modules:
        from tests.fuzz.draw_module import draw_module

        return draw_module(seed)
    return draw_case(seed, chosen.device, functions=chosen.functions, special=not chosen.no_special)


def worker_arguments(chosen):
    """What the workers are told of what was chosen."""
    told = ["--device", chosen.device]
    if chosen.patience != 1:
        told += ["--patience", str(chosen.patience)]
    flags = ("no_special", "rounded_twice", "tune", "modules", "eager")
    told += [f"--{name.replace('_', '-')}" for name in flags
             if getattr(chosen, name)]  # fmt: skip
    return told + (["--functions", *chosen.functions] if chosen.functions else [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
