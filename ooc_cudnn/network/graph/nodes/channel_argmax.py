"""The index of the largest channel at each site: labels of a segmentation, in one or two bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.softmax.channel_argmax import ArgmaxCall


@dataclass(frozen=True)
class ChannelArgmax(Node):
    """y, of integers, is the number of the largest channel of x: no scores leave the device."""

    x: Tensor

    def forward(self, emit: Forward) -> None:
        call = ArgmaxCall(self.x.shape, self.x.dtype, self.y.dtype)
        emit.phase("forward", call, x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        """Emit nothing: labels have no gradient."""
