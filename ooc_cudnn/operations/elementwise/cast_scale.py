"""Stored images, of integers, as maps: cast, and brought to a scale. They travel as integers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.ranges import Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.elementwise.binary import wide_shape
from ooc_cudnn.tensor import ACCUMULATOR, ITEM_BYTES
from perfmodel import Work, pass_work

#: Types that images are stored in.
STORED = ("uint8", "int8", "uint16", "int16")


@dataclass(frozen=True)
class CastScale(PerElement):
    """y = (x - mean) * scale, from (x, mean, scale); computed in the arithmetic type of y.

    The first operation of a chain, whose x is then of integers.

    Parameters
    ----------
    shape : tuple of int
        Of x and y.
    stored : str
        The type of x, one of `STORED`.
    mean_shape, scale_shape : tuple of int
        (c,), or (1,); both vectors are of the arithmetic type.
    dtype : str
        Of y.
    """

    shape: Shape
    stored: str
    mean_shape: Shape
    scale_shape: Shape
    dtype: str

    name = "cast_scale"

    def __post_init__(self) -> None:
        if self.stored not in STORED:
            raise TypeError(f"images must be one of {', '.join(STORED)}, not {self.stored}")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        dtype = ACCUMULATOR[self.dtype]
        shapes = {"mean": self.mean_shape, "scale": self.scale_shape}
        return tuple(Parameter(name, shape, dtype) for name, shape in shapes.items())

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> CastScale:
        """Return it for `n` images, the given rows and channels; single values stay single."""
        made = super().on_piece(n, rows, channels, row_axis)
        mean, scale = (
            shape if shape == (1,) else (channels,) for shape in (self.mean_shape, self.scale_shape)
        )
        return replace(made, mean_shape=mean, scale_shape=scale)

    def work(self) -> Work:
        """A read of integers and a write."""
        elements = math.prod(self.shape)
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=float(elements * (ITEM_BYTES[self.stored] + ITEM_BYTES[self.dtype])),
            elements=elements,
            problem=f"from {self.stored}",
        )

    def reference(self, x: Array, *parameters: Array) -> Array:
        mean, scale = (
            vector.astype(np.float64).reshape(wide_shape(vector.shape, x.ndim))
            for vector in parameters
        )
        return (x.astype(np.float64) - mean) * scale

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        mean, scale = map(np.abs, parameters)
        return self.reference(x, -mean, scale)
