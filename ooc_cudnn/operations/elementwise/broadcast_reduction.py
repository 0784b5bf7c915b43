"""The gradient of an operand that was broadcast: sums over what it was broadcast along.

A bias, a factor of each channel, a scalar, what squeeze-and-excitation multiplies a channel of an
image by, a gate of one channel, the slopes of a PReLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.row_axis import broadcast_region, cut_axes
from ooc_cudnn.operations.core.single_op import CUT
from ooc_cudnn.operations.elementwise.binary import wide_shape
from perfmodel import Work
from perfmodel.cached import cached_property

#: What is summed of (dy, x): of a factor, and of a PReLU's slope, where x > 0 selects 0.
TERMS: dict[str, Callable[[Array, Array], Array]] = {
    "x": lambda dy, x: dy * x,
    "negative_x": lambda dy, x: np.where(x > 0, 0.0, dy * x),
}


@dataclass(frozen=True)
class BroadcastSum(OneShape):
    """db from (dy,), or with a factor from (dy, x): the sum of dy, or of what is made of both.

    Summed in float64 over all that b was broadcast along, rounded once to `result_dtype`.

    Source: cudnnConvolutionBackwardBias; cudnnReduceTensor.

    Parameters
    ----------
    shape : tuple of int
        Of dy, and x: n, c, spatial.
    b_shape : tuple of int
        Of db: as many axes with extents of dy's or 1, the spatial ones all 1; or (c,), or (1,); or
        of a sum over channels alone, (n, 1, spatial).
    factor : str
        "", or one of `TERMS`.
    """

    shape: Shape
    b_shape: Shape
    dtype: str
    result_dtype: str
    factor: str = ""

    name = "broadcast_sum"
    any_strides = True

    def __post_init__(self) -> None:
        wide = self.wide
        fits = zip(wide[:2], self.shape[:2], strict=True)
        known = math.prod(wide[2:]) == 1 or self.is_by_site
        if any(own not in (1, extent) for own, extent in fits) or not known:
            raise ValueError(
                f"the gradient of an operand of shape {self.b_shape} broadcast to {self.shape} is "
                "not known: it must have one value in all, or per channel, per image, per channel "
                "of an image, or per site of an image"
            )

    @property
    def wide(self) -> Shape:
        """Shape of db with as many axes as dy."""
        return wide_shape(self.b_shape, len(self.shape))

    @property
    def is_by_site(self) -> bool:
        """True if each site of each image has a sum, over its channels."""
        return self.wide == (self.shape[0], 1, *self.shape[2:])

    @property
    def output_shape(self) -> Shape:
        return self.b_shape

    def work(self) -> Work:
        """One read of each operand."""
        kept = "sites" if self.is_by_site else self.wide[:2]
        return self.passes("/channel_sum", 1 + bool(self.factor), problem=f"{self.factor} {kept}")

    def reference(self, *inputs: Array) -> Array:
        terms = inputs[0].astype(np.float64)
        if self.factor:
            terms = TERMS[self.factor](terms, inputs[1].astype(np.float64))
        axes = tuple(axis for axis, extent in enumerate(self.wide) if extent == 1)
        return np.asarray(terms.sum(axis=axes)).reshape(self.b_shape)


@dataclass(frozen=True)
class BroadcastGradientCall(PointwiseCall):
    """db from dy, or from dy and x: cut along what b has, summed over the rest on the device.

    A piece of db leaves once. Without `b_shape` it is that of a bias, one value per channel.
    """

    shape: Shape
    dtype: str
    b_shape: Shape = ()
    factor: str = ""

    lead = "dy"
    results = ("db",)

    def __post_init__(self) -> None:
        if not self.b_shape:
            object.__setattr__(self, "b_shape", (self.shape[1],))
        BroadcastSum(self.shape, self.b_shape, self.dtype, self.dtype, self.factor)  # it fits

    @cached_property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dy, and x where it makes the factor."""
        return ("dy", "x") if self.factor else ("dy",)

    @cached_property
    def reduced(self) -> tuple[str, ...]:  # type: ignore[override]
        """Axes that b was broadcast along."""
        kept = cut_axes(self.b_shape, self.row_axis)
        return tuple(axis for axis in ("n", "c_y", "h_y") if axis not in kept)

    @cached_property
    def loop_order(self) -> tuple[str, ...]:  # type: ignore[override]
        """Sums innermost."""
        kept = (axis for axis in ("c_y", "n", "h_y") if axis not in self.reduced)
        return (*kept, "c_x", *self.reduced)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        found = {name: Operand(self.shape, self.dtype, CUT) for name in self.takes}
        axes = cut_axes(self.b_shape, self.row_axis)
        return {**found, "db": Operand(self.b_shape, self.dtype, axes)}

    def region(self, name: str, piece: Piece) -> Region:
        region = super().region(name, piece)
        return broadcast_region(self.b_shape, region) if name == "db" else region

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> BroadcastSum:
        b_shape = tuple(stop - start for start, stop in self.region("db", piece))
        shape = self.piece_shape(piece)
        return BroadcastSum(shape, b_shape, self.dtype, result_dtype, self.factor)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """The size is that of the same sum of absolute values."""
        dy, *x = inputs
        sizes = np.abs(TERMS[self.factor](dy, x[0]) if self.factor else dy)
        plain = BroadcastSum(dy.shape, operation.b_shape, self.dtype, "float64")  # type: ignore[attr-defined]
        return operation.reference(*inputs), plain.reference(sizes)  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        """Sums are made in float64 and rounded once a piece."""
        terms = math.prod(self.shape) // math.prod(self.b_shape)
        return Rounding(terms, self.dtype, 2 if self.factor else 1)
