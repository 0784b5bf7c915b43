"""Tuning: the seconds of a launch, by each engine that may run it, measured on the device.

A first short timing prunes the engines; those that may be worth having are timed well and checked
against float64. It takes seconds, so a call that is not known takes a part of one at most (that of
`trials`), and `ooc-cudnn tune` does the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Engine, EngineFailedError, Measured, Option, front
from ooc_cudnn.devices.measuring import Bench, Launched, Timing
from ooc_cudnn.functions.engine_errors import Error, error_of
from ooc_cudnn.operations.convolution_backward import AnyConvolution

#: An engine is timed well unless another one that takes no more workspace is so many times faster.
PRUNED_AT = 1.5
#: What takes so many times as long as predicted is timed again, and the shorter time counts: it may
#: have been disturbed.
SUSPICIOUS = 1.5
#: Launches that are timed, after as many that only warm up; of those that take longer than so many
#: seconds, one.
LAUNCHES, LONG_SECONDS = 3, 5e-3


class Timed(Protocol):
    """Times a launch in so much scratch, and the host at it; None if there is no room."""

    def __call__(self, *, scratch_bytes: int) -> tuple[Timing, float | None] | None:
        """Return the seconds of both."""


class Deadline:
    """How long measuring may take, by a clock that tests turn."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.perf_counter
        self._until = self._clock() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._clock() >= self._until


def launches_of(seconds: float) -> int:
    """How often a launch is timed that takes about so long."""
    return 1 if seconds > LONG_SECONDS else LAUNCHES


def time_well(
    bench: Bench, launched: Launched, *, scratch_bytes: int, expected: float
) -> tuple[Timing, float | None] | None:
    """Time a launch, again where it seems to have been disturbed; None if there is no room."""
    most = launches_of(expected)
    found = bench.time_launch(launched, scratch_bytes, most=most)
    if found is not None and found[0].seconds > SUSPICIOUS * expected:
        again = bench.time_launch(launched, scratch_bytes, most=most)
        found = min(found, again or found, key=lambda each: each[0].seconds)
    return found


class Tuning:
    """Measures the engines of launches on a device, in so much of its memory, until a deadline."""

    def __init__(self, device: Device, bench: Bench, deadline: Deadline) -> None:
        assert device.engines is not None
        self.device, self.bench, self.deadline = device, bench, deadline
        self.engines = device.engines

    def measured(self, launched: Launched, *, every: bool) -> Measured | None:
        """Measure the engines of a convolution; None if there is no room for any.

        Parameters
        ----------
        launched : Launched
        every : bool
            Try every engine there is, not only those that the heuristics rank.
        """
        operation: AnyConvolution = launched[0].operation
        timed, is_complete = self._timed_once(launched, every=every)
        found = list[tuple[Option, float | None]]()
        for option in sorted(timed, key=lambda option: option.seconds):
            if any(_makes_idle(other, option) for other, _ in found):
                continue
            if found and self.deadline.is_over:
                is_complete = False
                break
            error = self.error(operation, option.engine)
            if error is not None and error.is_admitted:
                found += self._timed(launched, replace(option, error=error.relative))
        return _as_measured(operation, found, is_complete=is_complete and every)

    def measured_again(self, launched: Launched, options: Iterable[Option]) -> Measured | None:
        """Time engines that are known from another size of the same kind: no other is tried."""
        found = [timed for option in options for timed in self._timed(launched, option)]
        return _as_measured(launched[0].operation, found, is_complete=True)

    def error(self, operation: AnyConvolution, engine: Engine) -> Error | None:
        """How exact an engine is; None where that cannot be found."""
        limit = self.bench.limit_bytes
        try:
            return error_of(self.device, self.engines, operation, engine, limit)
        except EngineFailedError:
            return None

    def _timed_once(self, launched: Launched, *, every: bool) -> tuple[list[Option], bool]:
        """What may run a launch, with seconds of one after another that warms up; and if all is."""
        quick = Bench(self.device, self.bench.limit_bytes, batches=1, batch_seconds=0.0)
        time_once = partial(quick.time_launch, launched, most=1)
        timed = list[Option]()
        for engine in self.engines.candidates(launched[0].operation, every=every):
            if timed and self.deadline.is_over:
                return timed, False
            timed += (option for option, _ in self._by_engine(launched, engine, time_once))
        return timed, True

    def _timed(self, launched: Launched, option: Option) -> list[tuple[Option, float | None]]:
        """The same option with its seconds on a launch, and the host's; none if it fails."""
        timed = partial(time_well, self.bench, launched, expected=option.seconds)
        found = self._by_engine(launched, option.engine, timed)
        return [(replace(each, error=option.error), host) for each, host in found]

    def _by_engine(
        self, launched: Launched, engine: Engine, timed: Timed
    ) -> list[tuple[Option, float | None]]:
        """What an engine takes for a launch, and the host; none if it cannot run it, or here."""
        with self.engines.forced(launched[0].operation, engine) as built:
            if built is None:
                return []
            workspace_bytes, name = built
            try:
                found = timed(scratch_bytes=workspace_bytes)
            except EngineFailedError:
                return []
        if found is None:
            return []
        timing, launching = found
        return [(Option(timing.seconds, workspace_bytes, engine, name), launching)]


def _makes_idle(known: Option, option: Option) -> bool:
    """Whether an option is not worth more than its first short timing, beside one that is right."""
    takes_more = known.workspace_bytes <= option.workspace_bytes
    return takes_more and PRUNED_AT * known.seconds < option.seconds


def _as_measured(
    operation: AnyConvolution, found: list[tuple[Option, float | None]], *, is_complete: bool
) -> Measured | None:
    if not found:
        return None
    options = front(option for option, _ in found)
    launching = next(host for option, host in found if option == options[0])
    return Measured(operation.work(), options, operation, launching, is_complete=is_complete)
