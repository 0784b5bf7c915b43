"""Batch normalization: by the batch's statistics in training, by running ones in inference."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.emitting import Backward, Forward
from ooc_cudnn.network.nodes.base import Node
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations.batch_normalization import Normalise
from ooc_cudnn.operations.batch_phases import (
    BatchNormalizationData,
    ChannelMoments,
    ChannelSums,
    ChannelVectors,
    ParameterGradients,
)
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.channel_statistics import SAVED, STATES
from ooc_cudnn.tensor import ACCUMULATOR


@dataclass(frozen=True)
class BatchNormalization(Node):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias.

    Moments of x stand between what makes x and what reads y, and the sums over dy between what
    makes dy and what reads dx: each is a phase of its own, and all else is elementwise. Running
    statistics are updated once a step, by `factor`.
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    running_mean: Tensor
    running_variance: Tensor
    epsilon: float
    factor: float

    def _state(self, emit: Forward | Backward, name: str) -> Tensor:
        return emit.saved(name, (STATES[name], self.x.shape[1]), "float64")

    def _saved(self, emit: Forward | Backward) -> dict[str, Tensor]:
        shape, dtype = (self.x.shape[1],), ACCUMULATOR[self.x.dtype]
        return {name: emit.saved(name, shape, dtype) for name in SAVED}

    def forward(self, emit: Forward) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        binds = {"x": self.x, "scale": self.scale, "bias": self.bias, "y": self.y}
        running = {"running_mean": self.running_mean, "running_variance": self.running_variance}
        if not emit.is_training:
            chain = Chain((Normalise(shape, dtype, self.epsilon),), dtype)
            mean, variance = running.values()
            emit.phase("forward", chain, **binds, mean=mean, variance=variance)
            return
        moments = self._state(emit, "moments")
        gather = ChannelMoments(shape, dtype, emit.settings.deterministic)
        emit.phase("moments", gather, x=self.x, moments=moments)
        vectors = ChannelVectors(shape[1], dtype, epsilon=self.epsilon)
        emit.phase("statistics", vectors, moments=moments, **self._saved(emit))
        averages = ChannelVectors(shape[1], dtype, running=True, factor=self.factor)
        emit.phase("running statistics", averages, moments=moments, **running)
        mean, inverse = self._saved(emit).values()
        normalise = Chain((Normalise(shape, dtype),), dtype)
        emit.phase("forward", normalise, **binds, mean=mean, inverse_deviation=inverse)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        reads = {"x": self.x, "dy": dy, **self._saved(emit)}
        sums = self._state(emit, "sums")
        add_up = ChannelSums(shape, dtype, emit.settings.deterministic)
        emit.phase("sums", add_up, **reads, sums=sums)
        parameters = ParameterGradients(shape[1], dtype)
        makes = {"dscale": self.scale, "dbias": self.bias}
        emit.gradient("parameter gradients", parameters, {"sums": sums}, **makes)
        reads |= {"scale": self.scale, "sums": sums}
        emit.gradient("data gradient", BatchNormalizationData(shape, dtype), reads, dx=self.x)
