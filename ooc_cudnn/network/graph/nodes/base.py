"""Base of nodes. `ooc_cudnn.network.graph.nodes` says how to write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ooc_cudnn.network.ir.tensor import Tensor

if TYPE_CHECKING:
    from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward


@dataclass(frozen=True)
class Node(ABC):
    """An operation applied to tensors. Its fields that are tensors are what it reads, but for y.

    Parameters
    ----------
    name : str
        Unique in its network; its result has the same.
    y : Tensor
        Its result; of several the first.
    """

    name: str
    y: Tensor

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The tensors that it makes: y, where a node does not say so."""
        return (self.y,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it reads: inputs, maps, parameters, running statistics."""
        return tuple(tensor for name, tensor in self._tensors() if name != "y")

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """Operands that y's gradient goes on to, where they want one."""
        return self.inputs

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for each in fields(self):
            value = getattr(self, each.name)
            values = value if isinstance(value, tuple) else (value,)
            yield from ((each.name, item) for item in values if isinstance(item, Tensor))

    @abstractmethod
    def forward(self, emit: Forward) -> None:
        """Emit the phases that make y."""

    @abstractmethod
    def backward(self, emit: Backward, dy: Tensor) -> None:
        """Emit the phases that make gradients of what it reads of dy, the gradient of y.

        A node of several results is given the first gradient that there is, and asks for all of
        them by `emit.gradient_of`.
        """
