"""Batch normalization: by the batch's statistics in training, by running ones in inference."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.emitting import Backward, Forward
from ooc_cudnn.network.nodes.base import Node
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.batch_normalization import Normalise
from ooc_cudnn.operations.batch_statistics import (
    BatchNormalization as Training,
)
from ooc_cudnn.operations.batch_statistics import (
    BatchNormalizationGradient,
)
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.tensor import ACCUMULATOR


@dataclass(frozen=True)
class BatchNormalization(Node):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias.

    In training, running statistics are updated once a step, by `factor`; the gradients read x, dy,
    scale, and the mean and inverse deviation that forward saved.
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    running_mean: Tensor
    running_variance: Tensor
    epsilon: float
    factor: float

    def _saved(self, emit: Forward | Backward) -> dict[str, Tensor]:
        shape, dtype = (self.x.shape[1],), ACCUMULATOR[self.x.dtype]
        names = ("saved_mean", "saved_inverse_variance")
        return {name: emit.saved(name, shape, dtype) for name in names}

    def forward(self, emit: Forward) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        binds = {"x": self.x, "scale": self.scale, "bias": self.bias, "y": self.y}
        if emit.is_training:
            call = Training(shape, dtype, self.epsilon, self.factor, running=True)
            running = {
                "running_mean": self.running_mean,
                "running_variance": self.running_variance,
            }
            emit.phase("forward", call, **binds, **self._saved(emit), **running)
        else:
            chain = Chain((Normalise(shape, dtype, self.epsilon),), dtype)
            mean, variance = self.running_mean, self.running_variance
            emit.phase("forward", chain, **binds, mean=mean, variance=variance)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = BatchNormalizationGradient(self.x.shape, self.x.dtype)
        reads = {"x": self.x, "dy": dy, "scale": self.scale, **self._saved(emit)}
        makes = {"dx": self.x, "dscale": self.scale, "dbias": self.bias}
        emit.gradient("gradient", call, reads, **makes)
