"""The mean of each channel of each image, as a call that can be cut along rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.row_axis import height, replace_padding, tensor_region
from ooc_cudnn.operations.core.single_op import CUT, SingleOpCall
from ooc_cudnn.operations.pooling.forward import Pooling
from perfmodel import Split
from perfmodel.cached import cached_property


def of_all_sites(x_shape: Shape, dtype: str, mode: str = "average_include_padding") -> Pooling:
    """The pooling whose one window is all of x; its stride of 1 lets the gradient be cut anywhere.

    >>> of_all_sites((2, 3, 7, 5), "float32").output_shape
    (2, 3, 1, 1)
    """
    window = tuple(x_shape[2:])
    return Pooling(tuple(x_shape), window, (1,) * len(window), ((0, 0),) * len(window), mode, dtype)


@dataclass(frozen=True)
class GlobalAverageCall(SingleOpCall):
    """y (n, c, 1...) from x: cut along n, channels and rows; summed over rows.

    A piece is a pooling whose window is as large as all of x and whose padding is as many rows as
    are not in the piece: that divides by all there are. `PoolingGradientCall` of `of_all_sites` is
    its gradient.
    """

    shape: Shape
    dtype: str

    takes = ("x",)
    reduced = ("h_y",)
    loop_order = ("n", "c_y", "c_x", "h_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        means = (*self.shape[:2], *(1 for _ in self.shape[2:]))
        return {
            "x": Operand(self.shape, self.dtype, CUT),
            "y": Operand(means, self.dtype, frozenset({"n", "c_y"})),
        }

    @cached_property
    def extents(self) -> Split:
        n, c = self.shape[:2]
        return Split(n=n, c_y=c, c_x=1, h_y=height(self.shape, self.row_axis))

    def region(self, name: str, piece: Piece) -> Region:
        shape = self.operands[name].shape
        rows = (0, 1) if name == "y" else piece.h_y
        return tensor_region(shape, piece.n, piece.c_y, rows, self.row_axis)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> Pooling:
        shape = tuple(stop - start for start, stop in self.region("x", piece))
        window, nothing = self.shape[2:], ((0, 0),) * len(self.shape[2:])
        others = self.shape[self.row_axis] - shape[self.row_axis]
        padding = replace_padding(nothing, (0, others), self.row_axis)
        return Pooling(shape, window, window, padding, "average_include_padding", result_dtype)

    def rounding(self) -> Rounding:
        """All sites of a channel."""
        return Rounding(math.prod(self.shape[2:]), self.dtype)
