"""Base of calls that move elements and compute nothing: y from x, image by image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Read, Rounding, random_range
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.row_axis import ROW_AXIS


class MoveCall(BuiltCall):
    """A call of an operation that copies, from and to any order of memory."""

    operation: Any

    reduced = ()

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return str(self.operation.dtype)

    @property
    def row_axes(self) -> tuple[int, ...]:
        return (ROW_AXIS,)

    @abstractmethod
    def on_piece(self, piece: Piece, dtype: str) -> Any:
        """Return the operation on a piece of data of that type."""

    def build(self, build: Builder) -> None:
        """Copy, from and to any order of memory."""
        dtype = build.product_dtype("y")
        x = build.taken("x", build.buffers["x"].order, dtype)
        operation = self.on_piece(build.piece, dtype)
        build.make(operation, (x,), "y", build.buffers["y"].order, done=(x,))

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()._replace(n=random_range(random, self.extents.n, 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        x = read("x", self.region("x", piece) or ())
        y = self.on_piece(piece, self.dtype).reference(x)
        return {"y": (y, np.abs(y))}

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype)
