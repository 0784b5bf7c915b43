"""The gradient of pooling, as a call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array
from ooc_cudnn.operations.pooling import Pooling, PoolingBackward
from ooc_cudnn.operations.rows import ROW_AXIS, WindowRows, tensor_region
from ooc_cudnn.operations.single import Single
from ooc_cudnn.operations.splittable import Launchable, Operand, Piece, Region, Rounding
from ooc_cudnn.operations.window import Pair, Range, Ranges, Rows, ranges
from perfmodel import Split
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class BackwardPooling(Single):
    """dx from y, dy and x: cut along n, channels and rows of x. Averages need dy alone.

    Pieces of rows are multiples of the stride, so that all of them between the borders are alike.
    """

    forward: Pooling
    alpha: float = 1.0
    beta: float = 0.0
    row_axis: int = ROW_AXIS

    lead = "dy"
    results = ("dx",)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """Of all operands."""
        return self.forward.dtype

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y, dy and x; of averages dy."""
        return ("y", "dy", "x") if self.forward.is_max else ("", "dy", "")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """What is taken, and dx."""
        shapes = {"x": self.forward.x_shape, "dx": self.forward.x_shape}
        axes = frozenset({"n", "c_y", "h_y"})
        return {
            name: Operand(shapes.get(name, self.forward.output_shape), self.dtype, axes)
            for name in (*self.takes, "dx")
            if name
        }

    @cached_property
    def extents(self) -> Split:
        """Images, channels, rows of x."""
        n, c = self.forward.x_shape[:2]
        return Split(n=n, c_y=c, c_x=1, h_y=self.forward.x_shape[self.row_axis])

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows in multiples of the stride."""
        stride = self._window.stride if axis == "h_y" else 1
        return ranges(getattr(self.extents, axis), -(-size // stride) * stride)

    @cached_property
    def _window(self) -> WindowRows:
        return self.forward.window_rows(self.row_axis)

    def _outputs(self, h_y: Range) -> Rows:
        """Rows of y whose windows see rows `h_y` of x."""
        return self._window.contributing(h_y, self.forward.output_shape[self.row_axis])

    def _inputs(self, h_y: Range) -> tuple[Range, Pair]:
        """Rows of x that those windows see, `h_y` among them, and the padding from there to y."""
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
        """Rows of y and of x, where those of dx are among them, and padding."""
        rows, (inputs, padding) = self._outputs(piece.h_y), self._inputs(piece.h_y)
        start = piece.h_y[0] - inputs[0]
        return rows.stop - rows.start, inputs[1] - inputs[0], start, padding

    def meets_border(self, piece: Piece) -> bool:
        """Whether y or x ends at one of these rows."""
        rows, (inputs, _) = self._outputs(piece.h_y), self._inputs(piece.h_y)
        count = self.forward.output_shape[self.row_axis]
        ends = (rows.stop == count, inputs[1] == self._window.extent)
        return rows.start == 0 or inputs[0] == 0 or any(ends)

    def region(self, name: str, piece: Piece) -> Region:
        """Region of an operand that a piece touches."""
        rows = piece.h_y
        if name in ("y", "dy"):
            outputs = self._outputs(rows)
            rows = (outputs.start, outputs.stop)
        elif name == "x":
            rows, _ = self._inputs(rows)
        return tensor_region(self.operands[name].shape, piece.n, piece.c_y, rows, self.row_axis)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> PoolingBackward:
        """The gradient of the pooling from those rows of x to those of y."""
        inputs, padding = self._inputs(piece.h_y)
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
        return PoolingBackward(forward, rows, self.row_axis)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """The sum of absolute gradients, of the same maxima."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        at = 1 if len(inputs) > 1 else 0
        absolute = [np.abs(a) if i == at else a for i, a in enumerate(inputs)]
        return value, operation.reference(*absolute)  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        """As many windows as can meet in one element."""
        return Rounding(math.prod(self.forward.window), self.dtype)
