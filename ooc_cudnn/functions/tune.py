"""`tune`: every engine of the convolutions that a call launches, measured and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engine_files import save_tables, tables_of
from ooc_cudnn.devices.engines import Kind, Measured
from ooc_cudnn.devices.measuring import Bench, Launched
from ooc_cudnn.errors import OocError
from ooc_cudnn.functions.plan import planned_call
from ooc_cudnn.functions.planning import Planned
from ooc_cudnn.functions.prepared import forget_calls
from ooc_cudnn.functions.tuning import Deadline, Tuning
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.operations.convolution_backward import (
    AnyConvolution,
    forward_of,
    input_shapes,
    result_dtype,
    with_forward,
)
from ooc_cudnn.operations.launches import Buffer, Launch
from ooc_cudnn.pricing.planner import distinct_launches
from ooc_cudnn.settings import current

#: What was learnt may change the pieces of the plan, and with them what is launched.
MOST_ROUNDS = 3
#: Each engine is timed in so many batches of so many seconds.
BATCHES, BATCH_SECONDS = 5, 0.01
#: Of the memory limit, what the operands of a launch may take while its engines are measured.
ROOM_SHARE = 0.25

Tell = Callable[[Measured], object]


class NothingToTuneError(OocError, ValueError):
    """The device has one way to run what is asked for."""


def tune(
    function: str,
    *,
    memory_limit: int | float | str | None = None,
    out: Any = None,
    tell: Tell | None = None,
    **arguments: Any,
) -> list[Measured]:
    """Measure the engines of the convolutions of a call, in every memory order, and store them.

    Parameters
    ----------
    function : str
    memory_limit, out, **arguments
        As for `plan`.
    tell : callable, optional
        Is given what was measured of each launch, as soon as that is.

    Returns
    -------
    list of Measured
        Those of the plan that follows; in an earlier process measured ones, too.

    Raises
    ------
    NothingToTuneError
        If the device does not choose among engines, the call has no convolution, or no engine could
        be measured.
    OSError
        If the tables cannot be stored.
    """
    device = get_device(current().device)
    _check_engines(device)
    found: dict[AnyConvolution, Measured] = {}
    for _ in range(MOST_ROUNDS):
        planned = planned_call(function, memory_limit=memory_limit, out=out, **arguments)
        wanted = list(_in_every_layout(device, _convolutions(planned)))
        if not wanted:
            raise NothingToTuneError(f"{function} launches no convolution that has engines")
        if all(operation in found for operation in wanted):
            break
        missing = (operation for operation in wanted if operation not in found)
        found.update(_measure(device, missing, planned.plan.memory_limit, tell))
        if not found:
            raise NothingToTuneError(
                f"no engine of {function} could be measured on {device.name}: raise memory_limit, "
                "or install nvidia-cudnn-frontend 1.28"
            )
    _keep(device)
    return list(found.values())


def finish_tuning(device: Device, *, tell: Tell | None = None) -> list[Measured]:
    """Measure what calls began and had no time for, and store it."""
    _check_engines(device)
    begun = [each for each in tables_of(device) if each.operation and not each.is_complete]
    operations = (each.operation for each in begun if each.operation is not None)
    limit = limit_bytes(device, current().memory_limit)
    found = _measure(device, operations, limit, tell)
    if found:
        _keep(device)
    return list(found.values())


def has_unfinished(device: Device) -> bool:
    """Whether calls began to measure engines, and had no time for all of them."""
    return device.engines is not None and any(not each.is_complete for each in tables_of(device))


def _keep(device: Device) -> None:
    """Store the tables, and plan anew what was planned without them."""
    save_tables(device)
    forget_calls()


def launched_of(operation: AnyConvolution) -> Launched:
    """Return the launch of a convolution by itself, and its buffers."""
    forward, (first, second) = forward_of(operation), input_shapes(operation)
    buffers = {
        "first": Buffer(first, forward.dtype, forward.layout),
        "second": Buffer(second, forward.dtype, forward.layout),
        "result": Buffer(operation.output_shape, result_dtype(operation), forward.layout),
    }
    return Launch(operation, ("first", "second"), "result"), buffers


def _measure(
    device: Device, operations: Iterable[AnyConvolution], limit: int, tell: Tell | None
) -> dict[AnyConvolution, Measured]:
    found: dict[AnyConvolution, Measured] = {}
    with device.arena.lock:
        bench = Bench(device, limit, batches=BATCHES, batch_seconds=BATCH_SECONDS)
        tuning = Tuning(device, bench, Deadline())
        for operation in operations:
            small = _with_room(operation, limit)
            measured = tuning.measured(launched_of(small), every=True)
            if measured is not None:
                found[operation] = measured
                tables_of(device).add(measured)
                if tell is not None:
                    tell(measured)
        device.arena.release_block()
    return found


def _with_room(operation: AnyConvolution, limit_bytes: int) -> AnyConvolution:
    """Return the operation, or one of fewer images: most memory is for workspace."""
    forward = forward_of(operation)
    _, buffers = launched_of(operation)
    held = sum(buffer.nbytes for buffer in buffers.values())
    if held <= ROOM_SHARE * limit_bytes or forward.x_shape[0] == 1:
        return operation
    images = max(1, int(forward.x_shape[0] * ROOM_SHARE * limit_bytes / held))
    return with_forward(operation, replace(forward, x_shape=(images, *forward.x_shape[1:])))


def _convolutions(planned: Planned) -> list[AnyConvolution]:
    """The largest convolution of each kind that a plan launches."""
    largest: dict[Kind, AnyConvolution] = {}
    for part in planned.parts:
        for launch, _ in distinct_launches(part.request, part.plan):
            operation = launch.operation
            if isinstance(operation, AnyConvolution) and operation.work().amount > 0.0:
                kind = Kind.of(operation)
                known = largest.get(kind)
                if known is None or known.work().amount < operation.work().amount:
                    largest[kind] = operation
    return list(largest.values())


def _in_every_layout(
    device: Device, operations: Iterable[AnyConvolution]
) -> Iterator[AnyConvolution]:
    for operation in operations:
        forward = forward_of(operation)
        for layout in device.layouts(forward.dtype):
            yield with_forward(operation, replace(forward, layout=layout))


def _check_engines(device: Device) -> None:
    if device.engines is None:
        raise NothingToTuneError(
            f"{device.name} has one way to compute a convolution: there is nothing to tune; "
            "engines are cuDNN's, on a GPU"
        )
