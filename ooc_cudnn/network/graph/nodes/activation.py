"""Activations."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise import activation
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationGradientCall


@dataclass(frozen=True)
class Activation(Node):
    """y = f(x); its gradient reads y and dy, or where y does not tell the slope x and dy."""

    x: Tensor
    mode: str
    coef: float

    def forward(self, emit: Forward) -> None:
        operation = activation.Activation(self.x.shape, self.mode, self.coef, self.x.dtype)
        emit.phase("forward", Chain((operation,), self.x.dtype), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = ActivationGradientCall(dy.shape, self.mode, self.coef, dy.dtype)
        read = {"x": self.x} if needs_x(self.mode, self.coef) else {"y": self.y}
        emit.gradient("data gradient", call, {**read, "dy": dy}, dx=self.x)
