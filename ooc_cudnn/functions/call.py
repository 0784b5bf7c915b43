"""From a public function to its result: wrap the operands, plan once, run.

The way of every call, one direction: operands -> chain -> plan -> schedule -> executor. All that
depends only on shapes, dtypes, placements and settings is kept, so a repeated call goes straight to
the executor.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ooc_cudnn import forks, interrupts
from ooc_cudnn.arrays.functions import empty_in
from ooc_cudnn.arrays.operands import (
    Wrapped,
    check_apart,
    check_writable,
    wrap,
)
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.chain_planning import forget_plans
from ooc_cudnn.functions.description import Build, Description, given_results
from ooc_cudnn.functions.planning import Target, plan_call
from ooc_cudnn.functions.trials import forget_trials
from ooc_cudnn.memory.files import reserve_file
from ooc_cudnn.memory.limit import forget_limits, limit_bytes
from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.pipeline.execute import Executor, Source, make_executor
from ooc_cudnn.pipeline.plan import Plan
from ooc_cudnn.pipeline.request import worth_threads
from ooc_cudnn.pipeline.trace import Trace, one_after_the_other
from ooc_cudnn.pipeline.verify import Verification
from ooc_cudnn.profiling import Call, recording
from ooc_cudnn.progress import SHORTEST_SECONDS, Reporter, reporter
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.telling import warn
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.units import format_bytes

#: Calls that are remembered, with their plans and schedules.
REMEMBERED_CALLS = 256
#: More pieces than this are worth a warning: about a second of the host's time, without any work.
MANY_PIECES = 20_000
#: A remembered plan is made anew once this much more memory is available than when it was made.
ROOM_WORTH_REPLANNING = 1.25


class Run(NamedTuple):
    """One of the runs that make up a call, with what its operands are in the call."""

    executor: Executor
    staged: bool
    names: Mapping[str, str]


@dataclass(frozen=True)
class Prepared:
    """A call, ready to run on any operands of the same specs.

    `result_bytes` is the device memory that its results are still to be given, `available_bytes`
    what the plan could choose from beside it, `between` what its runs hand on to each other.
    """

    chain: Splittable
    plan: Plan
    runs: tuple[Run, ...]
    available_bytes: int
    result_bytes: int
    between: Mapping[str, TensorSpec]


_prepared: OrderedDict[Hashable, Prepared] = OrderedDict()
_lock = forks.lock()


def call(description: Description, out: Any = None) -> Any:
    """Run a function on its operands and return its results, written to `out` if that is given.

    Parameters
    ----------
    out : array, or tuple of arrays and None
        For each of the results; a single one is not in a tuple.
    """
    function, build, arrays, parameters = description[:4]
    results = description.results
    settings = current()
    device = get_device(settings.device)
    operands = {name: wrap(array, device, name=name) for name, array in arrays.items()}
    given = given_results(description, out)
    updated = description.updated
    outs = {
        name: wrap(array, device, name=_given_as(name, results, updated), written=True)
        for name, array in given.items()
    }
    # Specs that what is to be cut is made of, besides those of the operands.
    further = {n: wrap(array, device, name=n).spec for n, array in description.beside.items()}
    further |= {name: outs[name].spec for name in updated}
    key = (
        function,
        parameters,
        settings,
        *(operand.spec for operand in operands.values()),
        *(operand.pointer % WIDEST_ACCESS_BYTES for operand in operands.values()),
        *(
            (name, result.spec, result.pointer % WIDEST_ACCESS_BYTES)
            for name, result in outs.items()
        ),
        *further.values(),
    )
    with device.arena.lock:
        prepared = _find(key, device, settings)
        if prepared is None:
            prepared = _prepare(key, function, build, operands, outs, further, device, settings)
        # From here on Ctrl-C is heard between two pieces, and where the run waits.
        with interrupts.deferred():
            try:
                _attempt(prepared, device, settings, operands, outs, description)
            except DeviceOutOfMemoryError:
                # The driver has less than the limit promised. Nothing has been copied yet.
                device.release_caches()
                forget_limits()
                try:
                    _attempt(prepared, device, settings, operands, outs, description)
                except DeviceOutOfMemoryError:
                    prepared = _prepare(
                        key, function, build, operands, outs, further, device, settings, share=0.5
                    )
                    _attempt(prepared, device, settings, operands, outs, description)
    return _returned(results, given, outs, {**operands, **outs}[prepared.chain.lead])


def _attempt(
    prepared: Prepared,
    device: Device,
    settings: Settings,
    operands: Mapping[str, Wrapped],
    outs: dict[str, Wrapped],
    description: Description,
) -> None:
    """Make the results that are not there yet, and run."""
    chain, plan, updated = prepared.chain, prepared.plan, description.updated
    plain = _is_plain(plan, settings)
    if not plain:
        _check_results(operands, outs, description)
    for name in chain.results:
        if name not in outs:
            outs[name] = _make_result(plan, device, name)
    known = {**operands, **outs}
    if plain:
        executor, limit = prepared.runs[0].executor, _limit(device, settings)
        if executor.is_bound(tuple(known[name].pointer for name in chain.operands)):
            executor.launch(device, known, limit)
            return
        _check_results(operands, outs, description)
        with _vectors_kept({name: outs[name] for name in updated}):
            executor.launch(device, known, limit)
        return
    sources = {name: _source(known[name]) for name in chain.operands}
    with _vectors_kept({name: outs[name] for name in updated}):
        _run(prepared, device, settings, sources)


@contextmanager
def _vectors_kept(updated: Mapping[str, Wrapped]) -> Iterator[None]:
    """Running averages are as they were if the call fails: pieces of channels update theirs."""
    kept = {n: each.array.copy() for n, each in updated.items() if len(each.spec.shape) == 1}
    try:
        yield
    except BaseException:
        for name, array in kept.items():
            updated[name].array[...] = array
        raise


def _given_as(name: str, results: tuple[str, ...], updated: Mapping[str, Any]) -> str:
    """What the user calls a result: as `out`, or under its own name to be changed in place."""
    if name in updated:
        return name
    return "out" if len(results) == 1 else f"out ({name})"


def _check_results(
    operands: Mapping[str, Wrapped], outs: Mapping[str, Wrapped], description: Description
) -> None:
    """Raise before any copy starts if a result that was given cannot be written."""
    results, updated = description.results, description.updated
    called = {name: _given_as(name, results, updated) for name in outs}
    for name, result in outs.items():
        check_writable(result, name=called[name])
        others = {called[k]: v for k, v in outs.items() if k != name}
        check_apart({**operands, **others}, result, name=called[name])
        if result.spec.placement == "disk":
            reserve_file(result.array, name=called[name])


def _returned(
    results: tuple[str, ...],
    given: Mapping[str, Any],
    outs: Mapping[str, Wrapped],
    lead: Wrapped,
) -> Any:
    """The results as the user gets them: what was given, or new ones of x's (or dy's) framework."""
    restore = lead.restore or (lambda array: array)
    returned = [given[name] if name in given else restore(outs[name].array) for name in results]
    return tuple(returned) if len(returned) > 1 else returned[0]


def _find(key: Hashable, device: Device, settings: Settings) -> Prepared | None:
    prepared = _prepared.get(key)
    if prepared is None:
        return None
    room = _limit(device, settings) - device.arena.array_bytes
    available = room - prepared.result_bytes
    if prepared.plan.device_bytes > available:
        return None
    if available > prepared.available_bytes * ROOM_WORTH_REPLANNING and not prepared.plan.in_core:
        return None
    _prepared.move_to_end(key)
    return prepared


def _prepare(
    key: Hashable,
    function: str,
    build: Build,
    operands: Mapping[str, Wrapped],
    outs: Mapping[str, Wrapped],
    further: Mapping[str, TensorSpec],
    device: Device,
    settings: Settings,
    *,
    share: float = 1.0,
) -> Prepared:
    """Build what is to be cut, plan it and make its schedule."""
    specs = {name: operand.spec for name, operand in operands.items()}
    aligned = {
        name: each.pointer % WIDEST_ACCESS_BYTES == 0 for name, each in {**operands, **outs}.items()
    }
    chain = build({**specs, **further}, settings)
    target = Target.here(device, _limit(device, settings), chain.dtype, settings)
    planned = plan_call(
        function,
        chain,
        specs,
        {name: result.spec for name, result in outs.items()},
        target,
        aligned=aligned,
        share=share,
    )
    _warn_of_many_pieces(planned.plan)
    prepared = Prepared(
        chain,
        planned.plan,
        tuple(
            Run(make_executor(part.request, part.plan), is_staged(part.plan), part.names)
            for part in planned.parts
        ),
        planned.available_bytes,
        target.room_bytes - planned.available_bytes,
        planned.between,
    )
    with _lock:
        _prepared[key] = prepared
        while len(_prepared) > REMEMBERED_CALLS:
            _prepared.popitem(last=False)
    return prepared


def _warn_of_many_pieces(plan: Plan) -> None:
    """Say what is wrong with a call that would run for minutes on pieces of next to nothing."""
    if plan.pieces > MANY_PIECES:
        warn(
            f"{plan.function} is cut into {plan.pieces} pieces by the memory limit of "
            f"{format_bytes(plan.memory_limit)}, and every piece takes the host's time and memory; "
            "raise memory_limit if you can",
        )


def _is_plain(plan: Plan, settings: Settings) -> bool:
    """Whether a call copies nothing, and nobody wants to see what it does."""
    return (
        plan.in_core
        and not plan.parts
        and not settings.verify
        and settings.progress in ("auto", False)
        and plan.seconds < SHORTEST_SECONDS
        and recording() is None
    )


def _limit(device: Device, settings: Settings) -> int:
    return limit_bytes(device, settings.memory_limit)


def is_staged(plan: Plan) -> bool:
    """Whether enough of the data is in memory that cannot be copied from as it is for threads."""
    return plan.pieces > 1 and worth_threads(spec for _, spec in plan.operands)


def _make_result(plan: Plan, device: Device, name: str) -> Wrapped:
    """Allocate a result that the plan was made for."""
    return _allocate(dict(plan.operands)[name], device, name)


def _allocate(spec: TensorSpec, device: Device, name: str) -> Wrapped:
    order = spec.order or "channels_first"
    array = empty_in(device, spec.placement, spec.shape, spec.dtype, order)
    return wrap(array, device, name=name)


def _source(operand: Wrapped) -> Source:
    """The operand as the executor takes it."""
    return operand.view() if operand.spec.placement == "device" else operand.array


def _run(
    prepared: Prepared, device: Device, settings: Settings, sources: Mapping[str, Source]
) -> None:
    """Run, show progress, record, verify."""
    plan, calls = prepared.plan, recording()
    verification = (
        Verification(plan.function, prepared.chain, sources, device, settings.verify)
        if settings.verify
        else None
    )
    known = dict(sources)
    for name, spec in prepared.between.items():
        known[name] = _source(_allocate(spec, device, name))
    device.arena.reset_peak()
    begin = time.perf_counter()
    traces: list[Trace | None] = []
    with reporter(
        settings.progress,
        total=plan.pieces,
        label=plan.function,
        predicted_seconds=plan.seconds,
    ) as progress:

        def update(before: int, pieces: int, progress: Reporter = progress) -> None:
            progress.update(before + pieces)

        done = 0
        for run in prepared.runs:
            traces.append(
                run.executor.run(
                    device,
                    {own: known[run.names.get(own, own)] for own in run.executor.chain.operands},
                    staged=run.staged,
                    # Memory on the host may be read or changed as soon as the call returns.
                    wait=not all(isinstance(source, DeviceView) for source in known.values()),
                    timed=calls is not None,
                    on_piece=None if type(progress) is Reporter else partial(update, done),
                    limit_bytes=_limit(device, settings),
                )
            )
            done += run.executor.plan.pieces
    trace = one_after_the_other(traces)
    if calls is not None and trace is not None:
        calls.append(
            Call(
                function=plan.function,
                plan=plan,
                seconds=time.perf_counter() - begin,
                predicted_seconds=plan.seconds,
                peak_device_bytes=device.arena.peak_bytes,
                trace=trace,
            )
        )
    if verification is not None:
        verification.check()


def forget_calls() -> None:
    """Forget remembered plans and trials (after calibration, and in tests)."""
    with _lock:
        _prepared.clear()
    forget_plans()
    forget_trials()
