"""Some channels of a map, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, channels_of
from ooc_cudnn.operations.core.ranges import Range


@dataclass(frozen=True)
class ChannelSlice(Node):
    """y is a view of x; its gradient is made in its place in that of x.

    `zero`, (1,), is the gradient of channels that nothing reads.
    """

    x: Tensor
    zero: Tensor
    channels: Range

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        return (self.x,)

    def forward(self, emit: Forward) -> None:
        emit.alias(self.y, self.x, channels_of(self.x.shape, self.channels))

    def backward(self, emit: Backward, dy: Tensor) -> None:
        emit.hand_channels(dy, self.x, self.channels, self.zero)
