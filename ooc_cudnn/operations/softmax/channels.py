"""Softmax over the channels of each site, or over all of each image (instance)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Rounding, Tile
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.single_op import OneTyped
from perfmodel import Work, pass_work

ALGORITHMS = ("accurate", "log")
MODES = ("channel", "instance")


@dataclass(frozen=True)
class _Pass(OneShape):
    """A launch of either algorithm that goes over the data."""

    shape: Shape
    algorithm: str
    dtype: str

    name = "softmax"

    def over(self, count: int, *, exponentials: bool = False, channels: bool = False) -> Work:
        """Count reads and writes; say whether there is an exponential an element."""
        problem = f"{self.name} {self.algorithm}"
        if channels:
            problem += f"; {self.shape[1]} channels"
        return self.passes("/softmax", count, exponentials=int(exponentials), problem=problem)


@dataclass(frozen=True)
class Softmax(_Pass):
    """y from (x,): softmax over axis 1, for every image and site; "log" gives its logarithm.

    Source: cudnnSoftmaxForward with CUDNN_SOFTMAX_ACCURATE or _LOG, CUDNN_SOFTMAX_MODE_CHANNEL.
    """

    name = "softmax_forward"

    def work(self) -> Work:
        """Two reads and a write."""
        return self.over(3, exponentials=True, channels=True)

    def reference(self, *inputs: Array) -> Array:
        x = inputs[0].astype(np.float64)
        shifted = x - x.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        return np.asarray(
            np.exp(shifted) / total if self.algorithm == "accurate" else shifted - np.log(total)
        )


@dataclass(frozen=True)
class SoftmaxBackward(_Pass):
    """dx from (y, dy): ``y * (dy - sum(y * dy))`` over axis 1; "log" ``dy - exp(y) * sum(dy)``.

    Source: cudnnSoftmaxBackward.
    """

    name = "softmax_backward"

    def work(self) -> Work:
        """Four reads and a write."""
        return self.over(5, exponentials=self.algorithm == "log", channels=True)

    def reference(self, *inputs: Array) -> Array:
        y, dy = (array.astype(np.float64) for array in inputs)
        if self.algorithm == "accurate":
            return np.asarray(y * (dy - (y * dy).sum(axis=1, keepdims=True)))
        return np.asarray(dy - np.exp(y) * dy.sum(axis=1, keepdims=True))


# The softmax of whole images, in two sweeps over their pieces -----------------------------------


@dataclass(frozen=True)
class ImageMaximum(OneShape):
    """(n, 2) float64 from (x,): each image's maximum m, and the sum of exp(x - m), in this piece.

    A piece that is -infinity throughout has the sum 0. NaN gives NaN in both, and +infinity makes
    the sum NaN, whatever the maximum then is: such an image's softmax is NaN throughout.
    """

    shape: Shape
    dtype: str

    name = "image_maximum"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], 2)

    def work(self) -> Work:
        """Two reads."""
        return self.passes("/softmax", 2, exponentials=1, problem=self.name)


@dataclass(frozen=True)
class MergeImageMaximum:
    """The (n, 2) of two parts of the images together, from (state, part); in place on the state."""

    images: int

    name = "merge_image_maximum"

    @property
    def output_shape(self) -> Shape:
        return (self.images, 2)

    def work(self) -> Work:
        """No work to speak of."""
        return pass_work(
            "pointwise/float64/statistics", device_bytes=48.0 * self.images, elements=self.images
        )


@dataclass(frozen=True)
class ImageSoftmax(_Pass):
    """y from (x, state): ``exp(x - m) / sum``, or for "log" ``x - m - log(sum)``."""

    name = "image_softmax"

    def work(self) -> Work:
        """One read and one write."""
        return self.over(2, exponentials=self.algorithm != "log")


@dataclass(frozen=True)
class ImageProductSum(_Pass):
    """(n, 1) float64 from (y, dy): each image's sum of y * dy, or for "log" (y absent) of dy."""

    name = "image_product_sum"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], 1)

    def work(self) -> Work:
        """One or two reads."""
        return self.over(1 if self.algorithm == "log" else 2)


@dataclass(frozen=True)
class ImageSoftmaxBackward(_Pass):
    """dx from (y, dy, sums): as `SoftmaxBackward`, with the images' sums (n, 1) known."""

    name = "image_softmax_backward"

    def work(self) -> Work:
        """Two reads and a write."""
        return self.over(3, exponentials=self.algorithm == "log")


@dataclass(frozen=True)
class SoftmaxCall(PointwiseCall):
    """y from x, over the channels of every site: these are not cut."""

    shape: Shape
    algorithm: str
    dtype: str

    takes = ("x",)

    def may_cut(self, axis: str) -> bool:
        return axis in ("n", "h_y") and super().may_cut(axis)

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, shape=tile.shape)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return Softmax(self.piece_shape(piece), self.algorithm, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """Differences of inputs are made before they are raised."""
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        size = np.abs(value) + np.max(np.abs(inputs[0]), axis=1, keepdims=True)
        return value, size if self.algorithm == "log" else size * np.abs(value) + np.abs(value)

    def rounding(self) -> Rounding:
        return Rounding(self.shape[1], self.dtype, 4)


@dataclass(frozen=True)
class SoftmaxGradientCall(SoftmaxCall):
    """dx from y and dy, over the channels of every site."""

    lead = "dy"
    takes = ("y", "dy")  # type: ignore[assignment]
    results = ("dx",)

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return SoftmaxBackward(self.piece_shape(piece), self.algorithm, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        (y, dy), log = inputs, self.algorithm == "log"
        size = np.abs(dy) if log else np.abs(y * dy)
        # The logarithm of 0 is exact: it makes nothing uncertain.
        reach = 1 + np.where(np.isfinite(y), np.abs(y), 0)
        factor = np.exp(y) * reach if log else np.abs(y)
        return value, np.abs(dy) * reach + factor * size.sum(axis=1, keepdims=True)
