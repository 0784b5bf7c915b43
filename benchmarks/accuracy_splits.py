"""The split that the planner chooses, against every split of a coarse grid, measured in turns."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks.accuracy_draw import MIB, SCALES, Drawn, Scale, draw
from benchmarks.accuracy_operands import Blocks, Bound
from ooc_cudnn.arrays.operands import array_ref
from ooc_cudnn.bench.steadiness import Neighbours
from ooc_cudnn.bench.timing import Timing, interleave, paired_ratio, time_call
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.call_planner.search import Search
from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.call_cache import is_staged
from ooc_cudnn.functions.call.plan_api import describe_call, planned_call
from ooc_cudnn.operations.core.call import AXES
from ooc_cudnn.pipeline.execute import make_executor
from perfmodel import Split

#: Splits of a grid: the finest steps between piece sizes are taken that give no more than the most.
LEAST_SPLITS, MOST_SPLITS = 10, 40
STEPS = (2, 3, 4, 6, 8, 12, 16)
#: No split of a grid has more pieces; whatever the sizes, they would be far too small.
MOST_PIECES = 256
#: Splits slower than this, in units of the fastest, are not timed again: they cannot be the best.
HOPELESS = 1.5
ROUNDS = 5
#: The best and the chosen one are timed again, in so many rounds as fit the seconds. (A call of
#: plain memory scatters so much from round to round that the median of 31 ratios is off by 3 %.)
FINALISTS, LEAST_FINAL_ROUNDS, MOST_FINAL_ROUNDS, FINAL_SECONDS = 3, 9, 127, 8.0
#: Memory limits, over the bytes of all operands: such that every call has to be cut.
SHARES = (0.08, 0.5)

_SMALLER = {"cuda": (384 * MIB, 1536 * MIB), "host": (6 * MIB, 32 * MIB)}


def problem_scale(name: str) -> Scale:
    """The scale of problems whose splits are all measured: smaller, and with less arithmetic."""
    scale = SCALES[name]
    smallest, largest = _SMALLER.get(name, (scale.smallest_bytes, scale.largest_bytes))
    flops = {kind: most / 8 for kind, most in scale.flops.items()}
    return replace(scale, smallest_bytes=smallest, largest_bytes=largest, flops=flops)


def draw_problem(seed: int, index: int, scale: Scale) -> Drawn | None:
    """Draw a call that has to be cut; None where its operands are all on the device, or in files.

    Files are left out since how fast they are depends on what ran before.
    """
    drawn = draw(seed, index, scale)
    if drawn.placement_class in ("device", "disk"):
        return None
    low, high = map(math.log, SHARES)
    share = math.exp(np.random.default_rng((seed, index, 2)).uniform(low, high))
    return replace(drawn, memory_share=round(share, 4))


def runner(
    device: Device, request: Request, plan: Plan, sources: Mapping[str, Any]
) -> Callable[[], None]:
    """Return what runs a call by a plan of its own."""
    executor = make_executor(request, plan)

    def run() -> None:
        with device.arena.lock:
            executor.run(device, sources, staged=is_staged(plan), wait=True)

    return run


def sources_of(bound: Bound) -> dict[str, Any]:
    """The operands of a call, as an executor takes them."""
    device = bound.blocks.device
    description = describe_call(bound.drawn.function, bound.arguments())
    arrays = {**description.arrays, **description.given_results()}
    wrapped = {name: array_ref(array, device, name=name) for name, array in arrays.items()}
    return {
        name: each.view() if each.spec.placement == "device" else each.array
        for name, each in wrapped.items()
    }


def grid(request: Request, ask: Any) -> list[Plan]:
    """Plans of every split of a coarse grid that runs within the limit; [] if they are too few."""
    for step in STEPS:
        splits = [split for split in _splits(request, step) if _fits(request, split)]
        if len(splits) <= MOST_SPLITS:
            break
    else:
        return []
    if len(splits) < LEAST_SPLITS:
        return []
    plans = []
    for split in splits:
        try:
            plans.append(make_plan(request, ask, split))
        except PlanInfeasibleError:
            continue  # no room for the workspace that the device asks for
    return plans if len(plans) >= LEAST_SPLITS else []


def _splits(request: Request, step: int) -> Iterator[Split]:
    """Splits of 1, step, step**2, ... pieces on each axis, each once."""
    chain, seen = request.chain, set()
    sizes = {axis: _sizes(getattr(chain.extents, axis), step) for axis in AXES}
    for axis in AXES:
        if not chain.may_cut(axis):
            sizes[axis] = sizes[axis][:1]
    for choice in itertools.product(*sizes.values()):
        split = Split(**dict(zip(sizes, choice, strict=True)))
        if not chain.is_legal(split):
            continue
        cut = chain.ranges(split)
        key = tuple((len(cut[axis]), cut[axis][0]) for axis in AXES)
        if math.prod(len(each) for each in cut.values()) <= MOST_PIECES and key not in seen:
            seen.add(key)
            yield split


def _sizes(extent: int, step: int) -> tuple[int, ...]:
    counts = itertools.takewhile(lambda count: count <= extent, (step**k for k in range(64)))
    return tuple(dict.fromkeys(-(-extent // count) for count in counts))


def _fits(request: Request, split: Split) -> bool:
    """Whether a split runs within the limit in some memory order, workspace apart."""
    limit = request.memory_limit
    return any(Search(request, layout).prices([split], limit) for layout in request.layouts)


def measure_problem(drawn: Drawn, blocks: Blocks) -> dict[str, Any] | None:
    """Measure every split of a problem's grid, and the chosen one; None where there is no grid.

    Returns every plan with its seconds, and the chosen one's over the best one's: the median over
    rounds in which they took turns.
    """
    bound = Bound(drawn, blocks)
    ask = blocks.device.workspace
    begin = time.perf_counter()
    with ooc_cudnn.settings(memory_limit=drawn.memory_limit, allow_tf32=drawn.allow_tf32):
        try:
            planned = planned_call(drawn.function, **bound.arguments())
        except PlanInfeasibleError:
            return None
        if len(planned.parts) > 1:
            return None  # a chain that runs as shorter ones has no split
        request, chosen = planned.parts[0].request, planned.plan
        plans = grid(request, ask)
        if not plans:
            return None
        same = [plan for plan in plans if _way(plan) == _way(chosen)]
        plans = [chosen, *(plan for plan in plans if plan not in same)]
        planning = time.perf_counter() - begin
        run = partial(runner, blocks.device, request, sources=sources_of(bound))
        neighbours = Neighbours()
        measured = _measure({str(at): run(plan) for at, plan in enumerate(plans)}, blocks)
        share = neighbours.share()
    return {
        "drawn": drawn.to_json(),
        "description": str(drawn),
        "memory_limit": drawn.memory_limit,
        "placement": drawn.placement_class,
        "plan_seconds": planning,
        "others_share": share,
        "splits": [
            _plan_json(plan) | {"seconds": measured["seconds"][str(at)]}
            for at, plan in enumerate(plans)
        ],
        "chosen_in_grid": bool(same),
        # above 1 the search missed a split that the model itself holds to be faster
        "chosen/best predicted": chosen.seconds / min(plan.seconds for plan in plans),
        **measured["final"],
        "rank_correlation": rank_correlation(
            [plan.seconds for plan in plans], list(measured["seconds"].values())
        ),
    }


def _way(plan: Plan) -> tuple[Any, ...]:
    """What tells two plans of one call apart."""
    return plan.split, plan.order, plan.rings, plan.layout, plan.algorithms


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "split": plan.split.to_json(),
        "order": list(plan.order),
        "rings": dict(plan.rings),
        "layout": plan.layout,
        "pieces": plan.pieces,
        "device_bytes": plan.device_bytes,
        "binding_stage": plan.binding_stage,
        "predicted_seconds": plan.seconds,
    }


def _measure(runs: Mapping[str, Callable[[], None]], blocks: Blocks) -> dict[str, Any]:
    """Time all once, the hopeful ones in rounds, the best three and the chosen one ("0") again."""
    synchronize = blocks.device.synchronize
    for run in runs.values():
        run()
    once = {name: time_call(run, synchronize) for name, run in runs.items()}
    fastest = min(once.values())
    hopeful = {name: runs[name] for name in runs if name == "0" or once[name] < HOPELESS * fastest}
    rounds = interleave(hopeful, synchronize, repeats=ROUNDS, warmup=0)
    seconds = once | {name: timing.median for name, timing in rounds.items()}
    best = sorted((name for name in rounds if name != "0"), key=lambda name: seconds[name])
    finalists = {name: runs[name] for name in ("0", *best[:FINALISTS])}
    again = sum(seconds[name] for name in finalists)
    repeats = min(max(int(FINAL_SECONDS / again), LEAST_FINAL_ROUNDS), MOST_FINAL_ROUNDS)
    final = interleave(finalists, synchronize, repeats=repeats, warmup=0)
    return {"seconds": seconds, "final": final_ratio(final)}


def final_ratio(final: Mapping[str, Timing]) -> dict[str, Any]:
    """The chosen one's seconds over the best one's, round by round; at least 1."""
    ratios = {
        name: paired_ratio(final["0"], timing)["median"]
        for name, timing in final.items()
        if name != "0"
    }
    best = max(ratios, key=lambda name: ratios[name], default="0")
    return {
        "chosen/best": max(ratios.get(best, 1.0), 1.0),
        "best": int(best) if ratios.get(best, 1.0) > 1 else 0,
        "final": {name: timing.to_json() for name, timing in final.items()},
    }


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's: 1 where both put the splits in the same order."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def spoken_problem(found: Mapping[str, Any]) -> str:
    chosen, best = found["splits"][0], found["splits"][found["best"]]
    return (
        f"{found['chosen/best']:.3f} of the best of {len(found['splits'])}; chosen "
        f"{_cut(chosen)} {chosen['seconds'] * 1e3:.4g} ms (predicted "
        f"{chosen['predicted_seconds'] * 1e3:.4g}), best {_cut(best)} "
        f"{best['seconds'] * 1e3:.4g} ms (predicted {best['predicted_seconds'] * 1e3:.4g}); "
        f"rank correlation {found['rank_correlation']:.2f}, "
        f"{found['chosen/best predicted']:.3f} of the best predicted"
    )


def _cut(found: Mapping[str, Any]) -> str:
    split = found["split"]
    return f"d_n={split['n']} d_cY={split['c_y']} d_cX={split['c_x']} d_hY={split['h_y']}"
