"""Stored images as maps."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.cast_scale import CastScale


@dataclass(frozen=True)
class Images(Node):
    """y = (x - mean) * scale, x of integers: a quarter or half of the bytes cross the link."""

    x: Tensor
    mean: Tensor
    scale: Tensor

    def forward(self, emit: Forward) -> None:
        shapes, dtype = (self.mean.shape, self.scale.shape), self.y.dtype
        call = Chain((CastScale(self.x.shape, self.x.dtype, *shapes, dtype),), dtype)
        emit.phase("forward", call, x=self.x, mean=self.mean, scale=self.scale, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        """Emit nothing: images and what scales them have no gradient."""
