"""The index of the largest channel at each site: labels of a segmentation, in one or two bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region, Rounding, Tile
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import tensor_region
from ooc_cudnn.operations.core.single_op import CUT, OneShapeCall, OneTyped, SingleOpCall
from ooc_cudnn.tensor import INTEGERS, ITEM_BYTES
from perfmodel import Work, pass_work
from perfmodel.cached import cached_property

SITES = frozenset({"n", "h_y"})


@dataclass(frozen=True)
class ChannelArgmax:
    """y from (x,): the first of the largest channels of each site; NaN is larger than all numbers.

    Source: torch.argmax over axis 1, which is kept, with extent 1.

    Parameters
    ----------
    shape : tuple of int
        Of x.
    dtype : str
        Of x.
    labels : str
        The type of y.
    """

    shape: Shape
    dtype: str
    labels: str

    name = "channel_argmax"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], 1, *self.shape[2:])

    def work(self) -> Work:
        """A read, and a write of labels."""
        elements, sites = math.prod(self.shape), math.prod(self.output_shape)
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=float(elements * ITEM_BYTES[self.dtype] + sites * ITEM_BYTES[self.labels]),
            elements=elements,
            problem=f"{self.name} of {self.shape[1]} channels",
        )

    def reference(self, *inputs: Array) -> Array:
        return np.asarray(inputs[0].argmax(axis=1))[:, None]


@dataclass(frozen=True)
class ArgmaxCall(OneShapeCall, SingleOpCall):
    """y (n, 1, spatial...) of labels from x: channels are not cut, and memory orders are free.

    Raises
    ------
    TypeError, ValueError
        If labels are no integers, or fewer than channels.
    """

    shape: Shape
    dtype: str
    labels: str = "uint8"

    lead = "x"
    takes = ("x",)
    results = ("y",)

    def __post_init__(self) -> None:
        if self.labels not in INTEGERS:
            raise TypeError(f"labels must be {', '.join(INTEGERS)}, not {self.labels}")
        if self.shape[1] - 1 > np.iinfo(self.labels).max:
            raise ValueError(f"{self.labels} cannot hold the labels of {self.shape[1]} channels")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        sites = (self.shape[0], 1, *self.shape[2:])
        return {
            "x": Operand(self.shape, self.dtype, CUT),
            "y": Operand(sites, self.labels, SITES),
        }

    def may_cut(self, axis: str) -> bool:
        return axis in SITES and super().may_cut(axis)

    def region(self, name: str, piece: Piece) -> Region:
        channels = (0, 1) if name == "y" else piece.c_y
        return tensor_region(self.shape, piece.n, channels, piece.h_y, self.row_axis)

    def on_tile(self, tile: Tile) -> Self:
        images, _, *sites = tile.shape
        return replace(self, shape=(images, self.shape[1], *sites))

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return ChannelArgmax(self.piece_shape(piece), self.dtype, self.labels)

    def build(self, build: Builder) -> None:
        operation = self.on_piece(build.piece, layout="", result_dtype=self.labels)
        build.launch(operation, ("x",), "y")

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """Labels are right, or wrong."""
        value = operation.reference(*inputs).astype(np.float64)  # type: ignore[attr-defined]
        return value, np.zeros(value.shape)

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype)
