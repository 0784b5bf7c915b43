"""The gradient of a convolution with respect to its bias: sums over all but the channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.per_element import OneShape
from ooc_cudnn.operations.per_site import PerSite
from ooc_cudnn.operations.splittable import Operand, Piece, Region, Rounding
from perfmodel import Work
from perfmodel.cached import cached_property


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
        return (self.shape[1],)

    def work(self) -> Work:
        """One read."""
        return self.passes("/channel_sum", 1, problem=f"sum; {self.shape[1]} channels")

    def reference(self, *inputs: Array) -> Array:
        (dy,) = inputs
        axes = (0, *range(2, dy.ndim))
        return np.asarray(dy.astype(np.float64).sum(axis=axes))


@dataclass(frozen=True)
class BackwardBias(PerSite):
    """db from dy: cut along channels; summed over n and hY on the device, leaving once."""

    shape: Shape
    dtype: str

    lead = "dy"
    results = ("db",)
    takes = ("dy",)
    reduced = ("n", "h_y")
    loop_order = ("c_y", "c_x", "n", "h_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            "dy": Operand(self.shape, self.dtype, frozenset({"n", "c_y", "h_y"})),
            "db": Operand((self.shape[1],), self.dtype, frozenset({"c_y"})),
        }

    def region(self, name: str, piece: Piece) -> Region:
        return (piece.c_y,) if name == "db" else super().region(name, piece)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> ChannelSum:
        return ChannelSum(self.piece_shape(piece), self.dtype, result_dtype)

    def rounding(self) -> Rounding:
        """Sums are made in float64 and rounded once a piece."""
        return Rounding(math.prod(self.shape) // self.shape[1], self.dtype)
