"""Batch normalisation in training, and its gradient, as calls: sweeps over the whole batch.

One sweep merges the statistics of the pieces, the next one uses them: they are those of the whole
batch, however it is cut. Where all pieces of some channels fit the device at once, later sweeps
find them there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Read
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import per_channel, tensor_region
from ooc_cudnn.operations.normalization.batch_launches import Normalise, NormaliseBackward, StateRow
from ooc_cudnn.operations.normalization.channel_reduction import (
    SAVED,
    PerChannel,
    make_vectors,
    moments_of,
)
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class BatchNormalizationCall(PerChannel):
    """y, and the mean and inverse deviation of each channel, from x, scale and bias.

    Parameters
    ----------
    running : bool
        Whether running averages are updated, by `factor`.
    deterministic : bool
        As for all `OfStatistics`.
    """

    shape: Shape
    dtype: str
    epsilon: float
    factor: float = 0.0
    running: bool = False
    deterministic: bool = False

    inputs = ("x", "scale", "bias")

    @cached_property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Y, what is saved for the backward pass, and running averages."""
        averages = ("running_mean", "running_variance") if self.running else ()
        return ("y", *SAVED, *averages)

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """The inputs, and running averages; y for beta."""
        averages = (name for name in self.results if name.startswith("running"))
        return (*super().loaded, *averages)

    def touched(self, name: str) -> range:
        """The statistics in the first sweep, the data's scale and y in the second."""
        if name in ("scale", "bias", "y"):
            return range(1, 2)
        return range(1) if name.startswith("running") else range(2)

    def build(self, build: Builder) -> None:
        """Merge the moments of a piece, or normalise it."""
        build.accumulating = False
        if build.piece.sweep == 0:
            state = self.gather_moments(build)
            if build.accumulation.last:
                kinds = ("mean", "inverse_deviation", "running_mean", "running_variance")
                targets = dict(zip(self.results[1:], kinds, strict=False))
                make_vectors(build, state, targets, epsilon=self.epsilon, factor=self.factor)
            return
        vectors = ("scale", "bias", *SAVED)
        order = build.buffers["x"].order
        normalise = Normalise(self.piece_shape(build.piece), self.dtype)
        self.make(build, normalise, ("x",), vectors, order)

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
        results = {
            "y": (scale * (x - mean) * inverse + bias, size),
            "saved_mean": (np.array([mean]), np.array([largest])),
            "saved_inverse_variance": (np.array([inverse]), np.array([error])),
        }
        if self.running:
            unbiased = variance * self.elements / max(1, self.elements - 1)
            for name, value in (("running_mean", mean), ("running_variance", unbiased)):
                old = read(name, (piece.c_y,))
                average = (1 - self.factor) * old + self.factor * value
                results[name] = average, np.abs(old) + abs(value) + largest
        return results


@dataclass(frozen=True)
class BatchNormalizationGradientCall(PerChannel):
    """dx, dscale and dbias from x, dy, scale, and the saved mean and inverse deviation.

    With `epsilon`, mean and inverse deviation are not operands: a first sweep of their own makes
    them.
    """

    shape: Shape
    dtype: str
    epsilon: float | None = None
    deterministic: bool = False

    results = ("dx", "dscale", "dbias")

    @cached_property
    def sweeps(self) -> int:  # type: ignore[override]
        """One for the sums and one for dx, after one for the statistics where these are made."""
        return 2 if self.epsilon is None else 3

    @cached_property
    def saved(self) -> tuple[str, str]:
        """Place of mean and inverse deviation: operands, or states of the call."""
        made = self.epsilon is not None
        return ("mean", "inverse") if made else SAVED

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Inputs; saved statistics are among them where they are not made."""
        return ("x", "dy", "scale", *(self.saved if self.epsilon is None else ()))

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
        if self.epsilon is not None and piece.sweep == 0:
            state = self.gather_moments(build)
            if build.accumulation.last:
                kinds = dict(zip(self.saved, ("mean", "inverse_deviation"), strict=True))
                make_vectors(build, state, kinds, epsilon=self.epsilon)
            return
        if piece.sweep == self.sweeps - 2:
            state = self.gather_sums(build, *self.saved)
            if build.accumulation.last:
                for row, name in ((1, "dscale"), (0, "dbias")):
                    build.launch(StateRow((channels,), row, vectors), (state,), name)
            return
        state = build.state("sums", (2, channels), "float64")
        operation = NormaliseBackward(shape, self.dtype, self.elements)
        order = build.buffers["x"].order
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
