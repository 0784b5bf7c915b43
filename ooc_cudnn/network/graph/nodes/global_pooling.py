"""One number for each channel of each image: the mean, or the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Origin, Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.pooling import forward as pooling
from ooc_cudnn.operations.pooling.global_average import GlobalAverageCall as Average
from ooc_cudnn.operations.pooling.global_average import of_all_sites
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall

#: Sites of a channel whose largest value is not worth two phases.
FEW_SITES = 2**16


@dataclass(frozen=True)
class GlobalAverage(Node):
    """The mean of all sites: a sum over rows, so that no image has to be on the device whole."""

    x: Tensor

    def forward(self, emit: Forward) -> None:
        emit.phase("forward", Average(self.x.shape, self.x.dtype), x=self.x, y=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = PoolingGradientCall(of_all_sites(self.x.shape, self.x.dtype))
        emit.gradient("data gradient", call, {"dy": dy}, dx=self.x)


@dataclass(frozen=True)
class GlobalMax(Node):
    """The largest of all sites: of many, first that of each row, which can be cut along rows."""

    x: Tensor

    def _poolings(self) -> tuple[pooling.Pooling, ...]:
        shape, dtype = self.x.shape, self.x.dtype
        if len(shape) == 3 or math.prod(shape[2:]) <= FEW_SITES:
            return (of_all_sites(shape, dtype, "max"),)
        ones, nothing = (1,) * len(shape[2:]), ((0, 0),) * len(shape[2:])
        rows = pooling.Pooling(shape, (1, *shape[3:]), ones, nothing, "max", dtype)
        return rows, of_all_sites(rows.output_shape, dtype, "max")

    def _maps(self, emit: Forward | Backward) -> tuple[Tensor, ...]:
        """X, what lies between the poolings, and y."""
        between = self._poolings()[0].output_shape
        many = len(self._poolings()) > 1
        rows = (emit.saved("rows", between, self.x.dtype),) if many else ()
        return self.x, *rows, self.y

    def forward(self, emit: Forward) -> None:
        maps = self._maps(emit)
        for at, operation in enumerate(self._poolings()):
            call = Chain((operation,), self.x.dtype)
            emit.phase(f"forward {at}" if at else "forward", call, x=maps[at], y=maps[at + 1])

    def backward(self, emit: Backward, dy: Tensor) -> None:
        if not emit.wants(self.x):
            return
        maps, poolings = self._maps(emit), self._poolings()
        if len(poolings) > 1:
            name, origin = f"{self.name}.rows.gradient", Origin(gradient_of=maps[1].name)
            gradient = Tensor(name, maps[1].shape, dy.dtype, "gradient", origin=origin)
            of_rows = emit.known(gradient)
            call = PoolingGradientCall(poolings[1])
            emit.phase("gradient of rows", call, y=self.y, dy=dy, x=maps[1], dx=of_rows)
            dy = of_rows
        reads = {"y": maps[1], "dy": dy, "x": self.x}
        emit.gradient("data gradient", PoolingGradientCall(poolings[0]), reads, dx=self.x)
