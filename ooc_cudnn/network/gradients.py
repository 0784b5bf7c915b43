"""Gradients on the device: that of what is handed in there is made there, in its memory order.

Those of a call lie in one block, one after the other: what is allocated is one thing, not hundreds.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.memory.loans import Lent
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
    return SETS * block_bytes(gradients_of(step, specs))


def block_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of a block of tensors."""
    return sum(aligned(spec.nbytes) for spec in specs.values())


def in_a_block(specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Where in a block each tensor begins, in bytes."""
    found, start = {}, 0
    for name, spec in specs.items():
        found[name] = start
        start += aligned(spec.nbytes)
    return found


class Kept:
    """The gradients of a call that lie on the device, as long as somebody holds one of them.

    Parameters
    ----------
    block : Lent, optional
        What they lie in.
    """

    def __init__(self, block: Lent | None = None) -> None:
        self._block = None if block is None else weakref.ref(block)
        self._nbytes = 0 if block is None else block.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the device that they hold now."""
        is_held = self._block is not None and self._block() is not None
        return self._nbytes if is_held else 0
