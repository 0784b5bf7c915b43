"""Channels as heads of attention, and back."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, same_but_for_ones
from ooc_cudnn.operations.attention.heads import HeadsCall


@dataclass(frozen=True)
class Heads(Node):
    """y has the channels of x as heads, (n, depth, heads, sites), or the heads of x as channels.

    Of one head, y is x.
    """

    x: Tensor

    def forward(self, emit: Forward) -> None:
        if same_but_for_ones(self.x.shape, self.y.shape):
            emit.alias(self.y, self.x)
        else:
            call = HeadsCall(self.x.shape, self.y.shape, self.x.dtype)
            emit.phase("forward", call, x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if same_but_for_ones(self.x.shape, self.y.shape):
            emit.hand_on(dy, self.x)
        else:
            call = HeadsCall(self.y.shape, self.x.shape, self.x.dtype)
            emit.gradient("data gradient", call, {"x": dy}, y=self.x)
