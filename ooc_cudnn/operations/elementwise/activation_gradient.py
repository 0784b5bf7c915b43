"""Gradients of activations: dx from y, dy and, where y does not tell, x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES, exponentials, needs_x
from ooc_cudnn.operations.core.call import Operand, Piece, Region, Tile
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.row_axis import broadcast_region, cut_axes
from ooc_cudnn.operations.elementwise.binary import wide_shape
from perfmodel import Work
from perfmodel.cached import cached_property


class HasActivation(Protocol):
    """A call or an operation that has an activation."""

    @property
    def mode(self) -> str:
        """The activation's."""

    @property
    def coef(self) -> float:
        """The activation's."""

    @property
    def dtype(self) -> str:
        """Dtype of its operand."""


@dataclass(frozen=True)
class ActivationBackward(OneShape):
    """dx = dy * f'(x), from (y, dy, x); x is absent where `needs_x` is false.

    Where the slope is 0 by selection (`Mode.is_flat`: relu below 0, clipped_relu outside), dx is 0
    whatever dy is, as in cuDNN and PyTorch; elsewhere a slope of 0 is multiplied, so that dy = NaN
    gives NaN. At the kink itself the slope is the left one: 0 for relu
    and clipped_relu at 0, `coef` for leaky_relu; clipped_relu at its ceiling has 0, and so has
    hardsigmoid at 1; hardswish at 3 has 1, the right one, as in PyTorch.

    Where y (or x) is NaN the slope is that of PyTorch on a card: 1 of relu, clipped_relu, elu,
    hardswish and identity, `coef` of leaky_relu, 0 of hardsigmoid, and NaN of the others, which
    compute it. (PyTorch's CPU kernels have two answers for clipped_relu, elu and hardswish: this
    one for single elements, another one for vectors of them.)

    Source: cudnnActivationBackward; aten/src/ATen/native/cuda/Activation*Kernel.cu.
    """

    shape: Shape
    mode: str
    coef: float
    dtype: str

    name = "activation_backward"
    any_strides = True

    def work(self) -> Work:
        """Two reads and a write: where x tells the slope, y is not read."""
        count = exponentials(self.mode, self.dtype, of_slope=True)
        return self.passes("/activation_backward", 3, exponentials=count, problem=self.mode)

    def reference(self, *inputs: Array) -> Array:
        y, dy = (array.astype(np.float64) for array in inputs[:2])
        x = y
        if len(inputs) > 2 and needs_x(self.mode, self.coef):
            x = inputs[2].astype(np.float64)
        slope = MODES[self.mode].slope(y, x, self.coef)
        if MODES[self.mode].is_flat:
            dy = np.where(slope == 0, 0.0, dy)
        return np.asarray(dy * slope)


@dataclass(frozen=True)
class PreluBackward(OneShape):
    """dx = dy where x > 0, else dy * w, from (x, dy, w): w holds one slope, or one per channel.

    NaN in x counts as below 0, as in PyTorch. `OpTensor` with op "prelu" is the forward operation.
    """

    shape: Shape
    w_shape: Shape
    dtype: str

    name = "prelu_backward"

    def work(self) -> Work:
        """Two reads and a write."""
        return self.passes("/activation_backward", 3, problem=f"prelu {len(self.w_shape)}")

    def reference(self, *inputs: Array) -> Array:
        x, dy, w = (array.astype(np.float64) for array in inputs)
        return np.asarray(dy * np.where(x > 0, 1.0, w.reshape(wide_shape(w.shape, x.ndim))))


@dataclass(frozen=True)
class ActivationGradientCall(PointwiseCall):
    """dx from y and dy or, where y does not tell the slope, from x and dy."""

    shape: Shape
    mode: str
    coef: float
    dtype: str

    keeps_channels = True
    lead = "dy"
    may_be_in_place = True
    results = ("dx",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y and dy; or x and dy, x in the place of y too: the NaN of one is in the other."""
        return ("x", "dy", "x") if needs_x(self.mode, self.coef) else ("y", "dy", "")

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> ActivationBackward:
        return ActivationBackward(self.piece_shape(piece), self.mode, self.coef, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """A slope of up to 1.2, or coef, that is itself a difference of numbers of size 1."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        # a slope that is told by comparisons is a number where y is NaN
        sizes = (np.where(np.isnan(x), 0.0, np.abs(x)) for x in (inputs[0], inputs[-1]))
        largest = 4.0 + abs(self.coef) + sum(sizes)
        return value, np.abs(value) + np.abs(inputs[1]) * largest


@dataclass(frozen=True)
class PreluGradientCall(PointwiseCall):
    """dx from x, dy and the slopes w, one or one per channel."""

    shape: Shape
    w_shape: Shape
    dtype: str

    lead = "dy"
    takes = ("x", "dy", "w")
    results = ("dx",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        w = Operand(self.w_shape, self.dtype, cut_axes(self.w_shape))
        return {**super().operands, "w": w}

    def region(self, name: str, piece: Piece) -> Region:
        region = super().region(name, piece)
        return broadcast_region(self.w_shape, region) if name == "w" else region

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> PreluBackward:
        w_shape = tuple(stop - start for start, stop in self.region("w", piece))
        return PreluBackward(self.piece_shape(piece), w_shape, result_dtype)
