"""PReLU: leaky ReLU whose slopes are learnt."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.activation_gradient import PreluGradientCall
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall


@dataclass(frozen=True)
class PRelu(Node):
    """y = x where x > 0, else w * x; its gradients read x, dy and w."""

    x: Tensor
    w: Tensor

    def forward(self, emit: Forward) -> None:
        operation = OpTensor(self.x.shape, self.w.shape, self.x.dtype, "prelu")
        emit.phase("forward", Chain((operation,), self.x.dtype), x=self.x, w=self.w, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        of_w = BroadcastGradientCall(dy.shape, dy.dtype, self.w.shape, "negative_x")
        emit.gradient("slope gradient", of_w, {"dy": dy, "x": self.x}, db=self.w)
        of_x = PreluGradientCall(dy.shape, self.w.shape, dy.dtype)
        emit.gradient("data gradient", of_x, {"x": self.x, "dy": dy, "w": self.w}, dx=self.x)
