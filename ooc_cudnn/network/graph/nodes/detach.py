"""Identity without a gradient: `detach`."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor


@dataclass(frozen=True)
class Detach(Node):
    """y = x, and no gradient goes from y to x."""

    x: Tensor

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        """None."""
        return ()

    def forward(self, emit: Forward) -> None:
        emit.alias(self.y, self.x)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        raise AssertionError("a detached tensor has no gradient")
