"""Build PlanConstraints from the current device, or from a named machine profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ooc_cudnn.arrays.operands import ArrayRef
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.engines.target import Target
from ooc_cudnn.functions.call.plan_api import limit_of
from ooc_cudnn.memory import pinned
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.device_gradients import gradients_on_device
from ooc_cudnn.network.runtime.executable import new_array_bytes
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS
from ooc_cudnn.units import parse_limit
from perfmodel import MachineModel
from perfmodel.named import named_machine

Limit = int | float | str | None


def constraints_for(
    memory_limit: Limit,
    machine: MachineModel | str | os.PathLike[str] | None,
    step: Step,
    given: Mapping[str, ArrayRef],
    kept_bytes: int = 0,
) -> PlanConstraints:
    """Constraints of a plan: for the device at hand, or a machine by name.

    Parameters
    ----------
    kept_bytes : int
        What gradients of the call before hold of the device: it is counted with the new ones. Less
        what others hold that counts, too.
    """
    settings = current()
    specs = {name: each.spec for name, each in given.items()}
    specs |= gradients_on_device(step, specs)
    if machine is not None:
        model = named_machine(machine)
        limit = limit_of(model, _asked(memory_limit))
        held = sum(each.spec.nbytes for each in given.values() if each.spec.placement == "device")
        room = limit - held - new_array_bytes(step, specs) + kept_bytes
        most = settings.host_memory_limit
        return PlanConstraints(
            Target(model, limit, room, ORDERS, None, settings.overlap),
            specs,
            host=None if most is None else pinned.Room(most, most, 0),
        )
    device = get_device(settings.device)
    with device.arena.lock:
        limit = limit_here(device, memory_limit)
        target = _by_what_was_measured(Target.here(device, limit, _dtype_of(step), settings))
        host = pinned.room(device, settings.host_memory_limit)
    room = target.room_bytes + kept_bytes - new_array_bytes(step, specs)
    misaligned = misaligned_inputs(given)
    return PlanConstraints(
        target._replace(room_bytes=room), specs, host=host, misaligned=misaligned
    )


def limit_here(device: Device, memory_limit: Limit) -> int:
    """The memory limit in bytes: what is asked for, else the setting's."""
    return limit_bytes(device, _asked(memory_limit))


def _asked(memory_limit: Limit) -> Any:
    if memory_limit is None:
        return current().memory_limit
    return parse_limit(memory_limit, name="memory_limit")


def misaligned_inputs(given: Mapping[str, ArrayRef]) -> frozenset[str]:
    """Select inputs on the device that do not begin where their widest accesses may."""
    return frozenset(
        name
        for name, each in given.items()
        if each.spec.placement == "device" and each.pointer % WIDEST_ACCESS_BYTES
    )


def _dtype_of(step: Step) -> str:
    """The dtype of most calls."""
    return max((phase.call for phase in step.phases), key=lambda call: call.extents.n).dtype


def _by_what_was_measured(target: Target) -> Target:
    """Return the target with measured seconds in place of predicted ones, as calls are planned.

    Not where a machine was named, or plans must not depend on timings.
    """
    device = target.trial_device
    if device is None:
        return target
    tables = tables_of(device)
    known = None if device.engines is None else tables.options
    machine = tables.corrected(target.machine, alike=True)  # kept plans are found by it
    return target._replace(machine=machine, options=known)
