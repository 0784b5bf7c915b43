"""The gradient of what is made of runs of neighbours, as a call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.ranges import Range, Ranges, in_cycles
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows, tensor_region
from ooc_cudnn.operations.core.single_op import CUT, ForwardTypedCall, SingleOpCall
from ooc_cudnn.operations.resampling.axis_windows import (
    AxisWindows,
    cycles,
    is_clipped,
    outputs_reaching,
    seen_range,
    shift_range,
)
from ooc_cudnn.operations.resampling.forward import Resampling, ResamplingBackward
from perfmodel import Split
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class ResamplingGradientCall(ForwardTypedCall, SingleOpCall):
    """dx from dy, of maxima from y, dy and x: cut along n, channels and rows of x."""

    forward: Resampling

    lead = "dy"
    results = ("dx",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y, dy and x; of sums dy."""
        return ("y", "dy", "x") if self.forward.is_max else ("dy",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        inputs, outputs = self.forward.input_shape, self.forward.output_shape
        shapes = {"x": inputs, "dx": inputs}
        return {
            name: Operand(shapes.get(name, outputs), self.dtype, CUT)
            for name in (*self.takes, "dx")
        }

    @cached_property
    def extents(self) -> Split:
        n, c = self.forward.lead
        return Split(n=n, c_y=c, c_x=1, h_y=self.forward.input_shape[self.row_axis])

    def _outputs(self, h_y: Range) -> Range:
        """Rows of y that see rows `h_y` of x."""
        return outputs_reaching(self._windows, h_y)

    def _inputs(self, h_y: Range) -> Range:
        """Rows of x that those rows of y see, `h_y` among them; of sums no more than `h_y`."""
        if not self.forward.is_max:
            return h_y
        rows = seen_range(self._windows, self._outputs(h_y))
        return min(rows[0], h_y[0]), max(rows[1], h_y[1])

    @cached_property
    def _windows(self) -> AxisWindows:
        return self.forward.windows[self.row_axis - ROW_AXIS]

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows in whole cycles, so that pieces are alike, but for the borders."""
        if axis == "h_y":
            size = in_cycles(size, self.forward.cycle(self.row_axis).elements, self.extents.h_y)
        return super().axis_ranges(axis, size)

    def _cycles(self, h_y: Range) -> int:
        """Number of cycles further up at which rows are seen in the same way."""
        return cycles(self._windows, self._outputs(h_y), margin=1)

    def row_key(self, piece: Piece) -> Hashable:
        return piece.h_y[0] - self._cycles(piece.h_y) * self.forward.cycle(self.row_axis).elements

    def meets_border(self, piece: Piece) -> bool:
        return is_clipped(self._windows, self._outputs(piece.h_y), margin=1)

    def region(self, name: str, piece: Piece) -> Region:
        rows = piece.h_y
        if name in ("y", "dy"):
            rows = self._outputs(rows)
        elif name == "x":
            rows = self._inputs(rows)
        return tensor_region(self.operands[name].shape, piece.n, piece.c_y, rows, self.row_axis)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> ResamplingBackward:
        axis, forward = self.row_axis - ROW_AXIS, self.forward
        lead = (piece.n[1] - piece.n[0], piece.c_y[1] - piece.c_y[0])
        # Of pieces that are seen in the same way the first: they launch the same.
        cycle, up = forward.cycle(self.row_axis), self._cycles(piece.h_y)
        outputs = shift_range(self._outputs(piece.h_y), -up * cycle.outputs)
        rows, inputs = (
            shift_range(part, -up * cycle.elements) for part in (piece.h_y, self._inputs(piece.h_y))
        )
        makes, reads = (replace_rows(forward.reads, part, axis) for part in (rows, inputs))
        part = forward.part(lead, replace_rows(forward.makes, outputs, axis), reads)
        return ResamplingBackward(replace(part, dtype=result_dtype), makes)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """The sum of absolute gradients, of the same maxima."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        at = len(inputs) // 2
        absolute = [np.abs(a) if i == at else a for i, a in enumerate(inputs)]
        return value, operation.reference(*absolute)  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        """Number of outputs that can see one element."""
        windows = self.forward.windows
        return Rounding(math.prod(-(-2 * w.count // w.extent) + 2 for w in windows), self.dtype, 4)
