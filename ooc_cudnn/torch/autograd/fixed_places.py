"""Small tensors on a card that lie in a call where they lay in the call before.

What runs at the same addresses again is recorded, and then issued whole. PyTorch hands out other
addresses where a user keeps what a model made, or computes something else between two calls. So
the network writes small outputs here, and reads their gradients here; users get copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ooc_cudnn.arrays.operands import ArrayRef
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.torch.cards import empty_there

#: Larger ones are not copied: the copy would be missed where memory is short.
MOST_BYTES = 2**22


def has_place(output: Tensor, device: torch.device) -> bool:
    """True if an output on a device has a fixed place."""
    return device.type == "cuda" and output.nbytes <= MOST_BYTES


def bytes_of(outputs: Sequence[Tensor], device: torch.device) -> int:
    """Bytes of a card that copies of outputs with fixed places take: users hold them."""
    return sum(each.nbytes for each in outputs if has_place(each, device))


@lru_cache
def _packed(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape, dtype, "device")


class FixedPlaces:
    """Tensors by name, each lent to one call at a time, in the order of one stream.

    A call that does not give its tensors back, as it failed or had no backward, takes them along.

    Parameters
    ----------
    device : torch.device

    Examples
    --------
    >>> places = FixedPlaces(torch.device("cpu"))
    >>> spec = TensorSpec((2, 3), "float32", "device")
    >>> one, other = LentPlaces(places), LentPlaces(places)
    >>> first = one.tensor("y", spec)
    >>> other.tensor("y", spec) is first  # the call before is not over
    False
    >>> one.give_back()
    >>> LentPlaces(places).tensor("y", spec) is first
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free: dict[tuple[str, int], torch.Tensor] = {}


class LentPlaces:
    """Share of the fixed places that a call has.

    Parameters
    ----------
    places : FixedPlaces
    """

    def __init__(self, places: FixedPlaces) -> None:
        self._places = places
        self._taken: dict[tuple[str, int], torch.Tensor] = {}

    def tensor(self, name: str, spec: TensorSpec) -> torch.Tensor:
        """The tensor of a name, which nobody else writes to until it is given back."""
        device = self._places.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = name, stream
        if key not in self._taken:
            place = self._places.free.pop(key, None)
            if place is None:
                with torch.inference_mode(False):  # a later call may be outside of it
                    place = empty_there(spec, device)
            self._taken[key] = place
        return self._taken[key]

    def results(self, outputs: Sequence[Tensor]) -> dict[str, ArrayRef]:
        """Tensors for outputs of a network on a card, by name; none for those on the host."""
        device, refs = self._places.device, {}
        for output in outputs if device.type == "cuda" else ():
            spec = _packed(output.shape, output.dtype)
            fixed = has_place(output, device)
            tensor = self.tensor(output.name, spec) if fixed else empty_there(spec, device)
            refs[output.name] = ArrayRef(tensor, spec, tensor.data_ptr())
        return refs

    def gradient(self, output: Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of an output as backward takes it."""
        found = gradient.detach()
        if has_place(output, self._places.device):
            there = self.tensor(f"gradient of {output.name}", _packed(output.shape, output.dtype))
            return there.copy_(found)
        return found.to(self._places.device).contiguous()

    def apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as its owner may keep it: a copy, if it is lent."""
        lent = any(tensor.data_ptr() == each.data_ptr() for each in self._taken.values())
        return tensor.clone() if lent else tensor.detach()

    def give_back(self) -> None:
        """Let the next call have them: this one reads them no more."""
        self._places.free |= self._taken
        self._taken = {}
