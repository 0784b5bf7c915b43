"""Seconds of launches that are far shorter than what the host takes to issue one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.devices import get_device

#: Launches of a batch last so long at least, within these numbers; and batches are so many.
BATCH_SECONDS, FEWEST, MOST, BATCHES = 1e-3, 4, 40, 9
#: The stream is held for so long for each call that the host issues; longer, up to so many times,
#: where that was too short.
ISSUE_SECONDS, HOLDS = 4e-5, 4

Runs = Sequence[Callable[[], Any]]


class Clock:
    """Seconds of a call among several in a row.

    On a card the stream is held meanwhile, so that the host is no part of it.
    """

    def __init__(self, device: str, *, quick: bool) -> None:
        self.device: Any = get_device(device)
        self.cuda, self.synchronize = self.device.kind == "cuda", self.device.synchronize
        self.batches = 2 if quick else BATCHES
        self.fewest = 1 if quick else FEWEST

    def batch(self, runs: Runs, count: int, *, held: bool = True) -> float:
        """Seconds of each of `count` calls, which take `runs` in turn."""
        if self.cuda and held:
            return self._on_card(runs, count)
        self.synchronize()
        begin = time.perf_counter()
        for index in range(count):
            runs[index % len(runs)]()
        self.synchronize()
        return (time.perf_counter() - begin) / count

    def _on_card(self, runs: Runs, count: int) -> float:
        import cupy

        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        hold = ISSUE_SECONDS * count
        for _ in range(HOLDS):
            self.device.hold(hold, None)
            since = time.perf_counter()
            begin.record()
            for index in range(count):
                runs[index % len(runs)]()
            end.record()
            issued = time.perf_counter() - since
            end.synchronize()
            if issued < hold:
                break
            hold = 2 * issued  # the card waited for the host
        return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3 / count

    def measure(self, ways: Mapping[str, Runs]) -> dict[str, Timing]:
        """Time several ways in turns."""
        counts = {}
        for name, runs in ways.items():
            self.batch(runs, len(runs))  # plans, compiles, allocates
            spent = max(self.batch(runs, self.fewest), 1e-7)
            counts[name] = min(max(round(BATCH_SECONDS / spent), self.fewest), MOST)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.batches):
            for name, runs in ways.items():
                seconds[name].append(self.batch(runs, counts[name]))
        return {name: Timing(tuple(samples)) for name, samples in seconds.items()}
