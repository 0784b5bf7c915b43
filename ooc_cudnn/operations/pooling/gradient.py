"""The gradient of pooling: what is launched on a piece, and the call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Pair, Range, Ranges, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, WindowRows, replace_rows, tensor_region
from ooc_cudnn.operations.core.single_op import ForwardTypedCall, SingleOpCall
from ooc_cudnn.operations.pooling.forward import Pooling
from perfmodel import Split, Work
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class PoolingBackward:
    """dx from (y, dy, x), or from (index, dy) of the maxima, for one piece.

    Parameters
    ----------
    forward : Pooling
        The pooling from the piece of x to the pieces of y and dy.
    rows : (start, stop)
        Rows of that x of which dx is asked.
    row_axis : int
        The axis that rows lie along.
    indexed : bool
        Whether a byte each says where the maxima are (`PoolingIndices`).

    Notes
    -----
    Source: cudnnPoolingBackward. A maximum's gradient goes to the first element of the window that
    equals y (NaN equals NaN), in row-major order, so every mode is deterministic. y and x are
    absent in average modes. Where windows overlap, gradients are summed in the arithmetic type.
    """

    forward: Pooling
    rows: Range
    row_axis: int = ROW_AXIS
    indexed: bool = False

    name = "pooling_backward"
    any_strides = True

    @property
    def dtype(self) -> str:
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return replace_rows(self.forward.x_shape, self.rows[1] - self.rows[0], self.row_axis)

    @property
    def origin(self) -> Shape:
        """Position in that x where dx begins, along each spatial axis."""
        first = (0,) * len(self.forward.x_shape)
        return replace_rows(first, self.rows[0], self.row_axis)[ROW_AXIS:]

    def work(self) -> Work:
        """Read y, dy and x, or dy and the indices; write dx."""
        forward = self.forward
        elements = math.prod(self.output_shape) + math.prod(forward.output_shape)
        if forward.is_max and not self.indexed:
            elements += math.prod(forward.x_shape) + math.prod(forward.output_shape)
        return forward.work_of("pooling_backward", elements)

    def reference(self, *inputs: Array | None) -> Array:
        """Scatter in float64; inputs are (y, dy, x). In average modes (dy,) will do."""
        forward = self.forward
        dx = np.zeros(forward.x_shape)
        if self.indexed:
            index, gradient = inputs
            assert index is not None
            assert gradient is not None
            for number, (outputs, seen) in enumerate(forward.taps()):
                dx[seen] += np.where(index[outputs] == number, gradient[outputs], 0.0)
            return dx[(*(slice(None),) * self.row_axis, slice(*self.rows))]
        y, dy, x = inputs if len(inputs) == 3 else (None, inputs[0], None)
        assert dy is not None
        dy = dy.astype(np.float64)
        if forward.is_max:
            assert y is not None
            assert x is not None
            taken = np.zeros(forward.output_shape, bool)
            for outputs, seen in forward.taps():
                same = (x[seen] == y[outputs]) | (np.isnan(x[seen]) & np.isnan(y[outputs]))
                fresh = same & ~taken[outputs]
                taken[outputs] |= fresh
                dx[seen] += np.where(fresh, dy[outputs], 0.0)
        else:
            dy /= forward.divisors()
            for outputs, seen in forward.taps():
                dx[seen] += dy[outputs]
        return dx[(*(slice(None),) * self.row_axis, slice(*self.rows))]


@dataclass(frozen=True)
class PoolingGradientCall(ForwardTypedCall, SingleOpCall):
    """dx from y, dy and x: cut along n, channels and rows of x. Averages need dy alone.

    `indexed` reads the index of each maximum, one byte, in place of y and x.

    Pieces of rows are multiples of the stride, so that all of them between the borders are alike.
    """

    forward: Pooling
    indexed: bool = False

    keeps_channels = True
    lead = "dy"
    results = ("dx",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y, dy and x; of averages dy."""
        if self.indexed:
            return ("index", "dy")
        return ("y", "dy", "x") if self.forward.is_max else ("", "dy", "")

    @property
    def compared(self) -> tuple[str, ...]:  # type: ignore[override]
        """Operands that tell, without an index, where maxima are: where x is y."""
        return tuple(name for name in ("x", "y") if name in self.takes)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        shapes = {"x": self.forward.x_shape, "dx": self.forward.x_shape}
        axes = frozenset({"n", "c_y", "h_y"})
        operands = {
            name: Operand(shapes.get(name, self.forward.output_shape), self.dtype, axes)
            for name in (*self.takes, "dx")
            if name
        }
        if self.indexed:
            operands["index"] = operands["index"]._replace(dtype="uint8")
        return operands

    @cached_property
    def extents(self) -> Split:
        n, c = self.forward.x_shape[:2]
        return Split(n=n, c_y=c, c_x=1, h_y=self.forward.x_shape[self.row_axis])

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows in multiples of the stride."""
        stride = self._window.stride if axis == "h_y" else 1
        return super().axis_ranges(axis, -(-size // stride) * stride)

    @cached_property
    def _window(self) -> WindowRows:
        return self.forward.window_rows(self.row_axis)

    def _outputs(self, h_y: Range) -> Rows:
        """Rows of y whose windows see rows `h_y` of x."""
        return self._window.contributing(h_y, self.forward.output_shape[self.row_axis])

    def inputs_of(self, h_y: Range) -> tuple[Range, Pair]:
        """Rows of x that the windows see which see `h_y`, it among them; and their padding."""
        rows = self._outputs(h_y)
        extent, window, stride, (padding, _), _ = self._window
        if rows.start == rows.stop:  # no window: a padding that gives no row of y
            return h_y, (0, window - 1 - (h_y[1] - h_y[0]))
        first = rows.start * stride - padding
        end = (rows.stop - 1) * stride - padding + window
        start = min(h_y[0], max(0, first))
        stop = max(h_y[1], min(extent, end))
        return (start, stop), (start - first, end - stop)

    def row_key(self, piece: Piece) -> Hashable:
        rows, (inputs, padding) = self._outputs(piece.h_y), self.inputs_of(piece.h_y)
        start = piece.h_y[0] - inputs[0]
        return rows.stop - rows.start, inputs[1] - inputs[0], start, padding

    def meets_border(self, piece: Piece) -> bool:
        rows, (inputs, _) = self._outputs(piece.h_y), self.inputs_of(piece.h_y)
        count = self.forward.output_shape[self.row_axis]
        ends = (rows.stop == count, inputs[1] == self._window.extent)
        return rows.start == 0 or inputs[0] == 0 or any(ends)

    def region(self, name: str, piece: Piece) -> Region:
        rows = piece.h_y
        if name in ("y", "dy", "index"):
            outputs = self._outputs(rows)
            rows = (outputs.start, outputs.stop)
        elif name == "x":
            rows, _ = self.inputs_of(rows)
        return tensor_region(self.operands[name].shape, piece.n, piece.c_y, rows, self.row_axis)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> PoolingBackward:
        inputs, padding = self.inputs_of(piece.h_y)
        forward = self.forward.on_piece(
            piece.n[1] - piece.n[0],
            Rows(*inputs, *padding),
            piece.c_y[1] - piece.c_y[0],
            self.row_axis,
        )
        start = piece.h_y[0] - inputs[0]
        rows = (start, start + piece.h_y[1] - piece.h_y[0])
        if forward.dtype != result_dtype:
            forward = replace(forward, dtype=result_dtype)
        return PoolingBackward(forward, rows, self.row_axis, self.indexed)

    def tile_rows(self, name: str, rows: Range) -> Range:
        """Dx is made for all of x that is looked at."""
        return self.inputs_of(rows)[0] if name == "dx" else super().tile_rows(name, rows)

    def on_tile(self, tile: Tile) -> Self:
        """Gradient of all windows that see the tile: they are inside what x is made of."""
        extents, padding = [], []
        for axis, rows in enumerate(tile.sites, ROW_AXIS):
            (start, stop), (before, after) = self.along(axis).inputs_of(rows)
            extents.append(stop - start)
            padding.append((before, max(0, after)))
        shape = (*tile.shape[:2], *extents)
        return replace(self, forward=replace(self.forward, x_shape=shape, padding=tuple(padding)))

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """The sum of absolute gradients, of the same maxima."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        at = 1 if len(inputs) > 1 else 0
        absolute = [np.abs(a) if i == at else a for i, a in enumerate(inputs)]
        return value, operation.reference(*absolute)  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        """Number of windows that can meet in one element."""
        return Rounding(math.prod(self.forward.window), self.dtype)
