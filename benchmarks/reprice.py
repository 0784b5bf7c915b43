"""What the model as it is now predicts for calls that were measured before: no card needed.

`model_accuracy` keeps of every call, and of every split of its problems, how it ran, its seconds
and the machine model. Here each is priced again, in the very split that ran, by the closed form and
by the replay, so that a change of the model is judged by all measurements there are:
`python -m benchmarks.reprice [RECORDS]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accuracy_draw import Drawn
from benchmarks.accuracy_plans import planned_for
from benchmarks.accuracy_summary import errors
from ooc_cudnn.bench.record import RESULTS, table
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.call_planner.search import PricedSplit, Search
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.pipeline.simulate import ReplayedSchedule
from perfmodel import MachineModel, Split

#: Where calls that were measured are kept.
RECORDS = ("model_accuracy_cuda_calls", "model_accuracy_cuda_splits", "model_accuracy_host")
#: Deepest ring that is looked for in what was measured.
DEEPEST = 129


#: How a call ran, by the fields of a plan: split, order, rings and layout.
Way = dict[str, Any]


def way_of(ran: Mapping[str, Any]) -> Way:
    """The way of a plan that was kept."""
    split, order, rings = Split(**ran["split"]), tuple(ran["order"]), tuple(ran["rings"].items())
    return {"split": split, "order": order, "rings": rings, "layout": ran["layout"]}


@dataclass(frozen=True)
class Measured:
    """A call that ran in one way, or in all those of a grid: ways, and the seconds of each."""

    kind: str
    drawn: Drawn
    limit_bytes: int
    machine: MachineModel
    runs: tuple[tuple[Way, float], ...]
    then: float = float("nan")

    @cached_property
    def planned(self) -> tuple[Request, Plan] | None:
        """What is planned for it; None where it is cut into several runs."""
        parts = planned_for(self.drawn, self.machine, self.limit_bytes).parts
        return (parts[0].request, parts[0].plan) if len(parts) == 1 else None


def measured(path: Path) -> Iterator[Measured]:
    """The calls of a record; those that ran as several calls are left out."""
    held = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    machine = MachineModel.from_json(held["machine model"])
    device = "host" if "host" in path.name else "card"
    for call in held.get("calls", ()):
        if call["parts"] == 1:
            runs = ((way_of(call["profile"]), call["seconds"]),)
            drawn, limit = Drawn.from_json(call["drawn"]), call["memory_limit"]
            then = call["predicted/measured"]
            yield Measured(f"{device}, calls", drawn, limit, machine, runs, then)
    for problem in held.get("splits", ()):
        runs = tuple((way_of(each), each["seconds"]) for each in problem["splits"])
        drawn, limit = Drawn.from_json(problem["drawn"]), problem["memory_limit"]
        yield Measured(f"{device}, splits", drawn, limit, machine, runs)


def priced(request: Request, way: Way) -> PricedSplit:
    """A call in one way, by the closed form."""
    search = Search(request, way["layout"])
    for depth in range(1, DEEPEST):
        for whole in (True, False):
            candidate = search.with_rings(way["split"], way["order"], depth, whole)
            if dict(candidate.rings) == dict(way["rings"]):
                return candidate
    raise ValueError(f"no rings of this call are {way['rings']}")


def kind_of(call: Measured, found: PricedSplit) -> str:
    """The kind of a call; those whose pieces take turns, in rings of one slot, apart."""
    alone = found.stages.one_slot and found.split != call.planned[0].chain.extents
    return f"{call.kind}, one slot" if alone else call.kind


def replayed_seconds(request: Request, plan: Plan, way: Way) -> float:
    """The same by the replay. Of a plan of the call only what `way` does not say counts."""
    return ReplayedSchedule(plan_schedule(request, replace(plan, **way))).seconds


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
        for way, seconds in call.runs:
            price = priced(request, way)
            replay = replayed_seconds(request, plan, way) / seconds
            yield Repriced(call, kind_of(call, price), price.seconds / seconds, replay)


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
