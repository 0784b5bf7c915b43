"""The gradient of a convolution with respect to its data, as a call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import ALIGNED_CHANNELS, PRECISIONS
from ooc_cudnn.operations.convolution.gradients import AddedBackwardData, ConvolutionBackwardData
from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.ranges import Range, Ranges, Rows, grouped_ranges, ranges
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_padding, tensor_region
from ooc_cudnn.operations.core.single_op import ForwardTypedCall, SingleOpCall
from perfmodel import Split
from perfmodel.cached import cached_property


def is_added_at_once(forward: Convolution, layout: str) -> bool:
    """True if a data gradient is to be one launch with the addition to another one.

    Otherwise it takes a product in float32, for a sum is rounded once, and a pass. On an H200
    (cuDNN 9.19), 256 images of ResNet-50's blocks take 0.45 to 0.62 of the time in bfloat16 and
    float16, and 0.58 to 0.72 in TF32 but for the smallest maps (1.07).

    Examples
    --------
    >>> inner = Convolution.of((8, 64, 56, 56), (256, 64, 1, 1), dtype="bfloat16")
    >>> is_added_at_once(inner, "channels_last"), is_added_at_once(inner, "channels_first")
    (True, False)
    """
    return (
        layout == "channels_last"
        and forward.precision in PRECISIONS
        and forward.groups == 1
        and forward.x_shape[1] % ALIGNED_CHANNELS == 0
        and forward.w_shape[0] % ALIGNED_CHANNELS == 0
        and min(forward.output_shape) > 0
        and all(min(pair) >= 0 for pair in forward.padding)
    )


def make_data_gradient(
    build: Builder,
    operation: ConvolutionBackwardData,
    sources: tuple[str, ...],
    order: str,
    *,
    done: tuple[str, ...] = (),
) -> None:
    """Make dx, or add it to what is there: `Builder.make`, in one launch where that pays."""
    forward, dtype = operation.forward, build.buffers["dx"].dtype
    adds = build.call.scaling("dx") == (1, 1) and not build.accumulating
    fits = dtype == forward.dtype and build.buffers["dx"].order == order
    if adds and fits and is_added_at_once(forward, order):
        build.launch(AddedBackwardData(forward, dtype), (*sources, "dx"), "dx")
        build.release(*done)
    else:
        build.make(operation, sources, "dx", order, done=done)


@dataclass(frozen=True)
class DataGradientCall(ForwardTypedCall, SingleOpCall):
    """dx from w and dy: cut along n, the channels of x (cX) and its rows; summed over cY.

    Pieces of rows are multiples of the stride, so that all of them between the borders are alike.
    """

    forward: Convolution

    lead = "dy"
    results = ("dx",)
    takes = ("w", "dy")
    windowed = True
    reduced = ("c_y",)
    loop_order = ("n", "c_x", "h_y", "c_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        forward = self.forward
        grouped = {"c_x"} if forward.groups > 1 else set()
        return {
            "w": Operand(forward.w_shape, self.dtype, frozenset({"c_y", "c_x"})),
            "dy": Operand(
                forward.output_shape, self.dtype, frozenset({"n", "c_y", "h_y"} | grouped)
            ),
            "dx": Operand(forward.x_shape, self.dtype, frozenset({"n", "c_x", "h_y"})),
        }

    @cached_property
    def extents(self) -> Split:
        n, c_x = self.forward.x_shape[:2]
        h_x = self.forward.x_shape[self.row_axis]
        return Split(n=n, c_y=self.forward.w_shape[0] // self.forward.groups, c_x=c_x, h_y=h_x)

    def is_legal(self, split: Split) -> bool:
        """CY is not cut beside pieces of cX that hold several groups."""
        if self.forward.groups == 1 or split.c_y >= self.extents.c_y:
            return True
        return split.c_x <= self.forward.c_x_extent

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows in multiples of the stride, channels inside groups."""
        extent = getattr(self.extents, axis)
        if axis == "h_y":
            stride = self.forward.window_rows(self.row_axis).stride
            return ranges(extent, -(-size // stride) * stride)
        if axis == "c_x":
            return grouped_ranges(extent, self.forward.c_x_extent, size)
        return ranges(extent, size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        """Pieces of cX in one group see one region of dy."""
        if name == "dy" and axis == "c_x":
            return self.forward.places(cut)
        return super().distinct(name, axis, cut)

    def _channels(self, c_x: Range, c_y: Range) -> Range:
        """Channels of dy that channels `c_x` of x go to, in the range `c_y` of their group."""
        per_group = self.forward.w_shape[0] // self.forward.groups
        first, last = (channel // self.forward.c_x_extent for channel in (c_x[0], c_x[1] - 1))
        return first * per_group + c_y[0], last * per_group + c_y[1]

    def _rows(self, h_y: Range) -> Rows:
        count = self.forward.output_shape[self.row_axis]
        return self.forward.window_rows(self.row_axis).contributing(h_y, count)

    def row_key(self, piece: Piece) -> Hashable:
        rows = self._rows(piece.h_y)
        return rows.stop - rows.start, rows.before, rows.after

    def meets_border(self, piece: Piece) -> bool:
        rows = self._rows(piece.h_y)
        return rows.start == 0 or rows.stop == self.forward.output_shape[self.row_axis]

    def region(self, name: str, piece: Piece) -> Region:
        shape = self.operands[name].shape
        channels = self._channels(piece.c_x, piece.c_y)
        if name == "dx":
            return tensor_region(shape, piece.n, piece.c_x, piece.h_y, self.row_axis)
        if name == "dy":
            rows = self._rows(piece.h_y)
            return tensor_region(shape, piece.n, channels, (rows.start, rows.stop), self.row_axis)
        per_group = self.forward.c_x_extent
        first = piece.c_x[0] // per_group * per_group
        inputs = (0, per_group)
        if piece.c_x[1] <= first + per_group:
            inputs = (piece.c_x[0] - first, piece.c_x[1] - first)
        return (channels, inputs, *((0, extent) for extent in shape[2:]))

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> ConvolutionBackwardData:
        rows = self._rows(piece.h_y)
        w, dx = (
            tuple(stop - start for start, stop in self.region(name, piece)) for name in ("w", "dx")
        )
        padding = replace_padding(self.forward.padding, (rows.before, rows.after), self.row_axis)
        groups = max(1, dx[1] // w[1])
        forward = self.forward.resized(dx, w, padding, groups, layout)
        return ConvolutionBackwardData(forward, result_dtype)

    def build(self, build: Builder) -> None:
        order = build.layout
        dtype = build.product_dtype("dx")
        operation = self.on_piece(build.piece, layout=order, result_dtype=dtype)
        w, dy = (build.taken(name, order, operation.dtype) for name in self.takes)
        make_data_gradient(build, operation, (w, dy), order, done=(w, dy))

    def on_tile(self, tile: Tile) -> Self:
        forward, padding = self.forward, []
        for axis, rows in enumerate(tile.sites, ROW_AXIS):
            count = forward.output_shape[axis]
            needed = forward.window_rows(axis).contributing(rows, count)
            padding.append((needed.before, needed.after))
        images, _, *sites = tile.shape
        shape = (images, forward.x_shape[1], *sites)
        convolution = forward.resized(shape, forward.w_shape, tuple(padding), forward.groups)
        return replace(self, forward=convolution)

    def rounding(self) -> Rounding:
        forward = self.forward
        terms = forward.w_shape[0] // forward.groups * math.prod(forward.w_shape[2:])
        return Rounding(terms, forward.precision)
