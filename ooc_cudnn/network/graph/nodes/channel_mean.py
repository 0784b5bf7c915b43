"""The mean of each site over its channels."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.binary import AdditionCall
from ooc_cudnn.operations.elementwise.cast import CastCall
from ooc_cudnn.operations.normalization.channel_mean import MEAN, ChannelMeanCall
from ooc_cudnn.tensor import ACCUMULATOR


@dataclass(frozen=True)
class ChannelMean(Node):
    """y is (n, 1, spatial...), in half types rounded twice; the gradient of a channel is dy / c."""

    x: Tensor

    def forward(self, emit: Forward) -> None:
        call, wide = ChannelMeanCall(self.x.shape, self.x.dtype), ACCUMULATOR[self.x.dtype]
        if wide == self.y.dtype:
            emit.phase("forward", call, x=self.x, **{MEAN: self.y})
            return
        mean = emit.saved("mean", self.y.shape, wide)
        emit.phase("forward", call, x=self.x, **{MEAN: mean})
        emit.phase("cast", CastCall(self.y.shape, wide, self.y.dtype), x=mean, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        shape = self.x.shape
        call = AdditionCall(shape, dy.shape, dy.dtype, alpha_b=1 / shape[1], alpha_y=0.0)
        emit.gradient("data gradient", call, {"b": dy}, y=self.x)
