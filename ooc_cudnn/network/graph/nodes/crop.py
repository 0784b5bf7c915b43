"""A part of a map, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.resampling.axis_windows import seen_range
from ooc_cudnn.operations.resampling.forward import Resampling
from ooc_cudnn.operations.resampling.gradient import ResamplingGradientCall


@dataclass(frozen=True)
class Crop(Node):
    """y is a view of x; the gradient of x is that of y, with zeros around it."""

    x: Tensor
    operation: Resampling

    def forward(self, emit: Forward) -> None:
        inside = (seen_range(window, (0, window.count)) for window in self.operation.windows)
        images, channels = ((0, extent) for extent in self.x.shape[:2])
        emit.alias(self.y, self.x, (images, channels, *inside))

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = ResamplingGradientCall(self.operation)
        emit.gradient("data gradient", call, {"dy": dy}, dx=self.x)
