"""Two tensors into one, element by element, the second broadcast: OpTensor, and adding a bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.ranges import Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, broadcast_region, cut_axes
from ooc_cudnn.operations.core.single_op import CUT
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work
from perfmodel.cached import cached_property

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
    any_strides = True

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


@dataclass(frozen=True)
class AdditionCall(PointwiseCall):
    """alpha_b * b + alpha_y * y, b broadcast, in place on y or, `apart`, into another tensor.

    The coefficients are the operation's own: in place, y is read because alpha_y is not 0. Where
    that is 0, beta adds to what y was.
    """

    shape: Shape
    b_shape: Shape
    dtype: str
    alpha_b: float = 1.0
    alpha_y: float = 1.0
    apart: bool = False

    keeps_channels = True
    lead = "y"

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y itself, or what is written apart from it."""
        return ("out",) if self.apart else ("y",)

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y and b; y is absent where its factor is 0."""
        return ("y" if self.alpha_y else "", "b")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        axes = cut_axes(self.b_shape, self.row_axis)
        whole = Operand(self.shape, self.dtype, CUT)
        found = {"b": Operand(self.b_shape, self.dtype, axes), "y": whole}
        return {**found, "out": whole} if self.apart else found

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        taken = (*self.takes, *(self.results if self.beta else ()))
        return tuple(name for name in self.operands if name in taken)

    def region(self, name: str, piece: Piece) -> Region:
        """The same for all but b; of b, all of what is broadcast."""
        region = super().region(name, piece)
        return broadcast_region(self.b_shape, region) if name == "b" else region

    def on_tile(self, tile: Tile) -> Self:
        met = zip(self.b_shape, tile.shape, strict=True)
        b_shape = tuple(1 if own == 1 else extent for own, extent in met)
        return replace(self, shape=tile.shape, b_shape=b_shape)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OpTensor:
        b_shape = tuple(stop - start for start, stop in self.region("b", piece))
        return OpTensor(
            self.piece_shape(piece), b_shape, result_dtype, "add", self.alpha_y, self.alpha_b
        )

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        x, b = inputs if len(inputs) > 1 else (np.zeros(1), inputs[0])
        value = operation.reference(x, b)  # type: ignore[attr-defined]
        return value, np.abs(self.alpha_y * x) + np.abs(self.alpha_b * b)

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype, 2)
