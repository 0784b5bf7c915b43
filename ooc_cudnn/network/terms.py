"""Under what a step is planned: for the device at hand, or for a machine by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.engine_files import tables_of
from ooc_cudnn.devices.machines import named_machine
from ooc_cudnn.functions.plan import limit_of
from ooc_cudnn.functions.target import Target
from ooc_cudnn.memory import pinned
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import Terms
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS, TensorSpec
from ooc_cudnn.units import parse_limit
from perfmodel import MachineModel

Limit = int | float | str | None


def terms_for(
    memory_limit: Limit,
    machine: MachineModel | str | os.PathLike[str] | None,
    dtype: str,
    specs: Mapping[str, TensorSpec],
) -> Terms:
    """Under what a step is planned: for the device at hand, or a machine by name."""
    settings = current()
    limit: Any = settings.memory_limit
    if memory_limit is not None:
        limit = parse_limit(memory_limit, name="memory_limit")
    if machine is not None:
        model = named_machine(machine)
        room = limit_of(model, limit)
        most = settings.host_memory_limit
        return Terms(
            Target(model, room, room, ORDERS, None, settings.overlap),
            specs,
            host=None if most is None else pinned.Room(most, most, 0),
        )
    device = get_device(settings.device)
    with device.arena.lock:
        target = Target.here(device, limit_bytes(device, limit), dtype, settings)
        host = pinned.room(device, settings.host_memory_limit)
        return Terms(_by_what_was_measured(target), specs, host=host)


def dtype_of(step: Step) -> str:
    """The dtype of most calls."""
    return max((phase.call for phase in step.phases), key=lambda call: call.extents.n).dtype


def _by_what_was_measured(target: Target) -> Target:
    """Return the target with measured seconds in place of predicted ones, as calls are planned.

    Not where a machine was named, or plans must not depend on timings.
    """
    device = target.trial_device
    if device is None:
        return target
    return target._replace(machine=tables_of(device).corrected(target.machine))
