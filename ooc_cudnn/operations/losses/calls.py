"""Losses as calls: cut along n and rows, with a number for each row, and their total.

The mean over labels divides by the sum of their weights in the whole batch. That is made of the
labels alone (`LabelWeightsCall`, `TotalCall`), before the first piece of a gradient needs it. Of
these, n is no axis: who goes through a network some images at a time does not cut them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.call import (
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    TiledCall,
    random_range,
)
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, height, tensor_region
from ooc_cudnn.operations.core.single_op import OneShapeCall
from ooc_cudnn.operations.losses.launches import (
    CrossEntropy,
    CrossEntropyBackward,
    ElementLoss,
    ElementLossBackward,
    LabelWeights,
    Total,
)
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Split
from perfmodel.cached import cached_property

ROWS = frozenset({"n", "h_y"})
WHOLE: frozenset[str] = frozenset()
#: A loss, its gradient, or what it is divided by.
SCALAR = Operand((1,), "float64", WHOLE)


class OfRows(OneShapeCall):
    """Rows of images, each for itself: channels are not cut, and rows lie along their first axis.

    So what is made of a row is the same, whatever the cut.
    """

    reduced = ()
    results = ("losses",)
    shape: Shape
    dtype: str

    @property
    @abstractmethod
    def takes(self) -> Mapping[str, Operand | None]:
        """The operands of the launch, in its order; None for one that is absent."""

    @property
    def of_row(self) -> Shape:
        """Extents of what is made of a row: none, of one number."""
        return ()

    @abstractmethod
    def on_piece(self, shape: Shape, dtype: str) -> Any:
        """Operation that is launched on a piece of the data of that shape and type."""

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        found = {name: operand for name, operand in self.takes.items() if operand is not None}
        if self.results == ("dx",):
            return {**found, "dx": found["x"]}
        rows = (self.shape[0], height(self.shape), *self.of_row)
        return {**found, "losses": Operand(rows, "float64", ROWS)}

    @property
    def row_axes(self) -> tuple[int, ...]:
        return (ROW_AXIS,)

    def may_cut(self, axis: str) -> bool:
        return axis in ROWS and super().may_cut(axis)

    def region(self, name: str, piece: Piece) -> Region:
        """All of what no axis cuts; of what is broadcast, all where it is."""
        operand = self.operands[name]
        whole = tuple((0, extent) for extent in operand.shape)
        if not operand.axes:
            return whole
        if name == "losses" or len(operand.shape) < len(self.shape):  # it has no channels
            return (piece.n, piece.h_y, *whole[2:])[: len(whole)]
        region = tensor_region(self.shape, piece.n, whole[1], piece.h_y)
        return tuple(
            every if extent == 1 else part
            for part, every, extent in zip(region, whole, operand.shape, strict=True)
        )

    def build(self, build: Builder) -> None:
        """Launch it, in whatever order of memory; of what is scaled, the product is wide."""
        (result,) = self.results
        dtype = build.product_dtype(result) if result == "dx" else self.dtype
        sources = tuple(
            build.taken(name, build.buffers[name].order, dtype)
            if operand is not None and operand.dtype == self.dtype
            else name
            if operand is not None
            else ""
            for name, operand in self.takes.items()
        )
        operation = self.on_piece(self.piece_shape(build.piece), dtype)
        build.make(operation, sources, result, build.buffers[result].order, done=sources)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one image."""
        whole = self.extents
        n, rows = random_range(random, whole.n, 1), random_range(random, whole.h_y, 2)
        return Piece(n, (0, whole.c_y), rows, (0, 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the launch's reference."""
        operation = self.on_piece(self.piece_shape(piece), "float64")
        inputs = [
            None if operand is None else read(name, self.region(name, piece))
            for name, operand in self.takes.items()
        ]
        value = operation.reference(*inputs)
        return {self.results[0]: (value, np.abs(value) + self.size(operation, inputs))}

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Sums as they would be without cancellation."""
        return np.zeros(())

    def rounding(self) -> Rounding:
        """Sums are made in float64."""
        return Rounding(1, self.dtype, 8)


@dataclass(frozen=True)
class _OfLabels(OfRows):
    """A call with labels and, if `weighted`, weights; `shape` and `dtype` are the logits'."""

    shape: Shape
    dtype: str
    labels_dtype: str = "int64"
    weighted: bool = False
    ignore_index: int = -100

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        n, classes, *sites = self.shape
        weights = Operand((classes,), ACCUMULATOR[self.dtype], WHOLE)
        return {
            "labels": Operand((n, *sites), self.labels_dtype, ROWS),
            "weights": weights if self.weighted else None,
        }


@dataclass(frozen=True)
class LabelWeightsCall(_OfLabels):
    """The sum of the weights of each row's labels, of the whole batch: c_y counts its images."""

    lead = "labels"

    def on_piece(self, shape: Shape, dtype: str) -> LabelWeights:
        n, classes, *sites = shape
        return LabelWeights((n, *sites), self.labels_dtype, classes, self.ignore_index, dtype)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            name: each._replace(axes=frozenset({"c_y", "h_y"}) if each.axes else WHOLE)
            for name, each in super().operands.items()
        }

    @cached_property
    def extents(self) -> Split:
        return Split(n=1, c_y=self.shape[0], c_x=1, h_y=height(self.shape))

    def may_cut(self, axis: str) -> bool:
        return axis in ("c_y", "h_y") and TiledCall.may_cut(self, axis)

    def _turned(self, piece: Piece) -> Piece:
        """The piece with its images where other calls have them."""
        return piece._replace(n=piece.c_y, c_y=(0, self.shape[1]))

    def region(self, name: str, piece: Piece) -> Region:
        return super().region(name, self._turned(piece))

    def piece_shape(self, piece: Piece) -> Shape:
        return super().piece_shape(self._turned(piece))


@dataclass(frozen=True)
class CrossEntropyCall(_OfLabels):
    """The sum of each row's losses, from the logits x, labels and, if `weighted`, weights.

    `smoothing` is PyTorch's ``label_smoothing``.
    """

    smoothing: float = 0.0

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        return {"x": Operand(self.shape, self.dtype, ROWS), **super().takes}

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return CrossEntropy(shape, dtype, self.labels_dtype, self.smoothing, self.ignore_index)

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Logits are subtracted from each other; a label's weight is at most the largest."""
        x, _, weights = inputs[:3]
        largest = 1.0 if weights is None else float(np.abs(weights).max())
        sites = 2 * largest * np.abs(x).max(axis=1)
        return np.asarray(sites.reshape(*self.row_shape(x.shape), -1).sum(axis=2))

    @staticmethod
    def row_shape(shape: Shape) -> tuple[int, int]:
        """Images and rows."""
        return shape[0], height(shape)


@dataclass(frozen=True)
class CrossEntropyGradientCall(CrossEntropyCall):
    """dx from x, labels, weights, if `divided` the divisor, and dy, the gradient of the loss.

    `scale` is what the loss is multiplied with besides.
    """

    scale: float = 1.0
    divided: bool = False

    results = ("dx",)

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        return {**super().takes, "divisor": SCALAR if self.divided else None, "dy": SCALAR}

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return CrossEntropyBackward(
            shape, dtype, self.labels_dtype, self.smoothing, self.ignore_index, self.scale
        )

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Shares that are at most the weights are subtracted, after differences of logits."""
        x, _, weights, divisor, dy = inputs
        largest = 1.0 if weights is None else float(np.abs(weights).max())
        scale = abs(self.scale * dy[0] / (1.0 if divisor is None else divisor[0]))
        return np.asarray(2 * scale * largest * (1 + np.abs(x).max(axis=1, keepdims=True)))


@dataclass(frozen=True)
class ElementLossCall(OfRows):
    """The sum of each row's losses, from x, a target of its shape, and weights if there are any.

    `mode` and the weights' shapes as `ElementLoss` has them; weights have the type of x.
    """

    shape: Shape
    dtype: str
    mode: str
    weight_shape: Shape | None = None
    positive_shape: Shape | None = None

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        whole = Operand(self.shape, self.dtype, ROWS)
        given = {"weight": self.weight_shape, "positive": self.positive_shape}
        return {"x": whole, "target": whole, **{n: self._broadcast(s) for n, s in given.items()}}

    def _broadcast(self, shape: Shape | None) -> Operand | None:
        if shape is None:
            return None
        extents = {"n": shape[0], "h_y": height(shape)}
        axes = frozenset(axis for axis, extent in extents.items() if extent > 1)
        return Operand(shape, self.dtype, axes)

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return ElementLoss(shape, dtype, self.mode, *self._weights(shape))

    def _weights(self, shape: Shape) -> tuple[Shape | None, Shape | None]:
        """Shapes of the weights that meet a piece."""
        weight, positive = (
            given and tuple(1 if e == 1 else part for e, part in zip(given, shape, strict=True))
            for given in (self.weight_shape, self.positive_shape)
        )
        return weight, positive

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """The same of what is not subtracted."""
        x, target, weight, positive = (None if a is None else np.abs(a) for a in inputs)
        return np.asarray(operation.reference(x, -np.asarray(target), weight, positive))


@dataclass(frozen=True)
class ElementLossGradientCall(ElementLossCall):
    """dx from x, the target, the weights and dy: `scale` * dy times the slope of the losses."""

    scale: float = 1.0

    results = ("dx",)

    @property
    def takes(self) -> Mapping[str, Operand | None]:
        return {**super().takes, "dy": SCALAR}

    def on_piece(self, shape: Shape, dtype: str) -> Any:
        return ElementLossBackward(shape, dtype, self.mode, *self._weights(shape), self.scale)

    def size(self, operation: Any, inputs: list[Any]) -> Array:
        """Size of the terms: no part is larger than both together, by weights at their largest."""
        weight, positive = (1.0 if a is None else np.abs(a).max() for a in inputs[2:4])
        size = np.abs(inputs[0]) + np.abs(inputs[1]) + 1
        return np.asarray(4 * abs(self.scale * inputs[4][0]) * size * weight * (1 + positive))


@dataclass(frozen=True)
class TotalCall(BuiltCall):
    """The loss (1,) of the losses (n, rows): `scale` times their sum; if `divided`, by a divisor.

    The divisor is a total, too: that of the weights, `of_batch`. With beta losses of several heads
    add up, and of several parts of a batch; no plan cuts it.
    """

    shape: Shape
    scale: float = 1.0
    divided: bool = False
    of_batch: bool = False

    dtype = "float64"
    lead = "losses"
    results = ("loss",)
    reduced = ("n",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        divisor = {"divisor": SCALAR} if self.divided else {}
        axes = WHOLE if self.of_batch else frozenset({"n"})
        return {"losses": Operand(self.shape, "float64", axes), **divisor, "loss": SCALAR}

    @property
    def extents(self) -> Split:
        return Split(n=1 if self.of_batch else self.shape[0], c_y=1, c_x=1, h_y=1)

    def may_cut(self, axis: str) -> bool:
        return False

    def region(self, name: str, piece: Piece) -> Region:
        shape = self.operands[name].shape
        images = (0, shape[0]) if name != "losses" or self.of_batch else piece.n
        return (images, *((0, extent) for extent in shape[1:]))

    def build(self, build: Builder) -> None:
        inputs = ("losses", "divisor" if self.divided else "")
        operation = Total(build.buffers["losses"].shape, self.scale)
        build.make(operation, inputs, "loss", build.buffers["loss"].order)

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        losses = read("losses", self.region("losses", piece))
        divisor = read("divisor", ((0, 1),)) if self.divided else None
        total = Total(losses.shape, self.scale)
        value, size = (total.reference(each, divisor) for each in (losses, np.abs(losses)))
        return {"loss": (value, np.abs(size))}

    def rounding(self) -> Rounding:
        return Rounding(1, "float64", 8)
