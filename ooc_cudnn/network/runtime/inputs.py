"""The arrays that a step is given: inputs by name, parameters, running statistics; each checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ooc_cudnn.arrays.operands import ArrayRef, array_ref
from ooc_cudnn.devices.base import Device
from ooc_cudnn.functions.call.bind import check_results
from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.parameters import Parameters
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.runtime.array_cache import ArrayCache
from ooc_cudnn.tensor import TensorSpec, packed_strides

#: Nothing is given in place of what the network holds.
NONE: Mapping[str, Any] = MappingProxyType({})


class Holder(Protocol):
    """Arrays that a network holds between steps; `running` are running statistics."""

    graph: Graph
    parameters: Parameters
    running: Parameters


def arrays_given(
    network: Holder,
    step: Step,
    inputs: Mapping[str, Any],
    device: Device,
    instead: Mapping[str, Any] = NONE,
    wrapping: ArrayCache | None = None,
) -> dict[str, ArrayRef]:
    """Every array that a step is given: inputs, parameters, running statistics.

    What the network holds is read unless an array is given `instead`. Some may be wrapped already;
    `array_cache` wraps the others.
    """
    wrapped = wrapping or ArrayCache()
    # in the order of making, so that messages and plans are the same each time
    kinds = {
        name: each.kind for name, each in network.graph.tensors.items() if name in step.touched
    }
    wanted = [name for name, kind in kinds.items() if kind == "input"]
    said = wrong_names(wanted, inputs)
    if said:
        raise TypeError(f"the step {said}; its inputs are {', '.join(wanted)}")
    held = {"parameter": network.parameters, "running": network.running}
    arrays = {}
    for name, kind in kinds.items():
        if kind == "input":
            array = inputs[name]
        elif kind in held:
            array = instead[name] if name in instead else held[kind][name]
        else:
            continue
        reference = array if isinstance(array, ArrayRef) else wrapped(name, array, device)
        check_given(step.tensors[name], reference)
        arrays[name] = reference
    return arrays


def as_held(given: Mapping[str, ArrayRef], changed: Iterable[str]) -> dict[str, ArrayRef]:
    """Return inputs as a step holds them: those it changes in arrays of its own.

    On the host these are pinned, whatever the given ones are: else each copy would be staged.
    """
    held = dict(given)
    for name in changed:
        spec = given[name].spec
        is_pinned = spec.placement == "pinned" and spec.strides == packed_strides(spec.shape)
        if spec.placement != "device" and not is_pinned:
            held[name] = ArrayRef(None, TensorSpec(spec.shape, spec.dtype, "pinned"), 0)
    return held


def wrong_names(wanted: Iterable[str], given: Iterable[str]) -> str:
    """Explain inputs that are not those that are wanted; "" where they are.

    >>> wrong_names(["images", "labels"], ["images", "label"])
    'needs labels and has no input label'
    """
    missing = sorted(set(wanted) - set(given))
    strangers = sorted(set(given) - set(wanted))
    said = [f"needs {', '.join(missing)}"] * bool(missing)
    said += [f"has no input {', '.join(strangers)}"] * bool(strangers)
    return " and ".join(said)


def results_given(
    step: Step, given: Mapping[str, ArrayRef], out: Mapping[str, Any], device: Device
) -> dict[str, ArrayRef]:
    """The arrays that a step is to write outputs to, each checked.

    What is wrapped already lies apart from everything, as whoever made it says.
    """
    arrays = {
        name: array
        if isinstance(array, ArrayRef)
        else array_ref(array, device, name="out", written=True)
        for name, array in out.items()
    }
    for name, reference in arrays.items():
        check_given(step.tensors[name], reference)
    users = {f"out of {n}": arrays[n] for n, a in out.items() if not isinstance(a, ArrayRef)}
    check_results(given, users)
    return arrays


def plain(array: Any) -> Any:
    """An array that may be wrapped, as it is."""
    return array.array if isinstance(array, ArrayRef) else array


def check_given(tensor: Tensor, given: ArrayRef) -> None:
    """Refuse an array of another shape or dtype than its tensor."""
    if given.spec.shape != tensor.shape:
        raise ValueError(f"{tensor.name} must have shape {tensor.shape}, not {given.spec.shape}")
    if given.spec.dtype != tensor.dtype:
        raise TypeError(f"{tensor.name} must be {tensor.dtype}, not {given.spec.dtype}")
