"""Timing: warm-up, then repeats that take turns with what they are compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

#: Calls in a row that are timed at once take about so many seconds, and are so many. Fewer would
#: show what the host takes for the first of them.
ROW_SECONDS, FEWEST_CALLS, MOST_CALLS = 0.02, 4, 24
#: A step is repeated for so many seconds at most, and so many times.
REPEAT_SECONDS = 30.0
REPEATS = 10
#: And run so often before: the library records a step that comes to the same arrays again.
WARM_UP = 6
#: A step that takes longer has the one sample that is recorded, too.
LONG_SECONDS = 5.0


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat, in order."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a timing needs at least one repeat")

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.samples)

    def percentile(self, percent: float) -> float:
        """Seconds that `percent` of the repeats did not take longer than."""
        return float(np.percentile(self.samples, percent))

    def __str__(self) -> str:
        return (
            f"median {self.median * 1e3:.4g} ms, min {min(self.samples) * 1e3:.4g}, "
            f"max {max(self.samples) * 1e3:.4g} of {len(self.samples)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the seconds and what sums them up."""
        return {
            "unit": "seconds",
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "p10": self.percentile(10),
            "p90": self.percentile(90),
            "samples": list(self.samples),
        }


def time_call(function: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Seconds of one call, from an idle device to an idle device."""
    synchronize()
    begin = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - begin


def time_repeats(function: Callable[[], Any], synchronize: Callable[[], None]) -> Timing:
    """Time what was run before: ten times, or as often as there is time for."""
    samples = [time_call(function, synchronize)]
    if samples[0] < LONG_SECONDS:
        samples = [time_call(function, synchronize) for _ in range(WARM_UP)][-1:]
    while len(samples) < REPEATS and sum(samples) + samples[-1] < REPEAT_SECONDS:
        samples.append(time_call(function, synchronize))
    return Timing(tuple(samples))


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    synchronize: Callable[[], None],
    *,
    repeats: int,
    warmup: int = 1,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, Timing]:
    """Time functions in turns, so that a drift of the machine meets all of them alike.

    `before` names what runs, untimed, ahead of each repeat of a function.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(-warmup, repeats):
        for name, function in functions.items():
            if before and name in before:
                before[name]()
            seconds = time_call(function, synchronize)
            if repeat >= 0:
                samples[name].append(seconds)
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def time_in_a_row(
    calls: Mapping[str, Callable[[], Any]], synchronize: Callable[[], None], *, repeats: int
) -> dict[str, Timing]:
    """Time a call among several in a row, whose results go when the next one is there, in turns.

    The first of all plans, searches and compiles, and does not count.
    """
    counts = {}
    for name, call in calls.items():
        call()
        seconds = min(time_call(call, synchronize) for _ in range(2))
        counts[name] = min(max(int(ROW_SECONDS / seconds), FEWEST_CALLS), MOST_CALLS)

    def several(name: str) -> None:
        for _ in range(counts[name]):
            _kept = calls[name]()

    rows = {name: partial(several, name) for name in calls}
    timings = interleave(rows, synchronize, repeats=repeats)
    return {
        name: Timing(tuple(seconds / counts[name] for seconds in timing.samples))
        for name, timing in timings.items()
    }


def host_seconds_per_call(
    functions: Mapping[str, Callable[[], Any]],
    synchronize: Callable[[], None],
    *,
    calls: int,
    batches: int,
) -> dict[str, Timing]:
    """Host time of one call: batches in turns, the device waited for only between them."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for batch in range(-1, batches):
        for name, function in functions.items():
            synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            seconds = (time.perf_counter() - begin) / calls
            if batch >= 0:
                samples[name].append(seconds)
    synchronize()
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def paired_ratio(numerator: Timing, denominator: Timing) -> dict[str, float]:
    """Ratio of two timings that took turns: of the medians, and the spread repeat by repeat."""
    ratios = [a / b for a, b in zip(numerator.samples, denominator.samples, strict=True)]
    return {
        "of_medians": numerator.median / denominator.median,
        "median": statistics.median(ratios),
        "min": min(ratios),
        "max": max(ratios),
    }
