"""Activations of two slopes that save a bit an element for their gradient, in place of y or x.

Eight elements along the last axis share a byte, the first in the lowest bit: a 32nd of a map of
float32. Backward reads the bits and dy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.call import (
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    random_range,
)
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.ranges import Range, Ranges
from ooc_cudnn.operations.core.row_axis import tensor_region
from ooc_cudnn.operations.core.single_op import CUT, OneShapeCall
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work
from perfmodel.cached import cached_property

BITS = 8

#: mode -> whether an element's slope is 1, from (x, coef); elsewhere it is `slope_below`. Of NaN,
#: as `Mode.slope` has it.
PASSES: dict[str, Callable[[Array, float], Array]] = {
    "relu": lambda x, coef: ~(x <= 0),
    "clipped_relu": lambda x, coef: ~((x <= 0) | (x >= coef)),
    "leaky_relu": lambda x, coef: x > 0,
}


def slope_below(mode: str, coef: float) -> float | None:
    """The slope where the bit is 0; None where dx is 0 there, whatever dy is."""
    return coef if mode == "leaky_relu" else None


def mask_shape(shape: Shape) -> Shape:
    """The shape in bytes of the mask of a tensor.

    >>> mask_shape((2, 3, 5, 20)), mask_shape((4, 10))
    ((2, 3, 5, 3), (4, 2))
    """
    return (*shape[:-1], -(-shape[-1] // BITS))


def _bytes_of(region: Region) -> Region:
    start, stop = region[-1]
    return (*region[:-1], (start // BITS, -(-stop // BITS)))


@dataclass(frozen=True)
class SlopeMask(OneShape):
    """The mask from (x,): uint8, a bit an element; those past the last one are 0."""

    shape: Shape
    mode: str
    coef: float
    dtype: str

    name = "slope_mask"
    any_strides = True

    @property
    def output_shape(self) -> Shape:
        return mask_shape(self.shape)

    def work(self) -> Work:
        """A read."""
        return self.passes("", 1, problem="mask")

    def reference(self, *inputs: Array) -> Array:
        bits = PASSES[self.mode](inputs[0].astype(np.float64), self.coef)
        return np.packbits(bits, axis=-1, bitorder="little")


@dataclass(frozen=True)
class MaskedGradient(OneShape):
    """dx = dy where the bit is 1, else dy * slope, from (mask, dy); without a slope 0, selected."""

    shape: Shape
    slope: float | None
    dtype: str

    name = "masked_gradient"
    any_strides = True

    def work(self) -> Work:
        """A read and a write, and the bits."""
        elements = math.prod(self.shape)
        device_bytes = 2.0 * elements * DTYPES[self.dtype] + elements / BITS
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=device_bytes,
            elements=elements,
            problem="mask backward",
        )

    def reference(self, *inputs: Array) -> Array:
        mask, dy = inputs
        bits = np.unpackbits(
            mask.astype(np.uint8), axis=-1, count=self.shape[-1], bitorder="little"
        )
        dy = dy.astype(np.float64)
        return np.where(bits == 1, dy, 0.0 if self.slope is None else dy * self.slope)


class Bitwise(OneShapeCall):
    """A call of one shape with a mask; pieces of the last axis are whole bytes."""

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: that of the bits in multiples of eight."""
        of_bits = "c_y" if len(self.shape) == 2 else "h_y"
        if axis == of_bits and (axis == "c_y" or self.row_axis == len(self.shape) - 1):
            size = -(-size // BITS) * BITS
        return super().axis_ranges(axis, size)

    def region(self, name: str, piece: Piece) -> Region:
        region = tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        return _bytes_of(region) if name == "mask" else region

    @property
    def mask(self) -> Operand:
        """The operand that holds the bits."""
        return Operand(mask_shape(self.shape), "uint8", CUT)


@dataclass(frozen=True)
class MaskedActivationCall(Bitwise):
    """y = f(x), and the mask that its gradient reads; for modes of `PASSES`.

    Of leaky_relu, the slopes are 1 and coef, whatever its sign.
    """

    shape: Shape
    mode: str
    coef: float
    dtype: str

    results = ("y", "mask")
    reduced = ()

    def __post_init__(self) -> None:
        if self.mode not in PASSES:
            raise ValueError(f"mode must be one of {', '.join(PASSES)}, not {self.mode!r}")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        data = Operand(self.shape, self.dtype, CUT)
        return {"x": data, "y": data, "mask": self.mask}

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return ("x", "y") if self.beta else ("x",)

    def scaling(self, result: str) -> tuple[float, float]:
        return (self.alpha, self.beta) if result == "y" else (1.0, 0.0)

    def build(self, build: Builder) -> None:
        shape, have = self.piece_shape(build.piece), build.buffers["x"]
        build.launch(SlopeMask(shape, self.mode, self.coef, self.dtype), ("x",), "mask")
        function = Pointwise(shape, have.dtype, have.dtype, self.mode, self.coef)
        build.finish("x", "y", function)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of a few channels of one image, whole bytes of the mask."""
        whole = self.extents

        def few(axis: str) -> Range:
            ranges = self.axis_ranges(axis, 2)
            return ranges[int(random.integers(len(ranges)))]

        return Piece(random_range(random, whole.n, 1), few("c_y"), few("h_y"), (0, 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        x = read("x", self.region("x", piece))
        mask = SlopeMask(x.shape, self.mode, self.coef, self.dtype).reference(x)
        value = MODES[self.mode].value(x, self.coef)
        size = np.abs(x) * max(1.0, abs(self.coef))
        return {"y": (value, size), "mask": (mask.astype(np.float64), np.zeros(mask.shape))}

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype, 2)


@dataclass(frozen=True)
class MaskedActivationGradientCall(Bitwise, PointwiseCall):
    """dx from the mask and dy."""

    shape: Shape
    mode: str
    coef: float
    dtype: str

    lead = "dy"
    takes = ("mask", "dy")
    may_be_in_place = True
    results = ("dx",)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        data = Operand(self.shape, self.dtype, CUT)
        return {"mask": self.mask, "dy": data, "dx": data}

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> MaskedGradient:
        slope = slope_below(self.mode, self.coef)
        return MaskedGradient(self.piece_shape(piece), slope, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        return value, np.abs(value)
