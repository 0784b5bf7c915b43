"""Calls whose pieces are alike in all operands: each element, or each site, for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.activation_backward import (
    ActivationBackward,
    PreluBackward,
    needs_x,
)
from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.launches import Launchable
from ooc_cudnn.operations.op_tensor import OpTensor
from ooc_cudnn.operations.rows import broadcast_region, cut_axes, tensor_region
from ooc_cudnn.operations.single import CUT, OfOneShape, OneTyped, Single
from ooc_cudnn.operations.softmax import Softmax, SoftmaxBackward
from ooc_cudnn.operations.splittable import Operand, Piece, Region, Rounding
from perfmodel.cached import cached_property


class PerSite(OfOneShape, Single):
    """Shared by calls of which every operand has the shape of the result, and the same region."""

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        names = dict.fromkeys((*(name for name in self.takes if name), *self.results))
        return {name: Operand(self.shape, self.dtype, CUT) for name in names}

    def region(self, name: str, piece: Piece) -> Region:
        return tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)

    def rounding(self) -> Rounding:
        """A few operations on each element."""
        return Rounding(1, self.dtype, 4)


@dataclass(frozen=True)
class ActivationGradient(PerSite):
    """dx from y and dy or, where y does not tell the slope, from x and dy."""

    shape: Shape
    mode: str
    coef: float
    dtype: str

    lead = "dy"
    results = ("dx",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y and dy; or x and dy, x in the place of y too: the NaN of one is in the other."""
        return ("x", "dy", "x") if needs_x(self.mode, self.coef) else ("y", "dy", "")

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> ActivationBackward:
        return ActivationBackward(self.piece_shape(piece), self.mode, self.coef, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """A slope of up to 1.2, or coef, that is itself a difference of numbers of size 1."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        largest = 4.0 + abs(self.coef) + np.abs(inputs[0]) + np.abs(inputs[-1])
        return value, np.abs(value) + np.abs(inputs[1]) * largest


@dataclass(frozen=True)
class PreluGradient(PerSite):
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


@dataclass(frozen=True)
class SoftmaxCall(PerSite):
    """y from x, over the channels of every site: these are not cut."""

    shape: Shape
    algorithm: str
    dtype: str

    takes = ("x",)

    def may_cut(self, axis: str) -> bool:
        return axis in ("n", "h_y") and super().may_cut(axis)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return Softmax(self.piece_shape(piece), self.algorithm, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """Differences of inputs are made before they are raised."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        size = np.abs(value) + np.max(np.abs(inputs[0]), axis=1, keepdims=True)
        return value, size if self.algorithm == "log" else size * np.abs(value) + np.abs(value)

    def rounding(self) -> Rounding:
        return Rounding(self.shape[1], self.dtype, 4)


@dataclass(frozen=True)
class SoftmaxGradient(SoftmaxCall):
    """dx from y and dy, over the channels of every site."""

    lead = "dy"
    takes = ("y", "dy")  # type: ignore[assignment]
    results = ("dx",)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return SoftmaxBackward(self.piece_shape(piece), self.algorithm, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        (y, dy), log = inputs, self.algorithm == "log"
        size = np.abs(dy) if log else np.abs(y * dy)
        # The logarithm of 0 is exact: it makes nothing uncertain.
        reach = 1 + np.where(np.isfinite(y), np.abs(y), 0)
        factor = np.exp(y) * reach if log else np.abs(y)
        return value, np.abs(dy) * reach + factor * size.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Addition(PerSite):
    """alpha_b * b + alpha_y * y, b broadcast, in place on y or, `apart`, into another tensor.

    The coefficients are the operation's own: in place, y is read because beta is not 0.
    """

    shape: Shape
    b_shape: Shape
    dtype: str
    alpha_b: float = 1.0
    alpha_y: float = 1.0
    apart: bool = False

    lead = "y"

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y itself, or what is written apart from it."""
        return ("out",) if self.apart else ("y",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y and b; y is absent where its factor is 0."""
        return ("y" if self.alpha_y else "", "b")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        axes = cut_axes(self.b_shape, self.row_axis)
        whole = Operand(self.shape, self.dtype, CUT)
        found = {"b": Operand(self.b_shape, self.dtype, axes), "y": whole}
        return {**found, "out": whole} if self.apart else found

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return tuple(name for name in self.operands if name in self.takes)

    def region(self, name: str, piece: Piece) -> Region:
        """The same for all but b; of b, all of what is broadcast."""
        region = super().region(name, piece)
        return broadcast_region(self.b_shape, region) if name == "b" else region

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OpTensor:
        b_shape = tuple(stop - start for start, stop in self.region("b", piece))
        return OpTensor(
            self.piece_shape(piece), b_shape, result_dtype, "add", self.alpha_y, self.alpha_b
        )

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        x, b = inputs if len(inputs) > 1 else (np.zeros(1), inputs[0])
        value = operation.reference(x, b)  # type: ignore[attr-defined]
        return value, np.abs(self.alpha_y * x) + np.abs(self.alpha_b * b)

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype, 2)
