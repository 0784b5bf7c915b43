"""How long planning takes, and how near the best the splits are that the planner finds.

Every public function, a chain of twenty operations, VGG-16's, and chains that memory is so short
for that they are cut, each planned for a machine that need not be at hand: the time is that of the
search, for a problem not seen before. And calls drawn at random, of all functions, placements and
limits: predicted seconds of what the planner finds, over the fewest that whole lines through the
grid of 24 sizes an axis lead to from many splits, each priced exactly. That judge shares the prices
with the planner, and neither its estimates nor its choice of what to price.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.chain_vgg import LAYERS
from benchmarks.planning_problems import arguments, drawn_sizes, problems, request
from benchmarks.searches import Prices, descended
from ooc_cudnn import operations
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.plan import plan
from ooc_cudnn.functions.public import FUNCTIONS
from ooc_cudnn.pricing.planner import make_plan
from ooc_cudnn.pricing.request import LARGEST_BATCH, Request
from ooc_cudnn.pricing.search import Search, even_sizes
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

NAME = "planning"
MACHINE = "h200"
#: Seconds of a first plan of a function: 90th percentile, and the longest.
FUNCTION_SECONDS, LONGEST_SECONDS = 0.050, 0.150
#: Predicted seconds of what the planner finds, over those of the best: of 99 in 100, and of all.
NEAR_THE_BEST, ALWAYS = 1.01, 1.03
#: Problems of each function that are judged, and splits at random that the judge starts from.
JUDGED, STARTS = 56, 6
#: Piece sizes of an axis that the judge tries.
JUDGED_SIZES = 24


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
    """A first plan of one function: problems drawn at random, nothing remembered of them."""
    count = 3 if report.arguments.quick else 24
    spent, longest = list[float](), dict[str, Any]()
    for at, function in enumerate(FUNCTIONS):
        random, made = np.random.default_rng((1, at)), []
        for _ in range(count):
            given = arguments(function, drawn_sizes(random))
            share = float(np.exp(random.uniform(np.log(0.05), 0.0)))
            made.append(request(function, share, MACHINE, **given))
        seconds, fits = timed(partial(_search, each) for each in made)
        spent += seconds
        longest[function] = {"median": float(np.median(seconds)), "longest": max(seconds)}
        longest[function]["fits"] = sum(fits)
    report.measure("seconds of a first plan", longest)
    median, ninety, most = (float(np.quantile(spent, q)) for q in (0.5, 0.9, 1.0))
    report.claim("a first plan of a function, median", 1e3 * median, unit="ms")
    for name, found, bound in (
        ("90th percentile", ninety, FUNCTION_SECONDS), ("the longest", most, LONGEST_SECONDS),
    ):  # fmt: skip
        report.claim(f"a first plan of a function, {name}", 1e3 * found, "<=", 1e3 * bound, "ms")


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
    for name, count, limit in (
        ("a chain of twenty operations", 20, 2**34),
        (f"VGG-16's {whole} operations", whole, 2**34),
        ("a chain of twenty operations, little memory", 20, 2**26),
        (f"VGG-16's {whole} operations, little memory", whole, 2**26),
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
        report.claim(f"planning {name}", 1e3 * median, unit="ms")


def quality(report: common.Report) -> None:
    """What the planner finds against what the judge does."""
    quick = report.arguments.quick
    ratios, worst, wrong = list[float](), list[dict[str, Any]](), 0
    count = report.arguments.judged or (1 if quick else JUDGED)
    for function, share, made in problems(tuple(FUNCTIONS), count, 2, MACHINE, small=quick):
        ratio = found_over_best(made, len(ratios))
        if ratio is None:
            continue
        wrong += ratio < 1 - 1e-6
        ratios.append(ratio)
        worst.append({"function": function, "share": share, "found over best": ratio,
                      "extents": made.chain.extents.to_json()})  # fmt: skip
    worst.sort(key=lambda each: -each["found over best"])
    report.measure("the worst splits", worst[:20])
    report.measure("problems judged", len(ratios))
    within = float(np.mean(np.array(ratios) <= NEAR_THE_BEST))
    report.claim("share of problems within 1 % of the best", within, ">=", 0.99)
    report.claim("found over best, the worst", max(ratios), "<=", ALWAYS)
    report.check("contents: none better than the best", {"ok": wrong == 0, "better": wrong})


def found_over_best(made: Request, seed: int) -> float | None:
    """Predicted seconds of the planner's split over the judge's; None where nothing fits."""
    search, random = Search(made, made.layouts[0]), np.random.default_rng(seed)
    found = search.best(made.memory_limit)
    extents = made.chain.extents.to_json()
    sizes = {
        axis: even_sizes(extents[axis], JUDGED_SIZES, LARGEST_BATCH if axis == "n" else extent)
        if made.chain.may_cut(axis)
        else (extent,)
        for axis, extent in extents.items()
    }
    prices = Prices(search, made.memory_limit, sizes)
    starts = [made.chain.extents, Split(**{a: min(s) for a, s in prices.sizes.items()})]
    starts += [each.split for each in found[:1]]
    for _ in range(STARTS):
        starts.append(Split(**{a: int(random.choice(s)) for a, s in prices.sizes.items()}))
    best = descended(prices, starts)
    if not found:
        return None if best == float("inf") else float("inf")
    return found[0].seconds / best


def body(report: common.Report) -> None:
    # first what is timed: the rest leaves hundreds of thousands of objects behind
    functions_planned(report)
    chains_planned(report)
    quality(report)


def main(argv: list[str] | None = None) -> int:
    given: Any = sys.argv[1:] if argv is None else argv
    strict = ["--device", "host", "--strict"]

    def more(parser: Any) -> None:
        parser.add_argument("--judged", type=int, help=f"problems a function; {JUDGED} by default")

    status = common.run(NAME, body, __doc__, [*strict, *given], needs_card=False, more=more)
    return min(status, 1)


if __name__ == "__main__":
    common.main(main)
