"""What calls share that need statistics of whole channels, however the batch is cut."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ooc_cudnn.operations.base import Array
from ooc_cudnn.operations.batch_normalization import (
    MergeMoments,
    Moments,
    MomentsResult,
    Normalise,
    NormaliseBackward,
)
from ooc_cudnn.operations.builder import Builder
from ooc_cudnn.operations.rows import tensor_region
from ooc_cudnn.operations.single import CUT, OfOneShape
from ooc_cudnn.operations.splittable import (
    SWEEP,
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    random_range,
)
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel.cached import cached_property

PER_CHANNEL = frozenset({"c_y"})


class PerChannel(OfOneShape):
    """Cut along channels, n and rows; statistics are summed over n and rows, sweep after sweep."""

    sweeps = 2
    reduced = ("n", "h_y")
    loop_order = ("c_y", SWEEP, "n", "h_y", "c_x")
    inputs: tuple[str, ...] = ()
    #: Of running averages, where there are any.
    factor: float = 0.0

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """Tensors of the data's shape, and vectors of its channels."""
        vector = Operand((self.shape[1],), ACCUMULATOR[self.dtype], PER_CHANNEL)
        tensor = Operand(self.shape, self.dtype, CUT)
        return {
            name: tensor if name in ("x", "y", "dy", "dx") else vector
            for name in (*self.inputs, *self.results)
        }

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The inputs and the running averages; the first result for beta."""
        made = self.results[1 if self.beta else 0 :]
        return tuple(n for n in self.operands if n not in made or n.startswith("running"))

    @abstractmethod
    def touched(self, name: str) -> range:
        """The sweeps that touch an operand."""

    def sweeps_of(self, name: str) -> int:
        return len(self.touched(name))

    def region(self, name: str, piece: Piece) -> Region | None:
        if piece.sweep not in self.touched(name):
            return None
        if len(self.operands[name].shape) == 1:
            return (piece.c_y,)
        return tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)

    def scaling(self, result: str) -> tuple[float, float]:
        return (self.alpha, self.beta) if result == self.results[0] else (1.0, 0.0)

    @property
    def elements(self) -> int:
        """How many elements a channel has in the whole batch."""
        return math.prod(self.shape) // self.shape[1]

    def gather_moments(self, build: Builder, epsilon: float, vectors: Mapping[str, str]) -> None:
        """Merge the moments of a piece of x; of all pieces, make what `vectors` name."""
        channels = build.piece.c_y[1] - build.piece.c_y[0]
        moments = Moments(self.piece_shape(build.piece), self.dtype)
        shape = moments.output_shape
        state = build.gather("moments", shape, moments, MergeMoments(channels), ("x",))
        for name, what in vectors.items() if build.accumulation.last else ():
            made = MomentsResult(channels, what, ACCUMULATOR[self.dtype], epsilon, self.factor)
            build.launch(made, (state, name if what.startswith("running") else ""), name)

    def make(
        self,
        build: Builder,
        operation: Normalise | NormaliseBackward,
        tensors: tuple[str, ...],
        vectors: tuple[str, ...],
        order: str,
    ) -> None:
        """Make a piece of the tensor that is the first result, from tensors and vectors."""
        dtype = build.product_dtype(self.results[0])
        sources = tuple(build.taken(name, order, dtype) for name in tensors)
        made = replace(operation, dtype=dtype)
        build.make(made, (*sources, *vectors), self.results[0], order, done=sources)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one channel of one image, where all statistics are known."""
        whole, sweep = self.extents, self.sweeps - 1
        n, c_y = random_range(random, whole.n, 1), random_range(random, whole.c_y, 1)
        return Piece(n, c_y, random_range(random, whole.h_y, 2), (0, 1), sweep)

    def images(self, name: str, piece: Piece, read: Read) -> list[Array]:
        """All images of a patch's channel, one by one."""
        rows = (0, self.extents.h_y)
        return [
            read(name, tensor_region(self.shape, (at, at + 1), piece.c_y, rows, self.row_axis))
            for at in range(self.extents.n)
        ]

    def rounding(self) -> Rounding:
        """Sums are made in float64."""
        return Rounding(1, self.dtype, 8)


def moments_of(images: list[Array]) -> tuple[float, float]:
    """Mean and variance of all images of a channel, in two passes."""
    count = sum(image.size for image in images)
    mean = sum(float(image.sum()) for image in images) / count
    return mean, sum(float(((image - mean) ** 2).sum()) for image in images) / count
