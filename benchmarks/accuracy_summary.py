"""Figures over all measured calls: how far predictions are off, by what, and which are worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import STREAMS

Found = Mapping[str, Any]
#: Of calls, on the device: median and 90th percentile of |predicted / measured - 1|.
BOUNDS = {"cuda": (0.10, 0.25), "host": (0.20, 0.40)}
#: Of the chosen split over the best measured one: median and worst.
SPLIT_BOUNDS = (1.03, 1.06)
LEAST_CALLS, LEAST_PROBLEMS = 60, 12
WORST = 10


def figures(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and largest."""
    return {
        "count": len(values),
        "median": float(np.median(values)),
        "p90": float(np.percentile(values, 90)),
        "max": max(values),
    }


def errors(ratios: Sequence[float]) -> dict[str, float]:
    """Figures of how far predictions are off, and whether they are too long (>1) or too short."""
    bias = float(np.median(ratios))
    return figures([abs(ratio - 1) for ratio in ratios]) | {"median_ratio": bias}


def grouped(calls: Sequence[Found], by: Callable[[Found], str]) -> dict[str, dict[str, float]]:
    """Errors of calls by what `by` says of them, in order of its names."""
    groups: dict[str, list[float]] = {}
    for call in calls:
        groups.setdefault(by(call), []).append(call["predicted/measured"])
    return {name: errors(groups[name]) for name in sorted(groups)}


def stage_errors(calls: Sequence[Found]) -> dict[str, dict[str, float]]:
    """Predicted over measured busy seconds of each stage, where it takes a tenth of the call."""
    by_stage = {}
    for stage in STREAMS:
        ratios = [
            call["replay"]["stages"][stage] / call["stages"][stage]["measured_seconds"]
            for call in calls
            if call["stages"][stage]["measured_seconds"] > call["seconds"] / 10
        ]
        if ratios:
            by_stage[stage] = errors(ratios)
    return by_stage


def worst(calls: Sequence[Found], count: int = WORST) -> list[Found]:
    """The calls whose logarithm of predicted over measured is furthest from 0."""
    return sorted(calls, key=lambda c: -abs(math.log(c["predicted/measured"])))[:count]


def summary(calls: Sequence[Found]) -> dict[str, Any]:
    """Everything there is to say of the calls that were measured."""
    return {
        "closed_form": errors([call["predicted/measured"] for call in calls]),
        "replay": errors([call["replay/measured"] for call in calls]),
        "spread": figures([_spread(call) for call in calls]),
        "by_function": grouped(calls, lambda call: call["drawn"]["function"]),
        "by_binding_stage": grouped(calls, lambda call: call["binding_stage"]),
        "by_placement": grouped(calls, lambda call: call["placement"]),
        "by_dtype": grouped(calls, lambda call: call["drawn"]["operands"][0]["dtype"]),
        "by_stage_of_replay": stage_errors(calls),
        "worst": [
            {
                "description": call["description"],
                "predicted/measured": call["predicted/measured"],
                "stages": call["stages"],
            }
            for call in worst(calls)
        ],
    }


def _spread(call: Found) -> float:
    timing = call["timing"]
    return float((timing["max"] - timing["min"]) / timing["median"])


def rounded(value: Any, digits: int = 6) -> Any:
    """JSON with numbers of so many digits: what is measured has no more."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {name: rounded(held, digits) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(held, digits) for held in value]
    return value


def rows(found: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            str(int(each["count"])),
            f"{each['median']:.1%}",
            f"{each['p90']:.1%}",
            f"{each['max']:.1%}",
            f"{each['median_ratio']:.2f}",
        )
        for name, each in found.items()
    ]


HEAD = ("group", "calls", "median", "p90", "max", "predicted/measured")
