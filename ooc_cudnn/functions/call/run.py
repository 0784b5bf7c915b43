"""Run a prepared call: make the results, run, show progress, record, verify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.arrays.operands import ArrayRef, address_of
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.functions.call.bind import Bound
from ooc_cudnn.functions.call.call_cache import PreparedCall
from ooc_cudnn.functions.call.observe import run_observed
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.pipeline.verify import Verification
from ooc_cudnn.pipeline.views import Source
from ooc_cudnn.profiling import recording
from ooc_cudnn.progress import SHORTEST_SECONDS
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec


def run(prepared: PreparedCall, bound: Bound, device: Device, settings: Settings) -> None:
    """Make the results that are not there yet, and run.

    Raises
    ------
    ValueError, OSError
        Before any copy starts, if a result that was given cannot be written.
    DeviceOutOfMemoryError
        If the driver has less memory than the limit promised; the call may be run again.
    """
    chain, plan = prepared.chain, prepared.plan
    limit = limit_bytes(device, settings.memory_limit)
    plain = _is_plain(plan, settings)
    if not plain:
        bound.check_results()
    known = {**bound.operands, **bound.results}
    for name in chain.results:
        if name not in known:
            result = _allocate(dict(plan.operands)[name], device, limit)
            known[name] = bound.results[name] = result
    if not plain:
        sources = {name: _source(known[name]) for name in chain.operands}
        with _vectors_kept(bound):
            _run_verified(prepared, device, settings, sources, limit)
        return
    executor = prepared.executor
    if executor.is_bound(tuple(known[name].pointer for name in chain.operands)):
        executor.launch(device, known, limit)
        return
    bound.check_results()
    with _vectors_kept(bound):
        executor.launch(device, known, limit)


def _is_plain(plan: Plan, settings: Settings) -> bool:
    """True if a call copies nothing, and nobody wants to see what it does."""
    return (
        plan.in_core
        and not settings.verify
        and settings.progress in ("auto", False)
        and plan.seconds < SHORTEST_SECONDS
        and recording() is None
    )


@contextmanager
def _vectors_kept(bound: Bound) -> Iterator[None]:
    """Running averages are as they were if the call fails: pieces of channels update theirs."""
    updated = [bound.results[name] for name in bound.description.updated]
    vectors = [each.plain for each in updated if len(each.spec.shape) == 1]
    kept = [(array, array.copy()) for array in vectors]
    try:
        yield
    except BaseException:
        for array, content in kept:
            array[...] = content
        raise


def _allocate(spec: TensorSpec, device: Device, limit: int) -> ArrayRef:
    """Memory for a tensor: on the device as it is, and an array of it when the user gets it."""
    if spec.placement == "device":
        memory = device.arena.allocate_array(spec.nbytes, limit)
        return ArrayRef(memory, spec, memory.pointer)
    order = spec.order or "channels_first"
    array = empty_in(device, spec.placement, spec.shape, spec.dtype, order)
    return ArrayRef(array, spec, address_of(array))


def _source(operand: ArrayRef) -> Source:
    return operand.view() if operand.spec.placement == "device" else operand.array


def _run_verified(
    prepared: PreparedCall,
    device: Device,
    settings: Settings,
    sources: Mapping[str, Source],
    limit: int,
) -> None:
    plan = prepared.plan
    verification = (
        Verification(plan.function, prepared.chain, sources, device, settings.verify)
        if settings.verify
        else None
    )
    known = dict(sources)
    for name, spec in prepared.executor.program.between.items():
        known[name] = _source(_allocate(spec, device, limit))
    run_observed(
        plan.function,
        plan,
        prepared.executor,
        device,
        known,
        staged=prepared.staged,
        # Memory on the host may be read or changed as soon as the call returns.
        wait=not all(isinstance(source, DeviceView) for source in known.values()),
        limit_bytes=limit,
    )
    if verification is not None:
        verification.check()
