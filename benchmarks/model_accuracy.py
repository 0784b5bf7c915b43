"""Whether the performance model tells the truth: predicted against measured seconds, and memory.

Calls are drawn at random and held out: functions, shapes, dtypes, memory orders, placements and
limits. Each is a pure function of (seed, index, scale), so any can be run alone: `--only 17`.
Before them a few chains that computing binds, the same each time (`--only 10000` and on).
Then problems small enough to measure every split of a coarse grid, and the chosen split beside
them. Beyond the bounds the script fails and names what was missed. `--machine` is a profile or a
file, "saved", or, if nothing is said, "calibrate": now, and kept apart.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import ooc_cudnn
from benchmarks.accuracy_calls import DISTURBED, measure_again, measure_call, spoken_call
from benchmarks.accuracy_chains import FIRST, chains
from benchmarks.accuracy_draw import SCALES, Drawn, draw
from benchmarks.accuracy_operands import Blocks
from benchmarks.accuracy_splits import (
    draw_problem,
    measure_problem,
    problem_scale,
    spoken_problem,
)
from benchmarks.accuracy_summary import (
    BOUNDS,
    HEAD,
    LEAST_CALLS,
    LEAST_PROBLEMS,
    SPLIT_BOUNDS,
    figures,
    rounded,
    rows,
    summary,
    worst,
)
from ooc_cudnn.bench import script
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import machine_for

NAME = "model_accuracy"
#: After so many failures the fault is a common one.
MOST_FAILURES = 20
#: How often all calls are gone through on a card, whose host is slow for seconds at a time.
ROUNDS = 3
#: Calls between two writings of the file.
WRITE_EVERY = 10


def calls(report: script.Report, blocks: Blocks) -> list[dict[str, Any]]:
    """Measure calls until all are or the time is up."""
    arguments = report.arguments
    results = report.measurements["calls"] = list[dict[str, Any]]()
    begin = time.perf_counter()
    for drawn in todo(arguments):
        if time.perf_counter() - begin > arguments.seconds:
            report.note(
                f"the {arguments.seconds:g} s for calls were over before call {drawn.index}"
            )
            break
        measured = attempt(report, drawn, lambda drawn=drawn: measure_call(drawn, blocks))
        if measured is None:
            continue
        results.append(rounded(measured))
        report.say(f"{drawn}\n            {spoken_call(measured)}")
        if len(results) % WRITE_EVERY == 0:
            report.write()
    for again in range(1, ROUNDS if arguments.cuda else 1):
        report.say(f"round {again + 1} of {ROUNDS}")
        for call in results:
            if time.perf_counter() - begin > arguments.seconds:
                report.note(f"the {arguments.seconds:g} s for calls were over in round {again + 1}")
                return results
            drawn = Drawn.from_json(call["drawn"])
            attempt(report, drawn, partial(measure_again, call, drawn, blocks))
            call |= rounded(call)
    return results


def todo(arguments: argparse.Namespace) -> Iterator[Drawn]:
    """Chains that are bound by computing, and calls as they are drawn; or the one asked for."""
    only, fixed = arguments.only, chains(arguments.scale)
    if only is None:
        yield from fixed
    elif only >= FIRST:
        yield fixed[only - FIRST]
        return
    for index in range(arguments.calls) if only is None else (only,):
        yield draw(arguments.seed, index, SCALES[arguments.scale])


def attempt(
    report: script.Report, drawn: Drawn, measure: Callable[[], dict[str, Any] | None]
) -> dict[str, Any] | None:
    """Measure; keep what fails, since the others are still worth their time on the card."""
    try:
        return measure()
    except Exception as error:
        failed = {
            "description": str(drawn),
            "drawn": drawn.to_json(),
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
        report.measurements.setdefault("failed", []).append(failed)
        report.say(f"{drawn}: FAILED, {failed['error']}")
        if len(report.measurements["failed"]) >= MOST_FAILURES:
            report.write()
            raise
        return None


def splits(report: script.Report, blocks: Blocks) -> list[dict[str, Any]]:
    """Measure every split of problems as they are drawn, until there are enough of them."""
    arguments = report.arguments
    scale = problem_scale(arguments.scale)
    results = report.measurements["splits"] = list[dict[str, Any]]()
    begin = time.perf_counter()
    for index in itertools.count() if arguments.only is None else [arguments.only]:
        if len(results) == arguments.problems:
            break
        if time.perf_counter() - begin > arguments.split_seconds:
            report.note(f"the {arguments.split_seconds:g} s for splits were over at {index}")
            break
        drawn = draw_problem(arguments.seed, index, scale)
        if drawn is None:
            continue
        measured = attempt(report, drawn, lambda drawn=drawn: measure_problem(drawn, blocks))
        if measured is not None:
            results.append(rounded(measured))
            report.say(f"{drawn}\n            {spoken_problem(measured)}")
            report.write()
    return results


def judge_splits(report: script.Report, found: list[dict[str, Any]]) -> None:
    whole = report.arguments.only is None
    report.claim("problems of splits measured", len(found), ">=", LEAST_PROBLEMS if whole else 0)
    if found:
        ratios = figures([each["chosen/best"] for each in found])
        median, worst_bound = SPLIT_BOUNDS
        report.claim("chosen split over best, median", ratios["median"], "<=", median)
        report.claim("chosen split over best, worst", ratios["max"], "<=", worst_bound)
        searched = figures([each["chosen/best predicted"] for each in found])
        report.claim("chosen split over best, as predicted, worst", searched["max"])


def judge_calls(report: script.Report, found: list[dict[str, Any]]) -> None:
    median, p90 = BOUNDS["cuda" if report.arguments.cuda else "host"]
    whole = report.arguments.only is None
    report.claim("calls measured", len(found), ">=", LEAST_CALLS if whole else 1)
    if not found:
        return
    said = report.measurements["summary"] = summary(found)
    for predictor in ("closed_form", "replay"):
        bounds = (("<=", median), ("<=", p90)) if predictor == "closed_form" else ((), ())
        report.claim(f"error of the {predictor}, median", said[predictor]["median"], *bounds[0])
        report.claim(f"error of the {predictor}, 90th percentile",
                     said[predictor]["p90"], *bounds[1])  # fmt: skip
    inexact = [call["description"] for call in found if not call["peak_exact"]]
    report.claim("calls whose peak of memory is not the plan's", len(inexact), "<=", 0)
    rounds = [took for call in found if len(took := call.get("round_seconds", ())) == ROUNDS]
    if rounds:
        apart = figures([max(took) / min(took) for took in rounds])
        for name in ("median", "p90"):
            report.claim(f"slowest round over the quietest, {name}", apart[name])
    disturbed = [call for call in found if call["others_share"] > DISTURBED]
    report.claim("calls disturbed by other processes", len(disturbed))
    for call in found:
        report.check(f"{call['description']}: contents", call["contents"])


def show(report: script.Report, found: list[dict[str, Any]]) -> None:
    if not found:
        return
    said = report.measurements["summary"]
    for group in ("by_function", "by_binding_stage", "by_placement", "by_dtype"):
        print(f"\n{group.replace('_', ' ')}")
        print(script.table(HEAD, rows(said[group])))
    print("\nstages, busy seconds: the replay's over those measured")
    print(script.table(HEAD, rows(said["by_stage_of_replay"])))
    print("\nworst")
    for call in worst(found):
        print(f"{call['description']}\n    {spoken_call(call)}")


@contextmanager
def modelled(report: script.Report) -> Iterator[None]:
    """Have calls planned as users' are: by a calibration of this device, or by a named model.

    A model that is fitted now is saved in a cache directory of its own. The setting `machine` stays
    None then, as for users: launches are tried before a plan is settled, which no named model asks
    for.
    """
    arguments = report.arguments
    calibrating = arguments.machine == "calibrate"
    machine = None if calibrating or arguments.machine == "saved" else arguments.machine
    with (
        ooc_cudnn.settings(device=arguments.device, machine=machine, progress=False, verify=0),
        script.no_stored_engines() if calibrating else nullcontext(),
    ):
        begin = time.perf_counter()
        device = get_device(arguments.device)
        if calibrating:
            ooc_cudnn.calibrate(device, quick=arguments.quick)
        model = machine_for(device, machine)
        report.measure("seconds to get the machine model", time.perf_counter() - begin)
        report.measure("machine model", model.to_json(), spoken=model.name)
        yield


def judged(report: script.Report) -> int:
    """Write the file, print the claims; 1 where one is missed."""
    failed = report.measurements.get("failed", [])
    report.claim("measurements that failed", len(failed), "<=", 0)
    report.check("measurements", {"ok": not failed})
    status = report.finish()
    for failure in failed:
        print(f"FAILED: {failure['description']}: {failure['error']}")
    for claim in report.claims:
        if claim.holds is False:
            print(f"MISSED: {claim.name}")
    return min(status, 1)


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(strict=True, machine="calibrate")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--calls", type=int, default=LEAST_CALLS)
    parser.add_argument("--problems", type=int, default=LEAST_PROBLEMS,
                        help="whose splits are all measured")  # fmt: skip
    parser.add_argument("--only", type=int, help="measure the call of this index alone")
    parser.add_argument("--part", choices=("calls", "splits", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no call starts")
    parser.add_argument("--split-seconds", type=float, default=200.0,
                        help="after which no problem starts")  # fmt: skip
    parser.add_argument("--scale", choices=tuple(SCALES), help="by default the device's")


def main(argv: list[str] | None = None) -> int:
    arguments = script.parse(__doc__, argv, needs_card=False, more=options)
    kind = "cuda" if arguments.cuda else "host"
    arguments.scale = arguments.scale or ("tiny" if arguments.quick else kind)
    report = script.Report(NAME, arguments)
    report.file = f"{NAME}_{kind}" + ("" if arguments.part == "both" else f"_{arguments.part}")
    drawn = {
        name: getattr(arguments, name) for name in ("seed", "calls", "problems", "only", "scale")
    }
    report.measure("drawn with", drawn)
    with (
        modelled(report),
        tempfile.TemporaryDirectory(prefix="ooc_cudnn_", dir=script.folder_of(arguments)) as folder,
    ):
        blocks = Blocks(arguments.device, SCALES[arguments.scale], Path(folder))
        report.say("memory is allocated")
        if arguments.part != "splits":
            results = calls(report, blocks)
            judge_calls(report, results)
            show(report, results)
        if arguments.part != "calls":
            judge_splits(report, splits(report, blocks))
        blocks.release()
        return judged(report)


if __name__ == "__main__":
    sys.exit(main())
