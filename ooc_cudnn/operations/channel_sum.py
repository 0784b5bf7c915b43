"""The sum of a tensor over everything but its channels: the gradient of a bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.per_element import OneShape
from perfmodel import Work


@dataclass(frozen=True)
class ChannelSum(OneShape):
    """db (c,) from dy (n, c, spatial...): summed in float64, rounded once to `result_dtype`.

    Source: cudnnConvolutionBackwardBias.
    """

    shape: Shape
    dtype: str
    result_dtype: str

    name = "convolution_backward_bias"

    @property
    def output_shape(self) -> Shape:
        """One value per channel."""
        return (self.shape[1],)

    def work(self) -> Work:
        """One read."""
        return self.passes("/channel_sum", 1, problem=f"sum; {self.shape[1]} channels")

    def reference(self, *inputs: Array) -> Array:
        """Sum in float64."""
        (dy,) = inputs
        axes = (0, *range(2, dy.ndim))
        return np.asarray(dy.astype(np.float64).sum(axis=axes))
