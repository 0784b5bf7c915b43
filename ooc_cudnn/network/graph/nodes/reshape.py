"""Another shape for each image: flattening."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, same_but_for_ones
from ooc_cudnn.operations.elementwise.reshape import ReshapeCall


@dataclass(frozen=True)
class Reshape(Node):
    """y has the elements of x in another shape; where that differs by axes of 1 alone, y is x.

    Else they are copied: pieces of a map are boxes, and those of the other shape would be none.
    """

    x: Tensor

    def forward(self, emit: Forward) -> None:
        if same_but_for_ones(self.x.shape, self.y.shape):
            emit.alias(self.y, self.x)
        else:
            call = ReshapeCall(self.x.shape, self.y.shape, self.x.dtype)
            emit.phase("forward", call, x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if same_but_for_ones(self.x.shape, self.y.shape):
            emit.hand_on(dy, self.x)
        else:
            call = ReshapeCall(self.y.shape, self.x.shape, self.x.dtype)
            emit.gradient("data gradient", call, {"x": dy}, y=self.x)
