"""Local response normalization."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.normalization.local_response import (
    LocalResponse,
    LocalResponseGradientCall,
)
from ooc_cudnn.operations.normalization.local_response import (
    LocalResponseCall as Call,
)


@dataclass(frozen=True)
class LocalResponseNormalization(Node):
    """y = x / s ** beta, s of the squares around; its gradient reads x and dy."""

    x: Tensor
    operation: LocalResponse

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", Call(self.operation), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        reads = {"x": self.x, "dy": dy}
        emit.gradient("data gradient", LocalResponseGradientCall(self.operation), reads, dx=self.x)
