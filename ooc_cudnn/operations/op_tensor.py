"""Two tensors into one, element by element, the second broadcast: OpTensor, and adding a bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array, Parameter, Shape
from ooc_cudnn.operations.per_element import PerElement
from ooc_cudnn.operations.rows import ROW_AXIS
from ooc_cudnn.operations.window import Rows
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work

#: op -> float64 function of (a, b). minimum and maximum propagate NaN.
OPS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}

#: Beside these, what is no function of cuDNN's: PReLU, b the slopes; and a / b.
COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    **OPS,
    "divide": np.divide,
    "prelu": lambda a, b: np.where(a > 0, a, a * b),
}


def wide_shape(shape: Shape, axes: int) -> Shape:
    """The shape of an operand that is broadcast, with so many axes: a vector is of channels.

    >>> wide_shape((3,), 4), wide_shape((2, 1, 1), 3)
    ((1, 3, 1, 1), (2, 1, 1))
    """
    return (1, shape[0], *[1] * (axes - 2)) if len(shape) == 1 else shape


def check_broadcast(shape: Shape, whole: Shape, of: str) -> None:
    """Raise ValueError unless every extent of b is that of the tensor it meets, or 1."""
    fits = len(shape) == len(whole) and all(
        own in (1, extent) for own, extent in zip(shape, whole, strict=True)
    )
    if not fits:
        raise ValueError(
            f"b must have the shape of {of}, {whole}, with any extent 1, or shape ({whole[1]},), "
            f"not {shape}"
        )


@dataclass(frozen=True)
class OpTensor(PerElement):
    """c = op(alpha_a * a, alpha_b * b), from (a, b); every extent of b is a's, or 1, or it is (c,).

    c may be the same memory as a. With ``alpha_a == 0`` and op "add", a is absent and not read.

    Source: cudnnOpTensor; with op "add", cudnnAddTensor.

    Parameters
    ----------
    shape, b_shape : tuple of int
        Of a and c, and of b: as many axes, or (c,), or (1,).
    op : str
        One of `COMBINED`.
    """

    shape: Shape
    b_shape: Shape
    dtype: str
    op: str = "add"
    alpha_a: float = 1.0
    alpha_b: float = 1.0

    name = "op_tensor"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("w" if self.op == "prelu" else "b", self.b_shape),)

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> OpTensor:
        """Return it for `n` images, the given rows and channels; b stays 1 wide where it is."""
        made = super().on_piece(n, rows, channels, row_axis)
        wide = wide_shape(self.b_shape, len(made.shape))
        b_shape = tuple(1 if b == 1 else e for e, b in zip(made.shape, wide, strict=True))
        return replace(made, b_shape=b_shape[1:2] if len(self.b_shape) == 1 else b_shape)

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        op = {"minimum": "maximum", "prelu": "multiply"}.get(self.op, self.op)
        made = replace(self, op=op, alpha_a=abs(self.alpha_a), alpha_b=abs(self.alpha_b))
        size = made.reference(x, *(np.abs(p) for p in parameters))
        return np.maximum(size, np.abs(x)) if self.op == "prelu" else size

    def work(self) -> Work:
        elements = math.prod(self.shape) * (2 if self.alpha_a else 1) + math.prod(self.b_shape)
        return pass_work(
            f"pointwise/{self.dtype}/op_tensor",
            device_bytes=elements * DTYPES[self.dtype],
            elements=math.prod(self.shape),
            problem=f"{self.op}, b {''.join('.1'[extent == 1] for extent in self.b_shape)}",
        )

    def reference(self, x: Array, *parameters: Array) -> Array:
        a, (b,) = x, parameters
        b = b.astype(np.float64).reshape(wide_shape(self.b_shape, len(self.shape)))
        b = self.alpha_b * np.broadcast_to(b, self.shape)
        if self.op == "add" and self.alpha_a == 0:
            return b
        return COMBINED[self.op](self.alpha_a * a.astype(np.float64), b)


@dataclass(frozen=True)
class AddTensor(PerElement):
    """y = x + b, where b holds one value per channel.

    Source: cudnnAddTensor with a bias of shape (1, cY, 1, 1).
    """

    shape: Shape
    dtype: str = "float32"

    name = "add_tensor"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("b", (self.shape[1],)),)

    def reference(self, x: Array, *parameters: Array) -> Array:
        (b,) = parameters
        return x.astype(np.float64) + b.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))
