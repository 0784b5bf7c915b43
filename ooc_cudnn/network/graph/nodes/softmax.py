"""Softmax."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.softmax.channels import SoftmaxCall, SoftmaxGradientCall
from ooc_cudnn.operations.softmax.images import ImageSoftmaxCall, ImageSoftmaxGradientCall


@dataclass(frozen=True)
class Softmax(Node):
    """Softmax over the channels of each site or over whole images; its gradient reads y and dy."""

    x: Tensor
    algorithm: str
    mode: str

    def forward(self, emit: Forward) -> None:
        kind = SoftmaxCall if self.mode == "channel" else ImageSoftmaxCall
        call = kind(self.x.shape, self.algorithm, self.x.dtype)
        emit.phase("forward", call, x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        kind = SoftmaxGradientCall if self.mode == "channel" else ImageSoftmaxGradientCall
        call = kind(dy.shape, self.algorithm, dy.dtype)
        emit.gradient("data gradient", call, {"y": self.y, "dy": dy}, dx=self.x)
