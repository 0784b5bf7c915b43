"""Elements moved along axes, those that leave at the end put in at the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.call import Region


@dataclass(frozen=True)
class Roll(Node):
    """y has the elements of x, so many places further along each axis; dx is dy moved back.

    Each is copied once: a box for each choice of "before the end" or "behind it" of an axis.
    """

    x: Tensor
    shifts: tuple[int, ...]

    def _boxes(self) -> Iterator[tuple[Region, Region]]:
        """Regions of x, and where they are in y."""
        pairs = [
            [((0, e - by), (by, e)), ((e - by, e), (0, by))] if by else [((0, e), (0, e))]
            for e, by in zip(self.x.shape, self.shifts, strict=True)
        ]
        for box in itertools.product(*pairs):
            yield tuple(source for source, _ in box), tuple(target for _, target in box)

    def forward(self, emit: Forward) -> None:
        for at, (source, target) in enumerate(self._boxes()):
            self._copy(emit, f"part {at}", (self.x, source), (self.y, target))

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if not emit.wants(self.x):
            return
        name = f"{self.name}.dx"
        dx = emit.known(Tensor(name, self.x.shape, self.x.dtype, "gradient"))
        for at, (source, target) in enumerate(self._boxes()):
            self._copy(emit, f"gradient of part {at}", (dy, target), (dx, source))
        emit.hand_on(dx, self.x)

    def _copy(
        self,
        emit: Forward | Backward,
        what: str,
        source: tuple[Tensor, Region],
        target: tuple[Tensor, Region],
    ) -> None:
        shape = tuple(stop - start for start, stop in source[1])
        read, written = (
            emit.view(tensor, shape, region, f"{tensor.name} {self.name} {what}")
            for tensor, region in (source, target)
        )
        emit.copy(what, read, written)
