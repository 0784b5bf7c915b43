"""Dropout of elements, or of whole channels of an image."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.elementwise.dropout import AdvanceCall, DropoutCall


@dataclass(frozen=True)
class Dropout(Node):
    """Dropout: in training y = x / (1 - p) where random numbers keep it, else 0; else y = x.

    With p = 0 it always is.

    The state, (seed, offset), moves on once a step, before forward reads it; backward makes the
    same numbers again from it, and keeps no mask.
    """

    x: Tensor
    state: Tensor
    p: float
    per_channel: bool

    def _call(self) -> DropoutCall:
        return DropoutCall(self.x.shape, self.p, self.x.dtype, self.per_channel)

    def forward(self, emit: Forward) -> None:
        if not (emit.is_training and self.p):
            emit.alias(self.y, self.x)
            return
        emit.phase("advance", AdvanceCall(), state=self.state)
        emit.phase("forward", self._call(), x=self.x, state=self.state, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if not self.p:
            emit.hand_on(dy, self.x)
            return
        emit.gradient("data gradient", self._call(), {"x": dy, "state": self.state}, y=self.x)
