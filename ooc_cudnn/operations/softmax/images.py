"""Softmax over whole images, as calls: one sweep makes each sum, a second one divides by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import SWEEP, Piece, Read, Region, Rounding, TiledCall
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.single_op import OneTyped
from ooc_cudnn.operations.normalization.batch_launches import AddStates
from ooc_cudnn.operations.softmax.channels import (
    ImageMaximum,
    ImageProductSum,
    ImageSoftmax,
    ImageSoftmaxBackward,
    MergeImageMaximum,
    Softmax,
    SoftmaxBackward,
    SoftmaxCall,
    SoftmaxGradientCall,
)


class _TwoSweeps(PointwiseCall):
    """Cut along n, channels and rows; the result is written in the second sweep."""

    sweeps = 2
    reduced = ("c_y", "h_y")
    loop_order = ("n", SWEEP, "c_y", "h_y", "c_x")
    shape: Shape
    algorithm: str

    def sweeps_of(self, name: str) -> int:
        """Results in the second alone."""
        return 1 if name in self.results else 2

    def may_cut(self, axis: str) -> bool:
        """Every axis: channels are summed over as rows are."""
        return TiledCall.may_cut(self, axis)

    def region(self, name: str, piece: Piece) -> Region | None:  # type: ignore[override]
        """The same for all; the result in the second sweep alone."""
        if name in self.results and piece.sweep == 0:
            return None
        return super().region(name, piece)

    def first(self, shape: Shape) -> tuple[Launchable, Launchable]:
        """Operations that sum up a piece, and that merge two sums."""
        raise NotImplementedError

    def whole(self) -> Launchable:
        """The same over axis 1, for images with all their elements there."""
        raise NotImplementedError

    def build(self, build: Builder) -> None:
        """Sum up, or make the result."""
        piece = build.piece
        build.accumulating = False
        order = build.buffers[self.lead].order
        shape = self.piece_shape(piece)
        gather, merge = self.first(shape)
        if piece.sweep == 0:
            taken = tuple(
                "" if name == "y" and self.algorithm == "log" else build.in_order(name, order)
                for name in self.takes
            )
            build.gather("sums", gather.output_shape, gather, merge, taken)  # type: ignore[attr-defined]
            return
        state = build.state("sums", gather.output_shape, "float64")  # type: ignore[attr-defined]
        (result,) = self.results
        dtype = build.product_dtype(result)
        sources = tuple(build.taken(name, order, dtype) for name in self.takes)
        operation = self.on_piece(piece, layout=order, result_dtype=dtype)
        build.make(operation, (*sources, state), result, order, done=sources)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        return super().patch(random)._replace(sweep=1)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        inputs = [read(name, self.region(name, piece) or ()) for name in self.takes]
        shape, flat = inputs[0].shape, (inputs[0].shape[0], -1)
        value, size = self.compare(self.whole(), [array.reshape(flat) for array in inputs])
        return {self.results[0]: (value.reshape(shape), size.reshape(shape))}

    def rounding(self) -> Rounding:
        """Sums are made in float64."""
        return Rounding(1, self.dtype, 8)


@dataclass(frozen=True)
class ImageSoftmaxCall(_TwoSweeps, SoftmaxCall):
    """y from x: softmax over all elements of each image."""

    def first(self, shape: Shape) -> tuple[Launchable, Launchable]:
        """Maximum and sum of exponentials."""
        return ImageMaximum(shape, self.dtype), MergeImageMaximum(shape[0])

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return ImageSoftmax(self.piece_shape(piece), self.algorithm, result_dtype)

    def whole(self) -> Launchable:
        return Softmax((1, 1), self.algorithm, self.dtype)


@dataclass(frozen=True)
class ImageSoftmaxGradientCall(_TwoSweeps, SoftmaxGradientCall):
    """dx from y and dy: softmax over all elements of each image."""

    def first(self, shape: Shape) -> tuple[Launchable, Launchable]:
        """Sum of the products."""
        return ImageProductSum(shape, self.algorithm, self.dtype), AddStates((shape[0], 1))

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return ImageSoftmaxBackward(self.piece_shape(piece), self.algorithm, result_dtype)

    def whole(self) -> Launchable:
        return SoftmaxBackward((1, 1), self.algorithm, self.dtype)
