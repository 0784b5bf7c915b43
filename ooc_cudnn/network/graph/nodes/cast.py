"""A map in another floating dtype."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.cast import CastCall


@dataclass(frozen=True)
class Cast(Node):
    """y has the numbers of x in another dtype; the gradient of x is that of y in x's."""

    x: Tensor

    def forward(self, emit: Forward) -> None:
        call = CastCall(self.x.shape, self.x.dtype, self.y.dtype)
        emit.phase("forward", call, x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = CastCall(self.x.shape, self.y.dtype, self.x.dtype)
        emit.gradient("data gradient", call, {"x": dy}, y=self.x)
