"""Sums of softmax(x) and of labels, class by class, as calls: what soft Dice losses are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import height
from ooc_cudnn.operations.losses.calls import ROWS, OfRows
from ooc_cudnn.operations.losses.launches import ClassSums, ClassSumsBackward, RowTotals
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Split

IMAGES = frozenset({"n"})


@dataclass(frozen=True)
class ClassSumsCall(OfRows):
    """The sums of each row, (n, rows, 3 * classes), from logits x and labels (n, 1, sites...)."""

    shape: Shape
    dtype: str
    labels_dtype: str = "int64"

    @property
    def of_row(self) -> Shape:
        return (3 * self.shape[1],)

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        n, _, *sites = self.shape
        labels = Operand((n, 1, *sites), self.labels_dtype, ROWS)
        return {"x": Operand(self.shape, self.dtype, ROWS), "labels": labels}

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return ClassSums(shape, dtype, self.labels_dtype)

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Each term is at most 1, and what it is a power of is a difference of logits."""
        x = inputs[0]
        sites = 1 + 2 * np.abs(x).max(axis=1)
        rows = sites.reshape(x.shape[0], height(x.shape), -1).sum(axis=2)
        return np.asarray(rows[..., np.newaxis])


@dataclass(frozen=True)
class ClassSumsGradientCall(ClassSumsCall):
    """dx from x, labels, and dy (n, 3 * classes), the gradient of each image's sums."""

    results = ("dx",)

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        shape = self.on_piece(self.shape, self.dtype).dy_shape
        return {**super().takes, "dy": Operand(shape, ACCUMULATOR[self.dtype], IMAGES)}

    def region(self, name: str, piece: Piece) -> Region:
        """Return the images of dy."""
        if name != "dy":
            return super().region(name, piece)
        return (piece.n, (0, 3 * self.shape[1]))

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return ClassSumsBackward(shape, dtype, self.labels_dtype)

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Gradients are at most the largest of dy, after differences of logits."""
        x, _, dy = inputs
        return np.asarray(4 * np.abs(dy).max() * (1 + np.abs(x).max(axis=1, keepdims=True)))


@dataclass(frozen=True)
class RowTotalsCall(BuiltCall):
    """The sums (n, k), of type `dtype`, of rows' sums (n, rows, k) float64."""

    shape: Shape
    dtype: str

    lead = "losses"
    results = ("loss",)
    reduced = ()

    @property
    def operands(self) -> Mapping[str, Operand]:
        n, _, k = self.shape
        return {
            "losses": Operand(self.shape, "float64", IMAGES),
            "loss": Operand((n, k), self.dtype, IMAGES),
        }

    @property
    def extents(self) -> Split:
        return Split(n=self.shape[0], c_y=1, c_x=1, h_y=1)

    def may_cut(self, axis: str) -> bool:
        return False

    def region(self, name: str, piece: Piece) -> Region:
        return (piece.n, *((0, extent) for extent in self.operands[name].shape[1:]))

    def build(self, build: Builder) -> None:
        operation = RowTotals(build.buffers["losses"].shape, build.product_dtype("loss"))
        build.make(operation, ("losses",), "loss", build.buffers["loss"].order)

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        values = read("losses", self.region("losses", piece))
        totals = RowTotals(values.shape, self.dtype)
        return {"loss": (totals.reference(values), totals.reference(np.abs(values)))}

    def rounding(self) -> Rounding:
        """Sums are made in float64."""
        return Rounding(1, self.dtype, 8)
