"""Batch normalisation in training, and its gradient, as calls: sweeps over the whole batch.

One sweep merges the statistics of the pieces, the next one uses them: they are those of the whole
batch, however it is cut. Where all pieces of some channels fit the device at once, later sweeps
find them there.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.batch_normalization import (
    AddStates,
    MergeMoments,
    Moments,
    MomentsResult,
    Normalise,
    NormaliseBackward,
    NormaliseSums,
    ScaleRow,
    StateRow,
    per_channel,
)
from ooc_cudnn.operations.builder import Builder, Built
from ooc_cudnn.operations.rows import ROW_AXIS, height, tensor_region
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
from perfmodel import Split
from perfmodel.cached import cached_property

_CUT = frozenset({"n", "c_y", "h_y"})
_PER_CHANNEL = frozenset({"c_y"})


class _PerChannel(Built):
    """Cut along channels, n and rows; statistics are summed over n and rows, sweep after sweep."""

    sweeps = 2
    reduced = ("n", "h_y")
    loop_order = ("c_y", SWEEP, "n", "h_y", "c_x")
    shape: Shape

    @cached_property
    def extents(self) -> Split:
        """Images, channels, rows."""
        return Split(
            n=self.shape[0], c_y=self.shape[1], c_x=1, h_y=height(self.shape, self.row_axis)
        )

    @abstractmethod
    def touched(self, name: str) -> range:
        """The sweeps that touch an operand."""

    def sweeps_of(self, name: str) -> int:
        """How many these are."""
        return len(self.touched(name))

    def region(self, name: str, piece: Piece) -> Region | None:
        """Channels of a vector; images, channels and rows of a tensor."""
        if piece.sweep not in self.touched(name):
            return None
        if len(self.operands[name].shape) == 1:
            return (piece.c_y,)
        return tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)

    def scaling(self, result: str) -> tuple[float, float]:
        """Alpha and beta are those of the tensor."""
        return (self.alpha, self.beta) if result == self.results[0] else (1.0, 0.0)

    def piece_shape(self, piece: Piece) -> Shape:
        """Shape of a piece of the data."""
        region = tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        return tuple(stop - start for start, stop in region)

    @property
    def elements(self) -> int:
        """How many elements a channel has in the whole batch."""
        return math.prod(self.shape) // self.shape[1]

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


@dataclass(frozen=True)
class BatchNormalization(_PerChannel):
    """y, and the mean and inverse deviation of each channel, from x, scale and bias.

    Parameters
    ----------
    running : bool
        Whether running averages are updated, by `factor`.
    """

    shape: Shape
    dtype: str
    epsilon: float
    factor: float = 0.0
    running: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    row_axis: int = ROW_AXIS

    @cached_property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y, what is saved for the backward pass, and running averages."""
        averages = ("running_mean", "running_variance") if self.running else ()
        return ("y", "saved_mean", "saved_inverse_variance", *averages)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """The data, scale and bias, the results."""
        vector = Operand((self.shape[1],), ACCUMULATOR[self.dtype], _PER_CHANNEL)
        tensor = Operand(self.shape, self.dtype, _CUT)
        return {
            name: tensor if name in ("x", "y") else vector
            for name in ("x", "scale", "bias", *self.results)
        }

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The inputs and the running averages; y for beta."""
        made = ("saved_mean", "saved_inverse_variance", *(() if self.beta else ("y",)))
        return tuple(name for name in self.operands if name not in made)

    def touched(self, name: str) -> range:
        """The statistics in the first sweep, the data's scale and y in the second."""
        if name in ("scale", "bias", "y"):
            return range(1, 2)
        return range(1) if name.startswith("running") else range(2)

    def build(self, build: Builder) -> None:
        """Merge the moments of a piece, or normalise it."""
        piece = build.piece
        build.accumulating = False
        shape, channels = self.piece_shape(piece), piece.c_y[1] - piece.c_y[0]
        if piece.sweep == 0:
            gather = Moments(shape, self.dtype)
            state = build.gather("moments", (3, channels), gather, MergeMoments(channels), ("x",))
            if build.accumulation.last:
                self._results(build, state, channels)
            return
        vectors = ("scale", "bias", "saved_mean", "saved_inverse_variance")
        order = build.buffers["x"].order
        self.make(build, Normalise(shape, self.dtype), ("x",), vectors, order)

    def _results(self, build: Builder, state: str, channels: int) -> None:
        """From the moments to the vectors that leave."""
        for name, what in (
            ("saved_mean", "mean"),
            ("saved_inverse_variance", "inverse_deviation"),
            ("running_mean", "running_mean"),
            ("running_variance", "running_variance"),
        ):
            if name in self.results:
                made = MomentsResult(
                    channels, what, ACCUMULATOR[self.dtype], self.epsilon, self.factor
                )
                build.launch(made, (state, name if what.startswith("running") else ""), name)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Statistics of the whole batch."""
        images = self.images("x", piece, read)
        mean, variance = moments_of(images)
        inverse = 1 / np.sqrt(variance + self.epsilon)
        largest = max(float(np.abs(image).max()) for image in images)
        x = read("x", tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis))
        scale, bias = (per_channel(read(name, (piece.c_y,)), x.ndim) for name in ("scale", "bias"))
        size = np.abs(scale) * (np.abs(x) + largest) * inverse + np.abs(bias)
        error = inverse * (1 + inverse * largest)
        found = {
            "y": (scale * (x - mean) * inverse + bias, size),
            "saved_mean": (np.array([mean]), np.array([largest])),
            "saved_inverse_variance": (np.array([inverse]), np.array([error])),
        }
        if self.running:
            unbiased = variance * self.elements / max(1, self.elements - 1)
            for name, value in (("running_mean", mean), ("running_variance", unbiased)):
                old = read(name, (piece.c_y,))
                made = (1 - self.factor) * old + self.factor * value
                found[name] = made, np.abs(old) + abs(value) + largest
        return found


@dataclass(frozen=True)
class BatchNormalizationGradient(_PerChannel):
    """dx, dscale and dbias from x, dy, scale, and the saved mean and inverse deviation.

    With `epsilon`, mean and inverse deviation are not operands: a first sweep of their own makes
    them.
    """

    shape: Shape
    dtype: str
    epsilon: float | None = None
    alpha: float = 1.0
    beta: float = 0.0
    row_axis: int = ROW_AXIS

    results = ("dx", "dscale", "dbias")

    @cached_property
    def sweeps(self) -> int:  # type: ignore[override]
        """One for the sums and one for dx, after one for the statistics where these are made."""
        return 2 if self.epsilon is None else 3

    @cached_property
    def saved(self) -> tuple[str, str]:
        """Where mean and inverse deviation are: operands, or states of the call."""
        made = self.epsilon is not None
        return ("mean", "inverse") if made else ("saved_mean", "saved_inverse_variance")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """Data, its gradient, vectors, results."""
        vector = Operand((self.shape[1],), ACCUMULATOR[self.dtype], _PER_CHANNEL)
        tensor = Operand(self.shape, self.dtype, _CUT)
        saved = self.saved if self.epsilon is None else ()
        return {
            name: tensor if name in ("x", "dy", "dx") else vector
            for name in ("x", "dy", "scale", *saved, *self.results)
        }

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The inputs, and dx for beta."""
        results = self.results[0 if not self.beta else 1 :]
        return tuple(name for name in self.operands if name not in results)

    def touched(self, name: str) -> range:
        """X in all sweeps, the sums' results in the last but one, dx and scale in the last."""
        last = self.sweeps - 1
        if name in ("dscale", "dbias"):
            return range(last - 1, last)
        if name in ("scale", "dx"):
            return range(last, last + 1)
        return range(last + 1) if name == "x" else range(last - 1, last + 1)

    def build(self, build: Builder) -> None:
        """Merge the moments of a piece, or add up its sums, or make its gradient."""
        piece = build.piece
        build.accumulating = False
        shape, channels = self.piece_shape(piece), piece.c_y[1] - piece.c_y[0]
        vectors = ACCUMULATOR[self.dtype]
        if self.epsilon is not None:
            for name in self.saved:
                build.state(name, (channels,), vectors)
        if piece.sweep == self.sweeps - 3:
            gather = Moments(shape, self.dtype)
            state = build.gather("moments", (3, channels), gather, MergeMoments(channels), ("x",))
            if build.accumulation.last:
                for name, what in zip(self.saved, ("mean", "inverse_deviation"), strict=True):
                    epsilon = self.epsilon or 0.0
                    made = MomentsResult(channels, what, vectors, epsilon)
                    build.launch(made, (state, ""), name)
            return
        order = build.buffers["x"].order
        if piece.sweep == self.sweeps - 2:
            sums = NormaliseSums(shape, self.dtype)
            mean, inverse = self.saved
            inputs = ("x", build.in_order("dy", order), mean)
            added = AddStates((2, channels))
            state = build.gather("sums", (2, channels), sums, added, inputs)
            if build.accumulation.last:
                # Of the whole sum: infinite, it could make the parts cancel.
                build.launch(ScaleRow(2, channels, 1, vectors), (state, inverse), state)
                for row, name in ((1, "dscale"), (0, "dbias")):
                    build.launch(StateRow(2, channels, row, vectors), (state,), name)
            return
        state = build.state("sums", (2, channels), "float64")
        operation = NormaliseBackward(shape, self.dtype, self.elements)
        self.make(build, operation, ("x", "dy"), ("scale", *self.saved, state), order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Sums over the whole batch."""
        images = self.images("x", piece, read)
        scale = float(read("scale", (piece.c_y,))[0])
        if self.epsilon is not None:
            mean, variance = moments_of(images)
            inverse = 1 / math.sqrt(variance + self.epsilon)
        else:
            mean, inverse = (float(read(name, (piece.c_y,))[0]) for name in self.saved)
        pairs = list(zip(images, self.images("dy", piece, read), strict=True))
        dbias = sum(float(dy.sum()) for _, dy in pairs)
        dscale = sum(float((dy * (x - mean)).sum()) for x, dy in pairs) * inverse
        size_b = sum(float(np.abs(dy).sum()) for _, dy in pairs)
        size_s = sum(float(np.abs(dy * (np.abs(x) + abs(mean))).sum()) for x, dy in pairs) * inverse
        region = tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        x, dy = read("x", region), read("dy", region)
        hat, count = (x - mean) * inverse, self.elements
        size_hat = (np.abs(x) + abs(mean)) * inverse
        size = np.abs(dy) + size_b / count + size_hat * size_s / count
        return {
            "dx": (
                scale * inverse * (dy - dbias / count - hat * dscale / count),
                abs(scale) * inverse * size,
            ),
            "dscale": (np.array([dscale]), np.array([size_s])),
            "dbias": (np.array([dbias]), np.array([size_b])),
        }
