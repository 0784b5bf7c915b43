"""The sum of a tensor over everything but its channels: the gradient of a bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work


@dataclass(frozen=True)
class ChannelSum:
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
        elements = math.prod(self.shape)
        return pass_work(
            f"pointwise/{self.dtype}/channel_sum",
            device_bytes=elements * DTYPES[self.dtype],
            elements=elements,
            problem=f"sum; {self.shape[1]} channels",
        )

    def reference(self, *inputs: Array) -> Array:
        """Sum in float64."""
        (dy,) = inputs
        axes = (0, *range(2, dy.ndim))
        return np.asarray(dy.astype(np.float64).sum(axis=axes))
