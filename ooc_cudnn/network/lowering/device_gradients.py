"""Gradients of device-resident inputs are allocated on the device, in the input's layout.

Those of a call lie in one block, one after the other: what is allocated is one thing, not hundreds.
Those that are passed on lie in another one, which goes as soon as they have been.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.memory.loans import Allocation
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.tensor import TensorSpec, packed_strides

#: Those of the call before are there until the new ones are whole, but for those passed on.
SETS = 2
#: Blocks that are remembered, by turns.
MOST_BLOCKS = 4


def gradients_on_device(step: Step, given: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The tensors that hold gradients on the device, and what they are there.

    Several gradients may lie in one tensor: both terms of a sum have that of the sum. It is on the
    device if all that it is the gradient of is.

    Parameters
    ----------
    given : mapping
        Name to the spec of the array that is handed in; what is left out lies on the host.
    """
    if all(spec.placement != "device" for spec in given.values()):
        return {}
    sharing: dict[str, list[str]] = {}
    for name, gradient in step.gradients.items():
        sharing.setdefault(step.base(gradient), []).append(name)
    gradients = {}
    for base, names in sharing.items():
        specs = [given[name] for name in names if name in given]
        is_there = len(specs) == len(names) and all(s.placement == "device" for s in specs)
        if base not in given and is_there:
            tensor = step.tensors[base]
            alike = len(tensor.shape) == len(specs[0].shape)
            order = (specs[0].order if alike else None) or "channels_first"
            packed = packed_strides(tensor.shape, order)
            gradients[base] = TensorSpec(tensor.shape, tensor.dtype, "device", packed)
    return gradients


def gradients_of(step: Step, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Select a step's tensors that hold gradients and lie on the device by themselves."""
    bases = dict.fromkeys(step.base(name) for name in step.gradients.values())
    there = {base: specs[base] for base in bases if base in specs}
    return {base: spec for base, spec in there.items() if spec.placement == "device"}


def split_passed_on(
    step: Step, gradients: Mapping[str, TensorSpec]
) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
    """Split gradients into those that may be held after a call, and those that are passed on."""
    names = step.gradients.items()
    may_be_held = {step.base(gradient) for of, gradient in names if of not in step.passed_on}
    held = {base: spec for base, spec in gradients.items() if base in may_be_held}
    return held, {base: spec for base, spec in gradients.items() if base not in held}


def device_gradient_bytes(step: Step, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of the device that gradients take in a call, with those before that may be held."""
    held, passed_on = split_passed_on(step, gradients_of(step, specs))
    return SETS * block_bytes(held) + block_bytes(passed_on)


def block_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of a block of tensors."""
    return GradientBlock(specs).nbytes


class GradientBlock:
    """Layout of tensors in a block, one after the other; the block may be anywhere.

    Parameters
    ----------
    specs : mapping
        Of each tensor, by name.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._specs = dict(specs)
        sizes = (align(spec.nbytes) for spec in specs.values())
        *starts, self.nbytes = itertools.accumulate(sizes, initial=0)
        self._starts = dict(zip(specs, starts, strict=True))
        self._views = dict[int, dict[str, DeviceView]]()

    def views(self, pointer: int) -> Mapping[str, DeviceView]:
        """Every tensor of a block at an address."""
        tensors = self._views.pop(pointer, None)
        if tensors is None:
            tensors = {
                name: DeviceView(pointer + self._starts[name], spec.dtype, spec.shape, spec.strides)
                for name, spec in self._specs.items()
            }
        self._views[pointer] = tensors  # the last used is the last to go
        if len(self._views) > MOST_BLOCKS:
            self._views.pop(next(iter(self._views)))
        return tensors

    def arrays(self, memory: Any, make: Callable[[Any, TensorSpec, int], Any]) -> dict[str, Any]:
        """An array for each tensor; `make` is given the memory, what lies there, and from where."""
        return {name: make(memory, spec, self._starts[name]) for name, spec in self._specs.items()}


class KeptGradients:
    """The gradients of a call that lie on the device, as long as somebody holds one of them.

    Parameters
    ----------
    memory : optional
        What they lie in.
    """

    def __init__(self, memory: Allocation | None = None) -> None:
        self._memory = None if memory is None else weakref.ref(memory)
        self._nbytes = 0 if memory is None else memory.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the device that they hold now."""
        is_held = self._memory is not None and self._memory() is not None
        return self._nbytes if is_held else 0
