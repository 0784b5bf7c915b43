"""Base of elementwise operations: shapes, rows, pieces, work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.ranges import Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows
from ooc_cudnn.tensor import ITEM_BYTES
from perfmodel import Work, pass_work


class OneShape:
    """Mixin of a launch with the fields `shape` and `dtype`: its result has that shape."""

    shape: Shape
    dtype: str

    @property
    def output_shape(self) -> Shape:
        return self.shape

    def passes(
        self,
        kind: str,
        count: int,
        *,
        exponentials: int = 0,
        problem: str = "",
        one_in: str = "",
    ) -> Work:
        """Count reads and writes, one perhaps in another type, and exponentials an element."""
        elements = math.prod(self.shape)
        items = (count - 1) * ITEM_BYTES[self.dtype] + ITEM_BYTES[one_in or self.dtype]
        return pass_work(
            f"pointwise/{self.dtype}{kind}",
            device_bytes=float(elements * items),
            elements=elements,
            exponentials=exponentials * elements,
            problem=problem,
        )


class PerElement(OneShape):
    """Mixin of an operation that computes each element by itself: no halo, same shape out."""

    @property
    def input_shape(self) -> Shape:
        return self.shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        return Rows(*rows, 0, 0)

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> Self:
        shape = replace_rows((n, channels, *self.shape[2:]), rows.stop - rows.start, row_axis)
        return replace(self, shape=shape)  # type: ignore[type-var]  # it is mixed into dataclasses

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        """Magnitude of the result: that of x with the parameters' own size on top."""
        return self.reference(x, *(np.abs(p) for p in parameters))

    def reference(self, x: Array, *parameters: Array) -> Array:
        raise NotImplementedError

    def work(self) -> Work:
        """One read and one write of the tensor."""
        return self.passes("", 2)
