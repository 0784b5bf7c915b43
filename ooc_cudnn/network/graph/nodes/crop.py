"""A part of a map, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, whole_region
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.resampling.axis_windows import seen_range
from ooc_cudnn.operations.resampling.forward import Resampling
from ooc_cudnn.operations.resampling.gradient import ResamplingGradientCall


@dataclass(frozen=True)
class Crop(Node):
    """y is a view of x; its gradient, with zeros around it, is that of x, or is added there."""

    x: Tensor
    operation: Resampling

    @property
    def _region(self) -> Region:
        inside = (seen_range(window, (0, window.count)) for window in self.operation.windows)
        return (*whole_region(self.x.shape[:2]), *inside)

    def forward(self, emit: Forward) -> None:
        emit.alias(self.y, self.x, self._region)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if emit.gradient_of(self.x) is not None:
            emit.add_part(dy, self.x, self._region)
            return
        call = ResamplingGradientCall(self.operation)
        emit.gradient("data gradient", call, {"dy": dy}, dx=self.x)
