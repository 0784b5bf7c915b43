"""Autotuning: each engine that may run a launch is timed on the device, and the best kept.

A first short timing prunes the engines; those that may be worth having are timed well and checked
against float64. What cannot be checked is kept only where nothing could be. It takes seconds, so
no call does it unasked: `ooc-cudnn tune` does. (In the second that a call might wait there is time
for engines that cuDNN's heuristics rank. They made none of twelve calls on an H200 faster: what
gains much, FFT in strict float32 for one, is not ranked.)
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import (
    HEURISTICS,
    Engine,
    EngineFailedError,
    Measurement,
    Option,
    front,
)
from ooc_cudnn.devices.measuring import Bench, Launched, Timing
from ooc_cudnn.engines.accuracy import Checks, EngineErrors
from ooc_cudnn.engines.launch_timing import Allowance, time_well
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.operations.convolution.gradients import (
    INPUTS,
    AnyConvolution,
    forward_of,
    input_shapes,
    replace_forward,
    result_dtype,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch

#: An engine is timed well unless another one that takes no more workspace is so many times faster,
#: or any other one so many times; of these one launch is all, if it takes so many seconds. (cuDNN
#: has some that take 470 ms where others take 0.7.)
PRUNED_AT, HOPELESS_AT, HOPELESS_SECONDS = 1.5, 20.0, 0.05
#: Of the memory limit, what a plan may have left for workspace. Where all that was measured takes
#: more, what the heuristics choose for so much is measured, too; and of what takes no more than the
#: last of these one is kept, however slow. (On an H100 the fastest filter gradient of
#: volumes wanted more than there was. What ran in its place nobody had timed: it was far slower.)
SPARING_SHARES = (1 / 8, 1 / 64, 1 / 1024)


class TimedEngine(NamedTuple):
    """An engine that was timed, what the host took to launch it, and what was expected of it."""

    option: Option
    launching: float | None
    expected: float


class TimeIt(Protocol):
    """Times a launch in so much scratch, and the host at it; None if there is no room."""

    def __call__(self, *, scratch_bytes: int) -> tuple[Timing, float | None] | None:
        """Return the seconds of both."""


class Deadline:
    """Time left for measuring, by a clock that tests turn.

    Examples
    --------
    >>> seconds = iter([0.0, 0.4, 0.5, 0.7])
    >>> deadline = Deadline(1.0, clock=lambda: next(seconds))
    >>> deadline.allows(steps=1), deadline.allows(steps=2), deadline.allows(steps=1)
    (True, False, False)
    """

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.perf_counter
        self._last = self._clock()
        self._until, self._longest = self._last + seconds, 0.0

    @property
    def left(self) -> float:
        """Seconds until it, as of the last step."""
        return self._until - self._last

    def allows(self, *, steps: int) -> bool:
        """True if so many steps more may be begun: each as long as the longest until now.

        It is asked after each step.
        """
        now = self._clock()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        return now + steps * self._longest < self._until


class EngineTuner:
    """Measures the engines of launches on a device, in so much of its memory, until a deadline."""

    def __init__(self, device: Device, bench: Bench, deadline: Deadline) -> None:
        assert device.engines is not None
        self.device, self.bench, self.deadline = device, bench, deadline
        self.engines = device.engines
        device.use()  # engines are built for the device that is current
        self._checks = Checks(device, self.engines, bench.limit_bytes)

    def measured(
        self,
        launched: Launched,
        *,
        every: bool,
        compiled: bool | None = None,
        borders: bool = True,
        chosen: Engine | None = None,
        also: Iterable[Engine] = (),
    ) -> Measurement | None:
        """Measure the engines of a convolution; None if there is no room for any.

        Parameters
        ----------
        launched : Launched
        every : bool
            Try every engine there is, not only those that the heuristics rank.
        compiled : bool, optional
            Those too that are compiled at run time; as `every` when left out.
        borders : bool
            Check them with the padding of pieces at a border, too, so that they are used there.
        chosen : Engine, optional
            What runs it where nothing was measured, perhaps at another size: it is tried first.
            Where cuDNN does not run it when it is asked for, it stays what the heuristics choose.
        also : iterable of Engine
            Try these, too.
        """
        if compiled is None:
            compiled = every
        operation: AnyConvolution = launched[0].operation
        candidates = self.engines.candidates(operation, every=every, compiled=compiled)
        quick = self._quick()
        once, ranked = self._by_heuristics(quick, launched, chosen)
        others = _each_once(itertools.chain(ranked, also, candidates), len(ranked))
        is_complete = self._timed_once(quick, launched, others, once)
        rights, unchecked = dict[Engine, Option | None](), list[Option]()

        def right(option: Option) -> Option | None:
            engine, is_chosen = option.engine, option.engine in ranked
            if engine not in rights:
                errors = self.checked(operation, engine, borders=borders, chosen=is_chosen)
                error = errors and errors.error
                rights[engine] = None
                if errors and error:
                    rights[engine] = replace(
                        option, error=error.relative, is_right_uneven=errors.is_right_uneven
                    )
                elif errors:
                    unchecked.append(replace(option, error=None, is_right_uneven=False))
            return rights[engine]

        engines = list[TimedEngine]()
        for option in sorted(once, key=lambda option: option.seconds):
            if any(_makes_idle(other.option, option) for other in engines):
                continue
            if engines and option.seconds > HOPELESS_AT * engines[0].option.seconds:
                break
            if (engines or unchecked) and not self.deadline.allows(steps=1):
                is_complete = False
                break
            if (exact := right(option)) is not None:
                timed = self._timed(launched, exact)
                engines += filter(None, [timed])
                if timed is None:  # it fails
                    rights[option.engine] = None
        if not engines:  # the last resort, which would run without a table, too
            engines += filter(None, (self._timed(launched, option) for option in unchecked))
        if engines:
            engines += self._sparing(engines, once, ranked, right)
        return _as_measured(operation, engines, is_complete=is_complete and every and compiled)

    def ranked(
        self, launched: Launched, count: int, also: Iterable[Engine] = ()
    ) -> Measurement | None:
        """Time the engines that the heuristics rank first, so many at most; and others. Check none.

        What they choose runs where nothing was measured, too. Of strict float32 it is all: those
        that follow may use Fourier transforms, which are taken where they were checked. None if
        there is no room for any.
        """
        operation: AnyConvolution = launched[0].operation
        quick = self._quick()
        options, ranked = self._by_heuristics(quick, launched, self.engines.chosen(operation))
        if count > 1 and forward_of(operation).precision not in ("float32", "float64"):
            candidates = self.engines.candidates(operation, every=False, compiled=False)
            others = itertools.islice((e for e in candidates if e not in ranked), count - 1)
            more = _each_once(itertools.chain(ranked, others, also), len(ranked))
            self._timed_once(quick, launched, more, options)
        engines = [_unchecked(option) for option in options]
        return _as_measured(operation, engines, is_complete=False)

    def fastest(self, launched: Launched, count: int) -> tuple[Timing, float | None] | None:
        """Time well the fastest of what `ranked` times, and the host at it; None as there."""
        measured = self.ranked(launched, count)
        if measured is None:
            return None
        with self.engines.forced(launched[0].operation, measured.options[0].engine) as built:
            return None if built is None else self.bench.time_launch(launched, built[0])

    def by_engines(
        self, launched: Launched, engines: Iterable[Engine], known: Iterable[Option]
    ) -> Measurement | None:
        """Time a launch by some engines, the first of them in any case. Check none.

        None if there is no room for any.

        Parameters
        ----------
        engines : iterable of Engine
            At least one.
        known : iterable of Option
            What was measured of another size, with what it would take of this one: those that are
            not timed keep their place among the others.
        """
        operation: AnyConvolution = launched[0].operation
        quick, options, (first, *others) = self._quick(), list[Option](), engines
        self._timed_once(quick, launched, [first], options, hurries=False)
        self._timed_once(quick, launched, others, options)
        found = [_unchecked(option) for option in options]
        timed = {option.engine for option in options}
        for option in known:
            nbytes = None
            if option.engine not in timed:
                nbytes = self._workspace_of(operation, option.engine)
            if nbytes is not None:
                left = replace(option, workspace_bytes=nbytes)
                found.append(TimedEngine(left, None, left.seconds))
        return _as_measured(operation, found, is_complete=False) if options else None

    def fitting(
        self, operation: AnyConvolution, first: Iterable[Engine], workspace_bytes: int
    ) -> Iterator[Engine]:
        """Yield engines that take no more workspace: some first, then those that are ranked."""
        ranked = iter(list[Engine]())
        if forward_of(operation).precision not in ("float32", "float64"):  # as `ranked`
            ranked = self.engines.candidates(operation, every=False, compiled=False)
        for engine in _each_once(itertools.chain(first, ranked), 0):
            nbytes = self._workspace_of(operation, engine)
            if nbytes is not None and nbytes <= workspace_bytes:
                yield engine

    def measured_again(
        self,
        launched: Launched,
        options: Iterable[Option],
        *,
        further: Iterable[Option] = (),
        is_complete: bool = True,
        allowance: Allowance | None = None,
    ) -> Measurement | None:
        """Time engines that are known from another size of the same kind: no other is tried.

        Those for which there is no room or no time, and those that are many times slower, keep
        their place among the others; of `further` engines none is kept that was not timed.
        `is_complete` says whether every engine was tried then. What launches take is taken from the
        allowance.
        """
        engines, left = list[TimedEngine](), list[Option]()
        allowance = allowance or Allowance(math.inf)

        def is_worth_timing(option: Option) -> bool:
            if not engines:
                return True
            first = engines[0]
            seconds = first.option.seconds / first.expected * option.seconds
            return (
                option.seconds <= HOPELESS_AT * first.expected
                and allowance.allows(seconds, option.seconds)
                and self.deadline.allows(steps=1)
            )

        for option in options:
            if not is_worth_timing(option):
                left.append(option)
            elif timed := self._timed(launched, option, allowance.left):
                engines.append(timed)
                allowance.take(timed.option.seconds, timed.expected)
            elif (nbytes := self._workspace_of(launched[0].operation, option.engine)) is not None:
                left.append(replace(option, workspace_bytes=nbytes))
        if not engines:
            return None
        for option in filter(is_worth_timing, further):
            if timed := self._timed(launched, option, allowance.left):
                engines.append(timed)
                allowance.take(timed.option.seconds, timed.expected)
        ratio = engines[0].option.seconds / engines[0].expected
        for option in left:
            seconds = ratio * option.seconds
            engines.append(TimedEngine(replace(option, seconds=seconds), None, seconds))
        return _as_measured(launched[0].operation, engines, is_complete=is_complete)

    def checked(
        self, operation: AnyConvolution, engine: Engine, *, borders: bool, chosen: bool
    ) -> EngineErrors | None:
        """Check an engine's errors; None where it must not be used, or they cannot be found."""
        try:
            return self._checks.of(operation, engine, borders=borders, chosen=chosen)
        except (EngineFailedError, DeviceOutOfMemoryError):
            return None

    def _quick(self) -> Bench:
        """Return a timer that times a launch once, after one that warms up."""
        limit = self.bench.limit_bytes
        return Bench(self.device, limit, batches=1, batch_seconds=0.0, refill=False)

    def _by_heuristics(
        self, quick: Bench, launched: Launched, chosen: Engine | None
    ) -> tuple[list[Option], list[Engine]]:
        """Engines that run where nothing was measured, in however little room; timed once each."""
        options, ranked = list[Option](), [] if chosen is None else [chosen]
        self._timed_once(quick, launched, ranked, options)
        if ranked and not options:
            ranked.append(HEURISTICS)
            self._timed_once(quick, launched, [HEURISTICS], options)
        for share in SPARING_SHARES:
            budget = int(share * self.bench.limit_bytes)
            if min([option.workspace_bytes for option in options], default=math.inf) <= budget:
                continue
            engine = self.engines.chosen(launched[0].operation, budget)
            if engine is not None and engine not in ranked:
                ranked.append(engine)
                self.deadline.allows(steps=1)  # it learns how long a step takes
                self._timed_once(quick, launched, [engine], options, hurries=False)
        return options, ranked

    def _timed_once(
        self,
        quick: Bench,
        launched: Launched,
        candidates: Iterable[Engine],
        options: list[Option],
        *,
        hurries: bool = True,
    ) -> bool:
        """Add what may run a launch, with seconds of one after another that warms up.

        Return whether all were timed; all are where it does not hurry.
        """
        for engine in candidates:
            # one of them is checked, too
            if hurries and options and not self.deadline.allows(steps=2):
                return False
            fastest = min([option.seconds for option in options], default=math.inf)
            patience = max(HOPELESS_AT * fastest, HOPELESS_SECONDS)
            time_once = partial(quick.time_launch, launched, most=1, patience=patience)
            timed = self._by_engine(launched, Option(0.0, 0, engine), time_once)
            options += [timed.option] if timed is not None else []
        return True

    def _sparing(
        self,
        table: Sequence[TimedEngine],
        once: Iterable[Option],
        ranked: Collection[Engine],
        right: Callable[[Option], Option | None],
    ) -> list[TimedEngine]:
        """Engines kept besides, by a first short timing, however slow: they take less workspace.

        Of what takes next to none the fastest, or else the one that takes least; and what the
        heuristics choose. So a plan has a measured engine, however little room there is for it.
        """
        little = int(SPARING_SHARES[-1] * self.bench.limit_bytes)

        def taken(option: Option) -> int:
            return max(option.workspace_bytes, little)

        least, kept = min(taken(timed.option) for timed in table), list[TimedEngine]()
        for option in sorted(once, key=lambda each: (taken(each), each.seconds)):
            is_least = taken(option) < least and not kept
            is_idle = any(_makes_idle(timed.option, option) for timed in (*table, *kept))
            if is_least or (option.engine in ranked and not is_idle):
                exact = right(option)
                kept += [] if exact is None else [TimedEngine(exact, None, exact.seconds)]
        return [each for each in kept if all(each.option.engine != f.option.engine for f in table)]

    def _timed(
        self, launched: Launched, option: Option, allowed_seconds: float = math.inf
    ) -> TimedEngine | None:
        """An option with its seconds on a launch; None where it fails, or finds no room."""
        time_it = partial(
            time_well,
            self.bench,
            launched,
            expected=option.seconds,
            allowed_seconds=allowed_seconds,
        )
        return self._by_engine(launched, option, time_it)

    def _by_engine(self, launched: Launched, option: Option, time_it: TimeIt) -> TimedEngine | None:
        with self.engines.forced(launched[0].operation, option.engine) as built:
            if built is None:
                return None
            nbytes, name = built
            try:
                timed = time_it(scratch_bytes=nbytes)
            except (EngineFailedError, DeviceOutOfMemoryError):  # others hold memory, too
                return None
        if timed is None:
            return None
        timing, launching = timed
        measured = replace(option, seconds=timing.seconds, workspace_bytes=nbytes, name=name)
        return TimedEngine(measured, launching, option.seconds)

    def _workspace_of(self, operation: AnyConvolution, engine: Engine) -> int | None:
        """Workspace that an engine takes for a convolution; None if it cannot run it."""
        with self.engines.forced(operation, engine) as built:
            return None if built is None else built[0]


def _unchecked(option: Option) -> TimedEngine:
    """An option that was timed once, and may be wrong."""
    return TimedEngine(replace(option, error=None, is_right_uneven=False), None, option.seconds)


def _each_once(engines: Iterable[Engine], first: int) -> Iterator[Engine]:
    """Engines in their order, but not the `first` ones; none is asked for before its turn."""
    seen = set[Engine]()
    for engine in engines:
        if engine not in seen:
            seen.add(engine)
            if len(seen) > first:
                yield engine


def _makes_idle(known: Option, option: Option) -> bool:
    """True if an option is not worth more than its first short timing, beside one that is right."""
    takes_more = known.workspace_bytes <= option.workspace_bytes
    return takes_more and PRUNED_AT * known.seconds < option.seconds


def _as_measured(
    operation: AnyConvolution, found: Sequence[TimedEngine], *, is_complete: bool
) -> Measurement | None:
    if not found:
        return None
    options = front(timed.option for timed in found)
    launching = next(timed.launching for timed in found if timed.option == options[0])
    return Measurement(operation.work(), options, operation, launching, is_complete=is_complete)


def launch_of(operation: AnyConvolution) -> Launched:
    """Return the launch of a convolution by itself, and its buffers."""
    forward, shapes = forward_of(operation), input_shapes(operation)
    names = INPUTS[: len(shapes)]
    buffers = {
        name: Buffer(shape, forward.dtype, forward.layout)
        for name, shape in zip(names, shapes, strict=True)
    }
    buffers["result"] = Buffer(operation.output_shape, result_dtype(operation), forward.layout)
    return Launch(operation, names, "result"), buffers


def reduce_images(operation: AnyConvolution, share: float) -> AnyConvolution:
    """Return the operation on at most a share of its images, one at the least.

    Their number is divided by two as often as before, or is a power of two: of 111 images other
    engines won than of 64, and by those 128 images took two to three times as long.

    Examples
    --------
    >>> from ooc_cudnn.operations.convolution.forward import Convolution
    >>> of_64, of_96 = (Convolution.of((n, 8, 9, 9), (8, 8, 3, 3)) for n in (64, 96))
    >>> reduce_images(of_64, 0.1).x_shape, reduce_images(of_96, 0.9).x_shape
    ((4, 8, 9, 9), (64, 8, 9, 9))
    """
    if share >= 1.0:
        return operation
    forward = forward_of(operation)
    images = forward.x_shape[0]
    most, step = max(1, int(images * share)), images & -images
    while step > most:
        step //= 2
    images = most - most % max(step, 1)
    return replace_forward(operation, replace(forward, x_shape=(images, *forward.x_shape[1:])))


def reduce_rows(operation: AnyConvolution, share: float) -> AnyConvolution:
    """Return the operation on at most a share of its rows, as many as a window takes at the least.

    Examples
    --------
    >>> from ooc_cudnn.operations.convolution.forward import Convolution
    >>> of_96, of_9 = (Convolution.of((1, 8, h, 9), (8, 8, 3, 3)) for h in (96, 9))
    >>> reduce_rows(of_96, 0.3).x_shape, reduce_rows(of_9, 0.1).x_shape
    ((1, 8, 24, 9), (1, 8, 3, 9))
    """
    forward = forward_of(operation)
    images, channels, rows, *rest = forward.x_shape
    window = forward.dilation[0] * (forward.w_shape[2] - 1) + 1
    fewer = rows >> max(0, math.ceil(-math.log2(share)))
    shape = (images, channels, min(rows, max(fewer, window)), *rest)
    return replace_forward(operation, replace(forward, x_shape=shape))
