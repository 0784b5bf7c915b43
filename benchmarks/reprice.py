"""What the model as it is now predicts for calls that were measured before: no card needed.

`model_accuracy` keeps of every call, and of every split of its problems, how it ran, its seconds
and the machine model. Here each is priced again, in the very split that ran, by the closed form and
by the replay, so that a change of the model is judged by all measurements there are:
`python -m benchmarks.reprice [RECORDS]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.accuracy_records import Measured, Way, measured
from benchmarks.accuracy_summary import errors
from ooc_cudnn.bench.record import RESULTS, table
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.call_planner.search import PricedSplit, Search
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule

#: Where calls that were measured are kept.
RECORDS = ("model_accuracy_cuda_calls", "model_accuracy_cuda_splits", "model_accuracy_host")
#: Deepest ring that is looked for in what was measured.
DEEPEST = 129


def priced(request: Request, way: Way) -> PricedSplit:
    """A call in one way, by the closed form."""
    search = Search(request, way.layout)
    for depth in range(1, DEEPEST):
        for whole in (True, False):
            candidate = search.with_rings(way.split, way.order, depth, whole)
            if dict(candidate.rings) == dict(way.rings):
                return candidate
    raise ValueError(f"no rings of this call are {way.rings}")


def kind_of(call: Measured, found: PricedSplit) -> str:
    """The kind of a call; those whose pieces take turns, in rings of one slot, apart."""
    alone = found.stages.one_slot and found.split != call.planned[0].chain.extents
    return f"{call.kind}, one slot" if alone else call.kind


def replayed_seconds(request: Request, plan: Plan, way: Way) -> float:
    """The same by the replay. Of a plan of the call only what `way` does not say counts."""
    plan = replace(plan, split=way.split, order=way.order, rings=way.rings, layout=way.layout)
    return ReplayedSchedule(plan_schedule(request, plan)).seconds


class Repriced(NamedTuple):
    """A call or a split that ran, and what is predicted for it, over what it took."""

    call: Measured
    kind: str
    closed_form: float
    replay: float = float("nan")


def repriced(calls: Sequence[Measured]) -> Iterator[Repriced]:
    """Price everything that ran again."""
    for call in calls:
        if call.planned is None:
            continue
        request, plan = call.planned
        for run in call.runs:
            price = priced(request, run.way)
            replay = replayed_seconds(request, plan, run.way) / run.seconds
            yield Repriced(call, kind_of(call, price), price.seconds / run.seconds, replay)


def off(ratios: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile of how far predictions are off."""
    found = errors(ratios)
    return {name: found[name] for name in ("median", "p90")}


def show(calls: Sequence[Measured], most: int) -> None:
    """Print errors of both predictors, and the calls that are furthest off."""
    results = list(repriced(calls))
    rows = []
    for kind in dict.fromkeys(each.kind for each in results):
        chosen = [each for each in results if each.kind == kind]
        then = [each.call.then for each in chosen]
        figures = [off(then), *(off([getattr(e, by) for e in chosen]) for by in BY)]
        cells = (f"{value:.3f}" for each in figures for value in each.values())
        rows.append((kind, str(len(chosen)), *cells))
    head = ("kind", "", "median then", "p90 then", "median now", "p90 now", "replay", "p90")
    print(table(head, rows))
    calls_alone = [each for each in results if "calls" in each.kind]
    for result in sorted(calls_alone, key=lambda e: -abs(e.closed_form - 1.0))[:most]:
        print(
            f"{result.closed_form:.2f} (replay {result.replay:.2f}, then {result.call.then:.2f})  "
            f"{result.call.drawn.placement_class:8}  {str(result.call.drawn)[:90]}"
        )


#: The predictors.
BY = ("closed_form", "replay")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", nargs="*", type=Path, help="written by model_accuracy")
    parser.add_argument("--worst", type=int, default=10, help="calls to name (%(default)s)")
    arguments = parser.parse_args(argv)
    paths = arguments.records or [RESULTS / f"{name}.json" for name in RECORDS]
    show([call for path in paths for call in measured(path)], arguments.worst)
    return 0


if __name__ == "__main__":
    sys.exit(main())
