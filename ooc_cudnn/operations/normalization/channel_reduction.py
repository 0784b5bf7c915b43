"""Reduction over channels, shared by calls that need statistics of their data, however cut."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.call import (
    SWEEP,
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    random_range,
)
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Ranges
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, cut_axes, tensor_region
from ooc_cudnn.operations.core.single_op import CUT, OneShapeCall, OneTyped
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    Moments,
    MomentsResult,
    NormaliseSums,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.normalization.set_reduction import (
    FoldImages,
    SetMoments,
    SetSums,
    unit_of,
    unit_rows,
)
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel.cached import cached_property

PER_CHANNEL = frozenset({"c_y"})
#: Operands of the data's shape.
TENSORS = ("x", "y", "dy", "more", "dx")
#: Float64 states of all images, and their rows.
STATES = {"moments": 3, "sums": 2}
#: What is saved for the backward pass.
SAVED = ("saved_mean", "saved_inverse_variance")
#: Float64 sums over the sites of each channel of each image: of dy * xhat, and of dy. Added up they
#: are dscale and dbias.
SUMS = ("scale_sums", "bias_sums")


class OfStatistics(OneShapeCall):
    """A call on tensors of one shape, and statistics of them.

    Attributes
    ----------
    inputs : tuple of str
    deterministic : bool
        Whether sums are to be the same to the last bit however the call is cut. Then rows are cut
        at units (`set_statistics`), along the first spatial axis alone.
    """

    inputs: tuple[str, ...] = ()
    deterministic: bool = False

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation: one of each channel."""
        return (self.shape[1],)

    @property
    def by_sets(self) -> bool:
        """True if each image is summed up by itself, and then images in their order."""
        return self.deterministic

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """Tensors of the data's shape, statistics of it, and vectors of its channels."""
        return {name: self._operand(name) for name in (*self.inputs, *self.results)}

    def _operand(self, name: str) -> Operand:
        shape, narrow = self.shape, ACCUMULATOR[self.dtype]
        if name in TENSORS:
            return Operand(shape, self.dtype, CUT)
        if name in STATES:
            return Operand((STATES[name], shape[1]), "float64", PER_CHANNEL)
        if name in SUMS:
            return Operand(shape[:2], "float64", frozenset({"n", "c_y"}))
        if name in SAVED and len(self.statistics_shape) > 1:
            axes = cut_axes(self.statistics_shape, self.row_axis)
            return Operand(self.statistics_shape, narrow, axes)
        return Operand(shape[1:2], narrow, PER_CHANNEL)

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The inputs; results for beta."""
        return tuple(n for n in self.operands if n in self.inputs or self.scaling(n)[1] != 0)

    def scaling(self, result: str) -> tuple[float, float]:
        """Alpha and beta of the tensor that is made."""
        scaled = result in self.results and result in TENSORS
        return (self.alpha, self.beta) if scaled else (1.0, 0.0)

    # Cutting ----------------------------------------------------------------------------------

    def touched(self, name: str) -> range:
        """The sweeps that touch an operand."""
        return range(self.sweeps)

    def sweeps_of(self, name: str) -> int:
        return len(self.touched(name))

    def region(self, name: str, piece: Piece) -> Region | None:
        if piece.sweep not in self.touched(name):
            return None
        if name in STATES:
            return (0, STATES[name]), piece.c_y
        shape = self.operands[name].shape
        if len(shape) == 1:
            return (piece.c_y,)
        region = tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        return tuple(
            (0, 1) if extent == 1 else part for part, extent in zip(region, shape, strict=False)
        )

    @property
    def row_axes(self) -> tuple[int, ...]:
        """Every spatial axis; where sums are of units, the first: theirs."""
        return super().row_axes[: 1 if self.deterministic else None]

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows in whole units, if sums are of these."""
        if axis == "h_y" and self.deterministic and self.row_axis == ROW_AXIS:
            rows = unit_rows(self.shape)
            size = -(-size // rows) * rows
        return super().axis_ranges(axis, size)

    def row_key(self, piece: Piece) -> Hashable:
        """Key of rows: if an image begins or ends with a piece, and which images come first."""
        if not self.by_sets:
            return None
        return piece.h_y[0] == 0, piece.h_y[1] == self.extents.h_y, piece.n[0] == 0

    def meets_border(self, piece: Piece) -> bool:
        """True if an image begins or ends with a piece."""
        ends = (piece.h_y[0] == 0, piece.h_y[1] == self.extents.h_y)
        return self.by_sets and any(ends)

    # Launching --------------------------------------------------------------------------------

    @property
    def unit(self) -> int:
        """Sites of a channel that are summed in one go."""
        return unit_of(self.shape)

    def sum_sets(
        self,
        build: Builder,
        operation: SetMoments | SetSums,
        inputs: tuple[str, ...],
        state: str,
    ) -> str:
        """Sum up the sets of a piece's images, after the rows before; return the state's name."""
        build.state(state, operation.output_shape, "float64")
        before = "" if build.piece.h_y[0] == 0 else state
        build.launch(operation, (*inputs, before), state)
        return state

    def sum_channels(self, build: Builder, operation: SetSums, inputs: tuple[str, ...]) -> str:
        """Sum up the channels of a piece's images; of whole images make the results `SUMS`."""
        state = self.sum_sets(build, operation, inputs, "sums of channels")
        if build.piece.h_y[1] == self.extents.h_y:
            for row, name in ((1, SUMS[0]), (0, SUMS[1])):
                state_row = StateRow(build.buffers[name].shape, row, "float64")
                build.launch(state_row, (state,), name)
        return state

    def fold(self, build: Builder, images: str, state: str) -> str:
        """Merge what was summed up of images, once they are whole, into what is known of others."""
        piece, rows = build.piece, STATES[state]
        count, channels = piece.n[1] - piece.n[0], piece.c_y[1] - piece.c_y[0]
        build.state(state, (rows, channels), "float64")
        if piece.h_y[1] == self.extents.h_y:
            before = "" if piece.n[0] == 0 else state
            build.launch(FoldImages(rows, count, channels), (images, before), state)
        return state

    def make(
        self,
        build: Builder,
        operation: OneTyped,
        tensors: tuple[str, ...],
        vectors: tuple[str, ...],
        order: str,
    ) -> None:
        """Make a piece of the tensor that is the first result, from tensors and vectors."""
        dtype = build.product_dtype(self.results[0])
        sources = tuple(build.taken(name, order, dtype) for name in tensors)
        made: Any = replace(operation, dtype=dtype)  # type: ignore[type-var]
        build.make(made, (*sources, *vectors), self.results[0], order, done=sources)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one channel of one image, where all statistics are known."""
        whole, sweep = self.extents, self.sweeps - 1
        n, c_y = random_range(random, whole.n, 1), random_range(random, whole.c_y, 1)
        return Piece(n, c_y, random_range(random, whole.h_y, 2), (0, 1), sweep)

    def images(self, name: str, piece: Piece, read: Read) -> list[Array]:
        """All images of a patch's channels, one by one."""
        rows = (0, self.extents.h_y)
        return [
            read(name, tensor_region(self.shape, (at, at + 1), piece.c_y, rows, self.row_axis))
            for at in range(self.extents.n)
        ]

    def rounding(self) -> Rounding:
        """Sums are made in float64."""
        return Rounding(1, self.dtype, 8)


def make_vectors(
    build: Builder,
    state: str,
    vectors: Mapping[str, str],
    *,
    epsilon: float,
    factor: float = 0.0,
) -> None:
    """Make the vectors that `vectors` names: mean and inverse deviation, or running averages."""
    for name, what in vectors.items():
        made = build.buffers[name]
        result = MomentsResult(made.shape, what, made.dtype, epsilon, factor)
        build.launch(result, (state, name if what.startswith("running") else ""), name)


class PerChannel(OfStatistics):
    """Cut along channels, n and rows; statistics are summed over n and rows, sweep after sweep."""

    sweeps = 2
    reduced = ("n", "h_y")
    loop_order: tuple[str, ...] = ("c_y", SWEEP, "n", "h_y", "c_x")

    @property
    def elements(self) -> int:
        """Number of elements of a channel in the whole batch."""
        return math.prod(self.shape) // self.shape[1]

    def gather_moments(self, build: Builder) -> str:
        """Merge the moments of a piece of x into those of the pieces before."""
        shape = self.piece_shape(build.piece)
        if self.by_sets:
            operation = SetMoments(shape, self.dtype, self.unit)
            images = self.sum_sets(build, operation, ("x",), "moments of images")
            return self.fold(build, images, "moments")
        merge = MergeMoments(shape[1])
        return build.gather("moments", (3, shape[1]), Moments(shape, self.dtype), merge, ("x",))

    def gather_sums(
        self, build: Builder, mean: str, inverse: str, mode: str = "identity", coef: float = 0.0
    ) -> str:
        """Add the sums of dy and of dy * xhat of a piece to those of the pieces before.

        With an activation after the normalisation, of dy times its slope.
        """
        shape = self.piece_shape(build.piece)
        dy = build.in_order("dy", build.buffers["x"].order)
        inputs: tuple[str, ...] = ("x", dy, mean)
        if self.by_sets:
            operation = SetSums(shape, self.dtype, self.unit, statistics_shape=shape[1:2])
            images = self.sum_sets(build, operation, (*inputs, "", ""), "sums of images")
            return self._scaled(build, self.fold(build, images, "sums"), inverse)
        if mode != "identity":
            inputs += (inverse, "scale", "bias")
        return self.add_sums(build, NormaliseSums(shape, self.dtype, mode, coef), inputs, inverse)

    def add_sums(
        self, build: Builder, operation: Launchable, inputs: tuple[str, ...], inverse: str
    ) -> str:
        """Add the sums of dy and of dy * (x - mean) of a piece, made by an operation."""
        merge = AddStates(operation.output_shape)  # type: ignore[attr-defined]
        state = build.gather("sums", merge.shape, operation, merge, inputs)
        return self._scaled(build, state, inverse)

    def _scaled(self, build: Builder, state: str, inverse: str) -> str:
        """The sums, in the end with xhat in place of x - mean."""
        channels = build.buffers[inverse].shape[0]
        vectors = ACCUMULATOR[self.dtype]
        if build.accumulation.last:
            # Of the whole sum: infinite, it could make the parts cancel.
            build.launch(ScaleRow(2, channels, 1, vectors), (state, inverse), state)
        return state


def moments_of(images: list[Array]) -> tuple[float, float]:
    """Mean and variance of all images of a channel, in two passes."""
    count = sum(image.size for image in images)
    mean = sum(float(image.sum()) for image in images) / count
    return mean, sum(float(((image - mean) ** 2).sum()) for image in images) / count


def sums_of_channels(
    dy: Array, hat: Array, reach: Array, size: Array
) -> dict[str, tuple[Array, Array]]:
    """`SUMS` and their sizes, of xhat and the size of what that is a difference of, and of dy."""
    sites = tuple(range(2, dy.ndim))
    return {
        SUMS[0]: ((dy * hat).sum(axis=sites), (size * reach).sum(axis=sites)),
        SUMS[1]: (dy.sum(axis=sites), size.sum(axis=sites)),
    }
