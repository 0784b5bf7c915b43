"""Transposed convolution, with its bias."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.data_gradient import DataGradientCall
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.elementwise.binary import AdditionCall
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastGradientCall
from ooc_cudnn.settings_table import Settings


@dataclass(frozen=True)
class TransposedConvolution(Node):
    """y from x and w, plus b: the calls of a convolution from y to x, with the roles exchanged.

    The bias is added in place.
    """

    x: Tensor
    w: Tensor
    b: Tensor | None
    operation: Convolution

    def _under(self, settings: Settings) -> Convolution:
        return replace(
            self.operation,
            allow_tf32=settings.allow_tf32,
            deterministic=settings.deterministic,
        )

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", DataGradientCall(self._under(emit.settings)),
                   w=self.w, dy=self.x, dx=self.y)  # fmt: skip
        if self.b is not None:
            shape = self.y.shape
            vector = (1, shape[1], *(1 for _ in shape[2:]))
            emit.phase("bias", AdditionCall(shape, vector, self.y.dtype), b=self.b, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        operation = self._under(emit.settings)
        if self.b is not None:
            call = BroadcastGradientCall(dy.shape, dy.dtype)
            emit.gradient("bias gradient", call, {"dy": dy}, db=self.b)
        reads = {"x": dy, "dy": self.x}
        emit.gradient("filter gradient", FilterGradientCall(operation), reads, dw=self.w)
        chain = Chain((operation,), dy.dtype)
        emit.gradient("data gradient", chain, {"x": dy, "w": self.w}, y=self.x)
