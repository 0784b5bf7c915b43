"""The gradient of a convolution with respect to its filter, as a call."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardFilter
from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.operation import Shape, on_sites
from ooc_cudnn.operations.core.ranges import Ranges
from ooc_cudnn.operations.core.row_axis import tensor_region
from ooc_cudnn.operations.core.single_op import ForwardTypedCall, SingleOpCall
from perfmodel import Split
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class FilterGradientCall(ForwardTypedCall, SingleOpCall):
    """dw from x and dy: cut along cY and cX; summed over n and hY on the device, leaving once."""

    forward: Convolution

    results = ("dw",)
    takes = ("x", "dy")
    windowed = True
    reduced = ("n", "h_y")
    loop_order = ("c_y", "c_x", "n", "h_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        forward = self.forward
        grouped = {"c_y"} if forward.groups > 1 else set()
        return {
            "x": Operand(forward.x_shape, self.dtype, frozenset({"n", "h_y", "c_x"} | grouped)),
            "dy": Operand(forward.output_shape, self.dtype, frozenset({"n", "c_y", "h_y"})),
            "dw": Operand(forward.w_shape, self.dtype, frozenset({"c_y", "c_x"})),
        }

    @cached_property
    def extents(self) -> Split:
        n, c_y = self.forward.output_shape[:2]
        h_y = self.forward.output_shape[self.row_axis]
        return Split(n=n, c_y=c_y, c_x=self.forward.c_x_extent, h_y=h_y)

    def is_legal(self, split: Split) -> bool:
        """CX is not cut beside pieces of cY that hold several groups."""
        return split.c_x >= self.extents.c_x or self.forward.c_x_may_be_cut(split.c_y)

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis; no range of channels straddles a group."""
        return self.forward.c_y_ranges(size) if axis == "c_y" else super().axis_ranges(axis, size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        """Pieces of cY in one group see one region of x."""
        if name == "x" and axis == "c_y":
            return self.forward.places(cut)
        return super().distinct(name, axis, cut)

    def row_key(self, piece: Piece) -> Hashable:
        rows = self.forward.input_rows(piece.h_y, self.row_axis)
        return rows.stop - rows.start, rows.before, rows.after

    def meets_border(self, piece: Piece) -> bool:
        rows = self.forward.input_rows(piece.h_y, self.row_axis)
        return bool(rows.before or rows.after)

    def region(self, name: str, piece: Piece) -> Region:
        shape = self.operands[name].shape
        if name == "dy":
            return tensor_region(shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        if name == "dw":
            return (piece.c_y, piece.c_x, *((0, extent) for extent in shape[2:]))
        rows = self.forward.input_rows(piece.h_y, self.row_axis)
        channels = self.forward.input_channels(piece.c_y, piece.c_x)
        return tensor_region(shape, piece.n, channels, (rows.start, rows.stop), self.row_axis)

    def on_piece(
        self, piece: Piece, *, layout: str, result_dtype: str
    ) -> ConvolutionBackwardFilter:
        forward = self.forward.on_channels(
            piece.n[1] - piece.n[0],
            piece.c_y,
            piece.c_x,
            self.forward.input_rows(piece.h_y, self.row_axis),
            layout,
            self.row_axis,
        )
        return ConvolutionBackwardFilter(forward, result_dtype)

    @property
    def tile_shape(self) -> Shape:
        """Dy's: both x and dy are streamed."""
        return self.forward.output_shape

    def on_tile(self, tile: Tile) -> Self:
        images, channels = tile.shape[0], self.forward.x_shape[1]
        forward, _ = on_sites(self.forward, images, channels, tile.sites)
        return replace(self, forward=forward)

    def rounding(self) -> Rounding:
        n, _, *sites = self.forward.output_shape
        return Rounding(n * math.prod(sites), self.forward.precision)
