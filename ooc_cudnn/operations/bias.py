"""Adding a bias: one value per output channel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array, Parameter, Shape
from ooc_cudnn.operations.window import Range, Rows
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work


@dataclass(frozen=True)
class AddTensor:
    """y = x + b, where b holds one value per channel.

    Source: cudnnAddTensor with a bias of shape (1, cY, 1, 1).
    """

    shape: Shape
    dtype: str = "float32"

    name = "add_tensor"

    @property
    def input_shape(self) -> Shape:
        """Shape of x."""
        return self.shape

    @property
    def output_shape(self) -> Shape:
        """Shape of y, x's."""
        return self.shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The bias b, one value per channel."""
        return (Parameter("b", (self.shape[1],)),)

    def input_rows(self, rows: Range) -> Rows:
        """Need the same rows."""
        return Rows(*rows, 0, 0)

    def on_piece(self, n: int, rows: Rows) -> AddTensor:
        """Return it for `n` images and the given rows."""
        return replace(self, shape=(n, self.shape[1], rows.stop - rows.start, *self.shape[3:]))

    def work(self) -> Work:
        """One read and one write of the tensor."""
        return Work(
            f"pointwise/{self.dtype}", 0.0, 2.0 * math.prod(self.shape) * DTYPES[self.dtype]
        )

    def reference(self, x: Array, *parameters: Array) -> Array:
        """Add in float64."""
        (b,) = parameters
        return x.astype(np.float64) + b.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))
