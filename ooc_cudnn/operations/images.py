"""Stored images, of integers, as maps: cast, and brought to a scale. They travel as integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.builder import Builder
from ooc_cudnn.operations.launches import Launchable
from ooc_cudnn.operations.op_tensor import wide_shape
from ooc_cudnn.operations.per_element import OneShape
from ooc_cudnn.operations.per_site import PerSite
from ooc_cudnn.operations.rows import broadcast_region, cut_axes
from ooc_cudnn.operations.single import CUT
from ooc_cudnn.operations.splittable import Operand, Piece, Region, Rounding
from ooc_cudnn.tensor import ACCUMULATOR, ITEM_BYTES
from perfmodel import Work, pass_work
from perfmodel.cached import cached_property

#: Types that images are stored in.
STORED = ("uint8", "uint16")


@dataclass(frozen=True)
class CastScale(OneShape):
    """y = (x - mean) * scale, from (x, mean, scale); computed in the arithmetic type of y.

    Parameters
    ----------
    shape : tuple of int
        Of x and y.
    stored : str
        The type of x.
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

    def work(self) -> Work:
        """A read of integers and a write."""
        elements = math.prod(self.shape)
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=float(elements * (ITEM_BYTES[self.stored] + ITEM_BYTES[self.dtype])),
            elements=elements,
            problem=f"from {self.stored}",
        )

    def reference(self, *inputs: Array) -> Array:
        x, mean, scale = (array.astype(np.float64) for array in inputs)
        mean, scale = (v.reshape(wide_shape(v.shape, x.ndim)) for v in (mean, scale))
        return (x - mean) * scale


@dataclass(frozen=True)
class StoredImages(PerSite):
    """y from x, mean and scale: cut along n, channels and rows."""

    shape: Shape
    stored: str
    mean_shape: Shape
    scale_shape: Shape
    dtype: str

    takes = ("x", "mean", "scale")

    def __post_init__(self) -> None:
        if self.stored not in STORED:
            raise TypeError(f"images must be {' or '.join(STORED)}, not {self.stored}")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        vectors = {
            name: Operand(shape, ACCUMULATOR[self.dtype], cut_axes(shape))
            for name, shape in (("mean", self.mean_shape), ("scale", self.scale_shape))
        }
        x = Operand(self.shape, self.stored, CUT)
        return {"x": x, **vectors, "y": Operand(self.shape, self.dtype, CUT)}

    def region(self, name: str, piece: Piece) -> Region:
        region, shape = super().region(name, piece), self.operands[name].shape
        return broadcast_region(shape, region) if len(shape) == 1 else region

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> CastScale:
        (mean,), (scale,) = self.region("mean", piece), self.region("scale", piece)
        return CastScale(
            self.piece_shape(piece), self.stored, (mean[1] - mean[0],), (scale[1] - scale[0],),
            result_dtype,
        )  # fmt: skip

    def build(self, build: Builder) -> None:
        """The vectors are taken in their own type, whatever that of the result is."""
        dtype, order = build.product_dtype("y"), build.buffers["y"].order
        operation = self.on_piece(build.piece, layout=order, result_dtype=dtype)
        build.make(operation, self.takes, "y", order)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        x, mean, scale = inputs
        size = operation.reference(x, -np.abs(mean), np.abs(scale))  # type: ignore[attr-defined]
        return operation.reference(*inputs), size  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype, 3)
