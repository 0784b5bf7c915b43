"""The sum of two maps."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.emitting import Backward, Forward
from ooc_cudnn.network.nodes.base import Node
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.op_tensor import OpTensor


@dataclass(frozen=True)
class Add(Node):
    """y = a + b, of one shape; the gradient of y is that of both."""

    a: Tensor
    b: Tensor

    def forward(self, emit: Forward) -> None:
        operation = OpTensor(self.a.shape, self.b.shape, self.a.dtype)
        emit.phase("forward", Chain((operation,), self.a.dtype), x=self.a, b=self.b, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        emit.hand_on(dy, self.a)
        emit.hand_on(dy, self.b)
