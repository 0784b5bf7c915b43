"""`tune`: every engine of the convolutions that a call launches, measured and stored."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.activity import activity
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.engines.autotune import launch_of
from ooc_cudnn.engines.workload import Effort, PlannedWork, WantedConvolution
from ooc_cudnn.functions.call.plan_api import planned_call
from ooc_cudnn.functions.tune.rounds import (
    NothingToTuneError,
    Tell,
    check_engines,
    keep,
    measure,
    measure_what_is_launched,
)
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.settings import current

__all__ = ["NothingToTuneError", "finish_tuning", "launch_of", "tune"]


def tune(
    function: str,
    *,
    memory_limit: int | float | str | None = None,
    out: Any = None,
    tell: Tell | None = None,
    effort: Effort | None = None,
    **arguments: Any,
) -> list[Measurement]:
    """Measure the engines of the convolutions of a call, in every memory order, and store them.

    Parameters
    ----------
    function : str
    memory_limit, out, **arguments
        As for `plan`.
    tell : callable, optional
        Is given what was measured of each launch, as soon as that is.
    effort : Effort, optional
        How much is measured: every engine when left out, for as long as it takes.

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

    def plan() -> PlannedWork:
        planned = planned_call(function, memory_limit=memory_limit, out=out, **arguments)
        tasks = [(part.request, part.plan) for part in planned.parts]
        return PlannedWork(function, tasks, planned.plan.memory_limit)

    return measure_what_is_launched(get_device(current().device), plan, effort or Effort(), tell)


def finish_tuning(device: Device, *, tell: Tell | None = None) -> list[Measurement]:
    """Measure every engine where only those that the heuristics rank were, and store it."""
    check_engines(device)
    known = tables_of(device, tells_of_others=False)
    begun = [each.operation for each in known if not each.is_complete]
    operations = {
        operation: WantedConvolution(operation, 1.0) for operation in begun if operation is not None
    }
    limit = limit_bytes(device, current().memory_limit)
    with activity("measuring engines", current().progress, holds_line=True):
        measurements, _ = measure(device, operations, (), limit, Effort(), tell)
    if measurements:
        keep(device)
    return list(measurements.values())
