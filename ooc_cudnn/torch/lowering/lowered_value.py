"""A value of a captured model as a tensor of the network."""

from __future__ import annotations

from typing import NamedTuple

from ooc_cudnn.network.ir.tensor import Tensor


class LoweredValue(NamedTuple):
    """A value in the network.

    Attributes
    ----------
    tensor : Tensor
    axes : tuple of int
        Of each axis of the value, the tensor's axis that it is.
    """

    tensor: Tensor
    axes: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> LoweredValue:
        """A tensor as it is."""
        return cls(tensor, tuple(range(len(tensor.shape))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's."""
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    @property
    def is_plain(self) -> bool:
        """True if the axes are the tensor's."""
        return self.axes == tuple(range(len(self.axes)))
