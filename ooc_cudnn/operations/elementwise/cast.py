"""The same numbers in another floating dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Read, Rounding
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.single_op import CUT, OneTyped
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class CastCall(PointwiseCall):
    """y of `dtype` from x of type `source`; backward dx of dy by the call the other way."""

    shape: Shape
    source: str
    dtype: str

    takes = ("x",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            "x": Operand(self.shape, self.source, CUT),
            "y": Operand(self.shape, self.dtype, CUT),
        }

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return Pointwise(self.piece_shape(piece), self.source, result_dtype)

    def build(self, build: Builder) -> None:
        """One pass, from x in y's memory order."""
        order = build.buffers["y"].order
        dtype = build.product_dtype("y")
        x = build.in_order("x", order)
        cast = self.on_piece(build.piece, layout=order, result_dtype=dtype)
        build.make(cast, (x, "", "", ""), "y", order, done=(x,))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        x = read("x", self.region("x", piece))
        return {"y": (x, np.abs(x))}

    def rounding(self) -> Rounding:
        """Once to y's type, or less where x's is the narrower one."""
        return Rounding(1, self.dtype)
