"""The arrays that a step is given: inputs by name, parameters, running statistics; each checked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ooc_cudnn.arrays.operands import Wrapped, wrap
from ooc_cudnn.devices.base import Device
from ooc_cudnn.network.graph import Graph
from ooc_cudnn.network.parameters import Parameters
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.tensors import Tensor

#: Nothing is given in place of what the network holds.
NONE: Mapping[str, Any] = MappingProxyType({})


class Holder(Protocol):
    """What a network holds between steps; `running` are running statistics."""

    graph: Graph
    parameters: Parameters
    running: Parameters


def arrays_given(
    network: Holder,
    step: Step,
    inputs: Mapping[str, Any],
    device: Device,
    instead: Mapping[str, Any] = NONE,
) -> dict[str, Wrapped]:
    """Every array that a step is given: inputs, parameters, running statistics.

    What the network holds is read unless an array is given `instead`.
    """
    needed = {step.place(name).base for phase in step.phases for name in phase.binds.values()}
    # in the order of making, so that messages and plans are the same each time
    kinds = {name: each.kind for name, each in network.graph.tensors.items() if name in needed}
    wanted = [name for name, kind in kinds.items() if kind == "input"]
    missing = sorted(set(wanted) - set(inputs))
    strangers = sorted(set(inputs) - set(wanted))
    if missing or strangers:
        said = [f"needs {', '.join(missing)}"] * bool(missing)
        said += [f"has no input {', '.join(strangers)}"] * bool(strangers)
        raise TypeError(f"the step {' and '.join(said)}; its inputs are {', '.join(wanted)}")
    lasting: Mapping[str, Any] = instead
    if any(
        kind in ("parameter", "running") and name not in instead for name, kind in kinds.items()
    ):
        lasting = {**network.parameters.checked(), **network.running.checked(), **instead}
    found = {}
    for name, kind in kinds.items():
        if kind in ("input", "parameter", "running"):
            array = inputs[name] if kind == "input" else lasting[name]
            found[name] = wrap(array, device, name=name)
            check_given(step.tensors[name], found[name])
    return found


def check_given(tensor: Tensor, given: Wrapped) -> None:
    """Refuse an array of another shape or dtype than its tensor."""
    if given.spec.shape != tensor.shape:
        raise ValueError(f"{tensor.name} must have shape {tensor.shape}, not {given.spec.shape}")
    if given.spec.dtype != tensor.dtype:
        raise TypeError(f"{tensor.name} must be {tensor.dtype}, not {given.spec.dtype}")
