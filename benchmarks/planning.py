"""How long planning takes, and how near the best the splits are that the searches find.

Every public function, a chain of twenty operations, VGG-16's, and chains that memory is so short
for that they are cut, each planned for a machine that need not be at hand: the time is that of the
search, for a problem not seen before. And calls drawn at random, small enough that every split made
of a few piece sizes can be priced: predicted seconds of what the ordered search, the local one and
the planner's own find, over the fewest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.chain_vgg import LAYERS
from benchmarks.planning_problems import arguments, drawn_sizes, problems, request
from ooc_cudnn import operations
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.plan import plan
from ooc_cudnn.functions.public import FUNCTIONS
from ooc_cudnn.pipeline.planner import make_plan
from ooc_cudnn.pipeline.pricing import SplitProblem
from ooc_cudnn.pipeline.request import Request
from ooc_cudnn.tensor import TensorSpec
from perfmodel import (
    Found,
    InfeasibleError,
    Problem,
    exhaustive_search,
    guided_search,
    local_search,
    ordered_search,
)

NAME = "planning"
MACHINE = "h200"
FUNCTION_SECONDS, CHAIN_SECONDS, CUT_CHAIN_SECONDS = 0.005, 0.050, 1.0
#: How often the problems of all functions are searched, anew each time.
ROUNDS = 3
#: Predicted seconds of what the planner finds, over those of the best of all splits.
NEAR_THE_BEST = 1.01
#: Piece sizes of an axis, where every split is priced.
SIZES = 5
SEARCHES: Mapping[str, Callable[[Any, int], Found]] = {
    "guided": guided_search,
    "ordered": ordered_search,
    "local": local_search,
}


def layers(count: int | None, c_x: int) -> list[Any]:
    """The first operations of VGG-16's feature layers: convolution, bias, activation, pooling."""
    made: list[Any] = []
    for layer in LAYERS:
        if not layer:
            made.append(operations.Pooling(2))
            continue
        made.append(operations.Convolution(TensorSpec((layer, c_x, 3, 3)), padding=1))
        made += [operations.AddTensor(TensorSpec((layer,))), operations.Activation("relu")]
        c_x = layer
    return made[:count]


def timed(calls: Iterator[Callable[[], Any]]) -> tuple[list[float], list[bool]]:
    """Processor seconds of calls that all differ, and which found anything; the first warms up."""
    next(calls)()
    seconds, found = [], []
    for call in calls:
        begin = time.process_time()
        found.append(bool(call()))
        seconds.append(time.process_time() - begin)
    return seconds, found


def functions_planned(report: common.Report) -> None:
    """The search for one function, problems drawn at random, the same in each of three rounds.

    A virtual machine is slow for seconds at a time, and what disturbs it only adds: of medians the
    quietest round counts, and of the longest search each problem's quietest.
    """
    count, rounds = (3, 1) if report.arguments.quick else (24, ROUNDS)
    seconds: dict[str, list[list[float]]] = {function: [] for function in FUNCTIONS}
    fits: dict[str, list[bool]] = {}
    for _ in range(rounds):
        for at, function in enumerate(FUNCTIONS):
            made = _drawn(function, at, count)
            spent, fits[function] = timed(partial(_search, each) for each in made)
            seconds[function].append(spent)
    slowest, longest = 0.0, {True: 0.0, False: 0.0}
    for function, spent_in in seconds.items():
        medians = np.median(spent_in, axis=1).tolist()
        least = np.min(spent_in, axis=0).tolist()
        for spent, fit in zip(least, fits[function], strict=True):
            longest[fit] = max(longest[fit], spent)
        figures = {"median": min(medians), "round_medians": medians, "least": least}
        report.measure(f"{function}: seconds of a search", figures | {"fits": fits[function]})
        slowest = max(slowest, min(medians))
    for name, found, bound in (
        ("slowest median", slowest, FUNCTION_SECONDS),
        ("the longest", longest[True], None),
        ("the longest where nothing fits", longest[False], None),
    ):
        report.claim(
            f"search for one function, {name}", 1e3 * found,
            "<=" if bound else "", 1e3 * bound if bound else None, "ms",
        )  # fmt: skip


def _drawn(function: str, seed: int, count: int) -> list[Request]:
    """Problems of a function, made anew: nothing is remembered of them."""
    random, made = np.random.default_rng((1, seed)), []
    for _ in range(count):
        given = arguments(function, drawn_sizes(random))
        share = float(np.exp(random.uniform(np.log(0.05), 0.0)))
        made.append(request(function, share, MACHINE, **given))
    return made


def _search(made: Request) -> bool:
    """Search, and return whether anything fits: that nothing does is an answer, too."""
    with suppress(PlanInfeasibleError):
        make_plan(made)
        return True
    return False


def chains_planned(report: common.Report) -> None:
    """Whole plans of chains of different extents, with and without memory to keep them whole."""
    quick = report.arguments.quick
    whole = len(layers(None, 3))
    for name, count, limit, bound in (
        ("a chain of twenty operations", 20, 2**34, CHAIN_SECONDS),
        (f"VGG-16's {whole} operations", whole, 2**34, None),
        ("a chain of twenty operations, little memory", 20, 2**26, CUT_CHAIN_SECONDS),
        (f"VGG-16's {whole} operations, little memory", whole, 2**26, CUT_CHAIN_SECONDS),
    ):
        extents = [256 + 32 * at for at in range(2 if quick else 6)]

        def calls(count: int = count, limit: int = limit, extents: Any = extents) -> Iterator[Any]:
            for extent in extents:
                x = TensorSpec((4, 3, extent, extent))
                chain = layers(count, 3)
                yield lambda x=x, chain=chain: plan(
                    "chain_forward", machine=MACHINE, memory_limit=limit, x=x, operations=chain
                )

        seconds, _ = timed(calls())
        median = float(np.median(seconds))
        report.measure(f"{name}: seconds to plan", {"median": median, "calls": seconds})
        report.claim(
            f"planning {name}", 1e3 * median, "<=" if bound else "",
            1e3 * bound if bound else None, "ms",
        )  # fmt: skip


def found_seconds(search: Callable[[Any, int], Found], problem: Problem, limit: int) -> float:
    """Predicted seconds of what a search finds; infinite where it finds nothing."""
    try:
        return search(problem, limit).price.seconds
    except InfeasibleError:
        return float("inf")


def quality(report: common.Report) -> None:
    """The searches against the best of all splits."""
    quick = report.arguments.quick
    ratios: dict[str, list[float]] = {name: [] for name in SEARCHES}
    worst: dict[str, Any] = {}
    wrong = 0
    for small in (True, False):
        drawn = problems(tuple(FUNCTIONS), 1 if quick else 6, 2, MACHINE, small=small)
        for function, share, made in drawn:
            sizes = 3 if quick else SIZES

            def problem(made: Request = made, sizes: int = sizes) -> SplitProblem:
                return SplitProblem(replace(made), made.layouts[0], 0, sizes)

            limit = made.memory_limit
            best = found_seconds(exhaustive_search, problem(), limit)
            for name, search in SEARCHES.items():
                seconds = found_seconds(search, problem(), limit)
                if best == float("inf"):
                    wrong += seconds < best
                    continue
                wrong += seconds < best * (1 - 1e-6)
                ratio = seconds / best
                if ratio > max(ratios[name], default=0.0):
                    worst[name] = {"function": function, "share": share,
                                   "extents": made.chain.extents.to_json()}  # fmt: skip
                ratios[name].append(ratio)
    report.measure("the worst of each search", worst)
    for name, found in ratios.items():
        spread = {str(q): float(np.quantile(found, q)) for q in (0.5, 0.9, 1.0)}
        report.measure(f"{name}: found over best", spread | {"problems": len(found)})
        bound = NEAR_THE_BEST if name == "guided" else None
        relation = "<=" if bound else ""
        report.claim(f"{name}: found over best, the worst", max(found), relation, bound)
    report.check("contents: none better than the best", {"ok": wrong == 0, "better": wrong})


def body(report: common.Report) -> None:
    # first what is timed: the rest leaves hundreds of thousands of objects behind
    functions_planned(report)
    chains_planned(report)
    quality(report)


def main(argv: list[str] | None = None) -> int:
    given: Any = sys.argv[1:] if argv is None else argv
    strict = ["--device", "host", "--strict"]
    status = common.run(NAME, body, __doc__, [*strict, *given], needs_card=False)
    return min(status, 1)


if __name__ == "__main__":
    common.main(main)
