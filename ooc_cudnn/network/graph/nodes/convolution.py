"""Convolution, with its bias."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution import forward as convolution
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall
from ooc_cudnn.settings_table import Settings


@dataclass(frozen=True)
class Convolution(Node):
    """y = w * x + b; its gradients read x, w and dy."""

    x: Tensor
    w: Tensor
    b: Tensor | None
    operation: convolution.Convolution

    def _under(self, settings: Settings) -> convolution.Convolution:
        return replace(
            self.operation,
            allow_tf32=settings.allow_tf32,
            deterministic=settings.deterministic,
        )

    def forward(self, emit: Forward) -> None:
        operations: tuple[Operation, ...] = (self._under(emit.settings),)
        binds = {"x": self.x, "w": self.w, "y": self.y}
        if self.b is not None:
            operations += (AddTensor(self.operation.output_shape, self.x.dtype),)
            binds["b"] = self.b
        emit.phase("forward", Chain(operations, self.x.dtype), **binds)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        operation = self._under(emit.settings)
        if self.b is not None:
            call = BroadcastGradientCall(operation.output_shape, dy.dtype)
            emit.gradient("bias gradient", call, {"dy": dy}, db=self.b)
        reads = {"x": self.x, "dy": dy}
        emit.gradient("filter gradient", FilterGradientCall(operation), reads, dw=self.w)
        reads = {"w": self.w, "dy": dy}
        emit.gradient("data gradient", DataGradientCall(operation), reads, dx=self.x)
