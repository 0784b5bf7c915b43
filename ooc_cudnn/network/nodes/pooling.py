"""What is made of windows of x: pooling, adaptive pooling, interpolation, padding."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.emitting import Backward, Forward
from ooc_cudnn.network.nodes.base import Node
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations import pooling
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.pooling_indices import IndexedPooling, indexable
from ooc_cudnn.operations.resampling import Resampling
from ooc_cudnn.operations.resampling_arguments import pooling_gradient


@dataclass(frozen=True)
class Pooling(Node):
    """The largest or mean value of each window.

    For the gradient of maxima a byte each says where they are, if it can. In windows that are too
    large for that the gradient reads y, dy and x.
    """

    x: Tensor
    operation: pooling.Pooling | Resampling

    def forward(self, emit: Forward) -> None:
        indexed = self._indexed
        if indexed is not None and emit.is_training and emit.wants(self.x):
            call = IndexedPooling(indexed)
            emit.phase("forward", call, x=self.x, y=self.y, index=self._index(emit))
        else:
            emit.phase("forward", Chain((self.operation,), self.x.dtype), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        indexed, known = self._indexed, {"x": self.x, "y": self.y, "dy": dy}
        if indexed is None:
            call = pooling_gradient(self.operation)
        else:
            call, known["index"] = BackwardPooling(indexed, indexed=True), self._index(emit)
        reads = {name: tensor for name, tensor in known.items() if name in call.takes}
        emit.gradient("data gradient", call, reads, dx=self.x)

    @property
    def _indexed(self) -> pooling.Pooling | None:
        """The pooling, if a byte tells where each maximum is."""
        operation = self.operation
        return (
            operation if isinstance(operation, pooling.Pooling) and indexable(operation) else None
        )

    def _index(self, emit: Forward | Backward) -> Tensor:
        return emit.known(Tensor(f"{self.name}.index", self.y.shape, "uint8"))
