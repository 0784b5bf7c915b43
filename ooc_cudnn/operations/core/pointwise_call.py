"""Calls whose pieces are alike in all operands: each element, or each site, for itself."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding
from ooc_cudnn.operations.core.row_axis import tensor_region
from ooc_cudnn.operations.core.single_op import CUT, OneShapeCall, SingleOpCall
from perfmodel.cached import cached_property


class PointwiseCall(OneShapeCall, SingleOpCall):
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
