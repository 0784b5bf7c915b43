"""Two tensors into one, element by element, the second broadcast: cuDNN's OpTensor and AddTensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work

#: op -> float64 function of (a, b). minimum and maximum propagate NaN.
OPS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


@dataclass(frozen=True)
class OpTensor:
    """c = op(alpha_a * a, alpha_b * b), from (a, b); every extent of b is a's, or 1.

    c may be the same memory as a. With ``alpha_a == 0`` and op "add", a is absent and not read.

    Source: cudnnOpTensor; with op "add", cudnnAddTensor.

    Parameters
    ----------
    shape, b_shape : tuple of int
        Of a and c, and of b; as many axes.
    op : str
        One of `OPS`.
    """

    shape: Shape
    b_shape: Shape
    dtype: str
    op: str = "add"
    alpha_a: float = 1.0
    alpha_b: float = 1.0

    name = "op_tensor"

    @property
    def output_shape(self) -> Shape:
        """Shape of c, a's."""
        return self.shape

    def work(self) -> Work:
        """Read a and b, write c."""
        elements = math.prod(self.shape) * (2 if self.alpha_a else 1) + math.prod(self.b_shape)
        return Work(f"pointwise/{self.dtype}/op_tensor", 0.0, float(elements * DTYPES[self.dtype]))

    def reference(self, *inputs: Array) -> Array:
        """Evaluate in float64."""
        a, b = inputs
        b = self.alpha_b * np.broadcast_to(b.astype(np.float64), self.shape)
        if self.op == "add" and self.alpha_a == 0:
            return b
        return OPS[self.op](self.alpha_a * a.astype(np.float64), b)
