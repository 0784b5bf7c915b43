"""Joining channels, without a copy where the parts can be made in their place; or other axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, whole_region
from ooc_cudnn.operations.core.call import Region


@dataclass(frozen=True)
class Concatenate(Node):
    """y holds its parts one after the other along an axis.

    Of channels, a part that a node makes becomes a view of y: its maker writes there. Others
    (inputs, what has its place in another concatenation) are copied, and so are parts along spatial
    axes. The gradients of the parts are views of dy.
    """

    parts: tuple[Tensor, ...]
    axis: int = 1

    def _regions(self) -> Iterator[tuple[Tensor, Region]]:
        axis = self.axis
        ends = itertools.accumulate(part.shape[axis] for part in self.parts)
        for part, end in zip(self.parts, ends, strict=True):
            whole = whole_region(part.shape)
            yield part, (*whole[:axis], (end - part.shape[axis], end), *whole[axis + 1 :])

    def forward(self, emit: Forward) -> None:
        for at, (part, region) in enumerate(self._regions()):
            if self.axis > 1 or not emit.lay_into(part, self.y, region):
                target = emit.view(self.y, part.shape, region, f"{self.name}.part_{at}")
                emit.copy(f"copy of {part.name}", part, target)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        for part, region in self._regions():
            emit.hand_on(dy, part, region)
