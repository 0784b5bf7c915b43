"""Axes split, permuted and joined again."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.rearrange import Rearrange as Operation
from ooc_cudnn.operations.elementwise.rearrange import RearrangeCall


@dataclass(frozen=True)
class Rearrange(Node):
    """y has the elements of x in another order; the gradient of x is that of y, put back."""

    x: Tensor
    operation: Operation

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", RearrangeCall(self.operation), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = RearrangeCall(self.operation.inverse)
        emit.gradient("data gradient", call, {"x": dy}, y=self.x)
