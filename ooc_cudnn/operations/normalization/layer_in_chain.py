"""Layer normalisation of each site over its channels, as an operation of chains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.ranges import Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, per_channel, replace_rows
from ooc_cudnn.operations.normalization.set_reduction import SetMoments, statistics_shape
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Work


@dataclass(frozen=True)
class NormaliseSites(OneShape):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias, from (x, scale, bias).

    Mean and variance are those of a site's channels; scale and bias are (c,).
    """

    shape: Shape
    dtype: str
    epsilon: float

    name = "layer_normalization"

    @property
    def input_shape(self) -> Shape:
        return self.shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        vectors = self.shape[1:2], ACCUMULATOR[self.dtype]
        return Parameter("scale", *vectors), Parameter("bias", *vectors)

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        return Rows(*rows, 0, 0)

    def on_piece(
        self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS
    ) -> NormaliseSites:
        shape = replace_rows((n, channels, *self.shape[2:]), rows.stop - rows.start, row_axis)
        return replace(self, shape=shape)

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation: one of each site."""
        return statistics_shape(self.shape, by_site=True)

    @property
    def moments(self) -> SetMoments:
        """Launch that finds the moments of each site."""
        return SetMoments(self.shape, self.dtype, self.shape[1], by_site=True)

    def work(self) -> Work:
        """Two reads and a write."""
        problem = f"{self.name}; {self.shape[1]} channels"
        return self.passes("/batch_normalization", 3, problem=problem)

    def reference(self, x: Array, *parameters: Array) -> Array:
        x = x.astype(np.float64)
        scale, bias = (per_channel(vector, x.ndim) for vector in parameters)
        spread = np.sqrt(x.var(axis=1, keepdims=True) + self.epsilon)
        return np.asarray(scale * (x - x.mean(axis=1, keepdims=True)) / spread + bias)

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        """Magnitude where the channels of a site are alike: no deviation is less."""
        scale, bias = (np.abs(per_channel(vector, x.ndim)) for vector in parameters)
        largest = x.max(axis=1, keepdims=True)
        return np.asarray(scale * 2 * largest / math.sqrt(max(self.epsilon, 1e-30)) + bias)
