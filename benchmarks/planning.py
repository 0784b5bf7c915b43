"""How long plans and replays take, and how near the best the splits are that the planner finds.

Over a thousand calls (`planning_problems`), planned for a machine that need not be at hand. Some
are timed as first plans, of which nothing is remembered. All are judged: predicted seconds of what
the planner finds, over the fewest that whole lines through the grid of 24 sizes an axis lead to
from many splits, each priced exactly, in every memory order. That judge shares the prices with the
planner, and neither its estimates nor its choice of what to price. A chain that is cut is judged
run by run.

    python -m benchmarks.planning --jobs 2
    python -m benchmarks.planning --first 300 --count 100 --output /tmp/part
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.accuracy_chains import LAYERS, chain_of
from benchmarks.accuracy_plans import planned_for
from benchmarks.accuracy_summary import rounded
from benchmarks.planning_problems import MACHINE, feasible, network_of, problem, problems
from benchmarks.searches import Prices, descended
from ooc_cudnn.bench import script
from ooc_cudnn.call_planner.planner import Planner, make_plan
from ooc_cudnn.call_planner.request import LARGEST_BATCH, Request
from ooc_cudnn.call_planner.search import even_sizes
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.functions.call.plan_chain import forget_plans
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

NAME = "planning"
#: Seconds of a first plan of a function: 90th percentile, and the longest.
FUNCTION_SECONDS, LONGEST_SECONDS = 0.050, 0.150
#: Predicted seconds of what the planner finds, over those of the best: of 99 in 100, and of all.
NEAR_THE_BEST, ALWAYS = 1.01, 1.03
#: Problems whose first plan is timed.
TIMED = 400
#: The judge starts from so many splits, the best of those drawn at random.
STARTS, TRIED = 6, 64
#: Piece sizes of an axis that the judge tries.
JUDGED_SIZES = 24
#: Images of a call, each of them in so many pieces of three steps.
CALLS = ((33, 1), (333, 1), (833, 4))
PLACEMENTS = ("pinned", "pageable")
#: Pricing and replaying a schedule, of which the quietest of so many times counts.
MOST_MICROSECONDS, TIMES = 10.0, 5
#: How far the sum of a float64 may be off: what is found is no faster than the best by more.
ROUNDING = 1e-6


def replay_pace(report: script.Report) -> None:
    """Microseconds a step that a replay takes, for calls of 100 to 10,000 steps."""
    slowest = 0.0
    for placement in PLACEMENTS:
        for images, parts in CALLS:
            x = TensorSpec((images, 64, 128, 128), placement=placement)
            w = TensorSpec((64, 64, 3, 3), placement="device")
            request = plan_request(
                "convolution_forward", x=x, w=w, padding=1, out=x, machine="h200",
                memory_limit="1GiB",
            )  # fmt: skip
            plan = make_plan(request, split=Split(n=1, c_y=64, c_x=64, h_y=128 // parts))
            schedule = plan_schedule(request, plan)
            making = _quietest(partial(plan_schedule, request, plan))
            replaying = _quietest(partial(ReplayedSchedule, schedule))
            steps = len(schedule.steps)
            name = f"microseconds a step, {placement}, {steps} steps"
            report.measure(f"schedule: {name}", 1e6 * making / steps)
            report.measure(f"replay: {name}", 1e6 * replaying / steps)
            slowest = max(slowest, 1e6 * replaying / steps)
    report.claim("replay, a step, slowest", slowest, "<=", MOST_MICROSECONDS, "microseconds")


def _quietest(made: Callable[[], Any]) -> float:
    """The fewest processor seconds that it takes to make something."""
    return min(timeit.repeat(made, timer=time.thread_time, number=1, repeat=TIMES))


def timed(call: Callable[[], Any]) -> float:
    """Processor seconds of a call, nothing remembered."""
    forget_plans()
    begin = time.process_time()
    call()
    return time.process_time() - begin


def functions_planned(report: script.Report) -> None:
    """First plans of calls, under limits that admit one."""
    spent: dict[str, list[float]] = {}
    for index in range(5 if report.quick else TIMED):
        drawn = problem(index)
        plan = feasible(drawn)  # warms up, too
        if plan is not None:
            seconds = timed(partial(planned_for, drawn, MACHINE, plan[1]))
            spent.setdefault(drawn.function, []).append(seconds)
    report.measure(
        "seconds of a first plan",
        {name: {"median": float(np.median(each)), "longest": max(each)}
         for name, each in sorted(spent.items())},
    )  # fmt: skip
    chains = spent.pop("chain_forward", [])
    for name, all_seconds, bounds in (
        ("a function", [*chain.from_iterable(spent.values())], (FUNCTION_SECONDS, LONGEST_SECONDS)),
        ("a short chain", chains, (None, None)),
    ):
        labels = (("median", 0.5), ("90th percentile", 0.9), ("the longest", 1.0))
        for (label, share), bound in zip(labels, (None, *bounds), strict=True):
            if all_seconds:
                held = () if bound is None else ("<=", 1e3 * bound)
                found_ms = 1e3 * float(np.quantile(all_seconds, share))
                report.claim(f"a first plan of {name}, {label}", found_ms, *held, unit="ms")


def chains_planned(report: script.Report) -> None:
    """Whole plans of chains of different extents, with and without memory to keep them whole."""
    for name, count, limit in (
        ("a chain of twenty operations", 8, 2**34),
        ("VGG-16's 44 operations", len(LAYERS), 2**34),
        ("a chain of twenty operations, little memory", 8, 2**26),
        ("VGG-16's 44 operations, little memory", len(LAYERS), 2**26),
    ):
        calls = (chain_of(0, LAYERS[:count], (4, 3, side, side))
                for side in range(256, 288 if report.quick else 448, 32))  # fmt: skip
        seconds = [timed(partial(planned_for, each, MACHINE, limit)) for each in calls]
        median = float(np.median(seconds))
        report.measure(f"{name}: seconds to plan", {"median": median, "calls": seconds})
        report.claim(f"planning {name}", 1e3 * median, unit="ms")


def quality(report: script.Report) -> None:
    first, count = report.arguments.first, report.arguments.count
    indices = range(len(problems()))[first:][: 3 if report.quick else count]
    results = list[dict[str, Any]]()
    with ProcessPoolExecutor(report.arguments.jobs) as pool:
        for result in pool.map(judged, indices):
            results.append(result)
            ratio = f"{result['found over best']:.4f}"
            beyond = " BEYOND" if result["found over best"] > NEAR_THE_BEST else ""
            report.say(f"{ratio}{beyond} in {result['seconds']:.1f} s, {result['call']}")
    ratios = np.array([each["found over best"] for each in results])
    report.measure("problems judged", len(ratios))
    report.measure("seconds a problem", float(np.mean([each["seconds"] for each in results])))
    for kind in ("function", "network"):
        report.measure(f"the worst, by {kind}", {
            name: max(each["found over best"] for each in results if each[kind] == name)
            for name in sorted({each[kind] for each in results})
        })  # fmt: skip
    results.sort(key=lambda each: -each["found over best"])
    report.measure("the worst splits", rounded(results[:20]), spoken="")
    within = float(np.mean(ratios <= NEAR_THE_BEST))
    report.claim("share of problems within 1 % of the best", within, ">=", 0.99)
    report.claim("found over best, the worst", max(ratios), "<=", ALWAYS)
    better = int(np.count_nonzero(ratios < 1 - ROUNDING))
    report.check("contents: none better than the best", {"ok": better == 0, "better": better})


def judged(index: int) -> dict[str, Any]:
    """What the planner finds over the best; of a chain that is cut, the worst run."""
    begin, drawn = time.perf_counter(), problem(index)
    plan = feasible(drawn)
    if plan is None:
        raise RuntimeError(f"nothing fits, whatever the limit: {drawn}")
    planned, limit = plan
    ratios = [
        each.plan.seconds / best_seconds(each.request, each.plan.split, index)
        for each in planned.parts
    ]
    return {
        "index": index, "found over best": max(ratios), "seconds": time.perf_counter() - begin,
        "call": str(drawn), "share": limit / drawn.nbytes, "parts": len(ratios),
        "function": drawn.function, "network": network_of(index),
    }  # fmt: skip


def best_seconds(request: Request, found: Split, seed: int) -> float:
    """Fewest predicted seconds that the judge finds, in any memory order, from `found`, too."""
    best, random = float("inf"), np.random.default_rng(seed)
    call, limit = request.chain, request.memory_limit
    sizes = {
        axis: even_sizes(extent, JUDGED_SIZES, LARGEST_BATCH if axis == "n" else extent)
        if call.may_cut(axis)
        else (extent,)
        for axis, extent in call.extents.to_json().items()
    }
    corners = [found, call.extents, Split(**{axis: min(of) for axis, of in sizes.items()})]
    tried = [
        Split(**{axis: int(random.choice(of)) for axis, of in sizes.items()}) for _ in range(TRIED)
    ]
    for search in Planner(request, None).searches.values():
        prices = Prices(search, limit, sizes)
        seconds = dict(zip(tried, prices.seconds(tried), strict=True))
        starts = [*corners, *sorted(seconds, key=seconds.__getitem__)[:STARTS]]
        best = min(best, descended(prices, starts))
    return best


def body(report: script.Report) -> None:
    # first what is timed: the rest leaves hundreds of thousands of objects behind
    if not report.arguments.first:
        replay_pace(report)
        functions_planned(report)
        chains_planned(report)
    quality(report)


def main(argv: list[str] | None = None) -> int:
    def more(parser: Any) -> None:
        parser.add_argument("--first", type=int, default=0, help="judge from this problem on")
        parser.add_argument("--count", type=int, help="so many; by default all")
        parser.add_argument("--jobs", type=int, default=1, help="so many side by side")

    first = ("--device", "host", "--strict")
    return min(script.run(NAME, body, __doc__, argv, first=first, needs_card=False, more=more), 1)


if __name__ == "__main__":
    sys.exit(main())
