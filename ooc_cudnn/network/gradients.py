"""Gradients on the device: that of what is handed in there is made there, in its memory order."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from ooc_cudnn.network.phases import Step
from ooc_cudnn.tensor import TensorSpec, packed_strides

#: Those of the call before are there until the new ones are whole.
SETS = 2


def gradients_there(step: Step, given: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
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
    found = {}
    for base, names in sharing.items():
        specs = [given[name] for name in names if name in given]
        is_there = len(specs) == len(names) and all(s.placement == "device" for s in specs)
        if base not in given and is_there:
            tensor = step.tensors[base]
            alike = len(tensor.shape) == len(specs[0].shape)
            order = (specs[0].order if alike else None) or "channels_first"
            packed = packed_strides(tensor.shape, order)
            found[base] = TensorSpec(tensor.shape, tensor.dtype, "device", packed)
    return found


def gradients_of(step: Step, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Of the tensors of a step those that hold gradients and lie on the device by themselves."""
    bases = dict.fromkeys(step.base(name) for name in step.gradients.values())
    there = {base: specs[base] for base in bases if base in specs}
    return {base: spec for base, spec in there.items() if spec.placement == "device"}


def bytes_there(step: Step, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of the device that gradients take in a call, those of the call before among them."""
    return SETS * sum(spec.nbytes for spec in gradients_of(step, specs).values())


class Kept:
    """The gradients of a call that lie on the device, as long as somebody holds them.

    Parameters
    ----------
    tensors : mapping
        Of each tensor there its bytes, and the arrays that lie in it.
    """

    def __init__(self, tensors: Mapping[str, tuple[int, Iterable[Any]]]) -> None:
        self._held = [(size, [*map(weakref.ref, arrays)]) for size, arrays in tensors.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of the device that they hold now."""
        return sum(
            size for size, arrays in self._held if any(each() is not None for each in arrays)
        )
