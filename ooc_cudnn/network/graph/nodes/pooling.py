"""Nodes over windows of x: pooling, adaptive pooling, interpolation, padding."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.pooling import forward as pooling
from ooc_cudnn.operations.resampling.arguments import pooling_gradient
from ooc_cudnn.operations.resampling.forward import Resampling


@dataclass(frozen=True)
class Pooling(Node):
    """The largest or mean value of each window; the gradient of a maximum reads y, dy and x."""

    x: Tensor
    operation: pooling.Pooling | Resampling

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", Chain((self.operation,), self.x.dtype), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = pooling_gradient(self.operation)
        known = {"x": self.x, "y": self.y, "dy": dy}
        reads = {name: tensor for name, tensor in known.items() if name in call.takes}
        emit.gradient("data gradient", call, reads, dx=self.x)
