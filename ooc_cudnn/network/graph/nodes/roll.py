"""Elements moved along axes, those that leave at the end put in at the start."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.roll import Roll as Operation
from ooc_cudnn.operations.elementwise.roll import RollCall


@dataclass(frozen=True)
class Roll(Node):
    """y has the elements of x, so many places further along each axis; dx is dy moved back."""

    x: Tensor
    operation: Operation

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", RollCall(self.operation), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = RollCall(self.operation.inverse)
        emit.gradient("data gradient", call, {"x": dy}, y=self.x)
