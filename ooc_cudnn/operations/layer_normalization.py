"""Layer normalisation of each site over its channels, and its gradient.

Sites are cut, channels are not. Mean and inverse deviation have one element a site: they are
(n, 1, spatial...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.batch_normalization import per_channel
from ooc_cudnn.operations.builder import Builder
from ooc_cudnn.operations.channel_statistics import SAVED, OfStatistics, make_vectors
from ooc_cudnn.operations.set_statistics import (
    NormaliseSets,
    NormaliseSetsBackward,
    SetMoments,
    SetSums,
)
from ooc_cudnn.operations.splittable import Piece, Read


def of_sites(array: Array) -> Array:
    """The mean of each site over its channels."""
    return np.asarray(array.mean(axis=1, keepdims=True))


class _OfSites(OfStatistics):
    """Cut along n and rows, with all channels of each site."""

    @property
    def statistics_shape(self) -> Shape:
        """Of mean and inverse deviation: one of each site."""
        return (self.shape[0], 1, *self.shape[2:])

    def may_cut(self, axis: str) -> bool:
        """Sites."""
        return axis in ("n", "h_y") and super().may_cut(axis)

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one image."""
        return super().patch(random)._replace(c_y=(0, self.shape[1]))


@dataclass(frozen=True)
class LayerNormalization(_OfSites):
    """y, and mean and inverse deviation of each site, from x, scale and bias."""

    shape: Shape
    dtype: str
    epsilon: float

    inputs = ("x", "scale", "bias")
    results = ("y", *SAVED)
    reduced = ()

    def build(self, build: Builder) -> None:
        """Find the statistics of the sites, and normalise them."""
        shape = self.piece_shape(build.piece)
        moments = SetMoments(shape, self.dtype, shape[1], by_site=True)
        state = build.scratch("moments", moments.output_shape, "float64")
        build.launch(moments, ("x", ""), state)
        made = dict(zip(SAVED, ("mean", "inverse_deviation"), strict=True))
        make_vectors(build, state, made, epsilon=self.epsilon)
        build.release(state)
        normalise = NormaliseSets(shape, self.dtype, build.buffers[SAVED[0]].shape)
        vectors = ("scale", "bias", *SAVED)
        self.make(build, normalise, ("x",), vectors, build.buffers["x"].order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over axis 1."""
        x, scale, bias = (read(name, self.region(name, piece) or ()) for name in self.inputs)
        scale, bias = (per_channel(vector, x.ndim) for vector in (scale, bias))
        mean, largest = of_sites(x), np.abs(x).max(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(x.var(axis=1, keepdims=True) + self.epsilon)
        size = np.abs(scale) * (np.abs(x) + largest) * inverse + np.abs(bias)
        return {
            "y": (scale * (x - mean) * inverse + bias, size),
            SAVED[0]: (mean, largest),
            SAVED[1]: (inverse, inverse * (1 + inverse * largest)),
        }


@dataclass(frozen=True)
class LayerNormalizationGradient(_OfSites):
    """dx, and the sums (2, c) that are dbias and dscale, from x, dy, scale and what is saved.

    The sums are over all sites of all images, each image by itself and then images in their order.

    Parameters
    ----------
    data : bool
        Whether dx is made; else scale is no operand.
    """

    shape: Shape
    dtype: str
    deterministic: bool = False
    data: bool = True

    reduced = ("n", "h_y")
    loop_order = ("c_y", "c_x", "n", "h_y")
    by_sets = True

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Scale for dx alone."""
        return ("x", "dy", *SAVED, *(("scale",) if self.data else ()))

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dx first, where it is made."""
        return ("dx", "sums") if self.data else ("sums",)

    def build(self, build: Builder) -> None:
        """Add to the sums, and make the gradient of a piece."""
        build.accumulating = False
        shape, order = self.piece_shape(build.piece), build.buffers["x"].order
        statistics, laid = build.buffers[SAVED[0]].shape, build.in_order("dy", order)
        of_channels = SetSums(shape, self.dtype, self.unit, statistics_shape=statistics)
        inputs = ("x", laid, *SAVED, "")
        self.fold(build, self.sum_sets(build, of_channels, inputs, "sums of images"), "sums")
        if not self.data:
            return
        by_site = replace(of_channels, unit=shape[1], by_site=True)
        state = build.scratch("sums of sites", by_site.output_shape, "float64")
        build.launch(by_site, ("x", laid, *SAVED, "scale", ""), state)
        build.release(laid)
        backward = NormaliseSetsBackward(shape, self.dtype, statistics, shape[1])
        self.make(build, backward, ("x", "dy"), ("scale", *SAVED, state), order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over axis 1; and the sums over all sites."""

        def parts(piece: Piece) -> tuple[Array, ...]:
            x, dy, mean, inverse = (
                read(name, self.region(name, piece) or ()) for name in ("x", "dy", *SAVED)
            )
            return dy, (x - mean) * inverse, (np.abs(x) + np.abs(mean)) * inverse, inverse

        found, (dy, hat, reach, inverse) = {}, parts(piece)
        if self.data:
            gradient = per_channel(read("scale", (piece.c_y,)), dy.ndim) * dy
            value = gradient - of_sites(gradient) - hat * of_sites(gradient * hat)
            size = np.abs(gradient)
            size = size + of_sites(size) + reach * of_sites(size * reach)
            found["dx"] = inverse * value, inverse * size
        sums, sizes = np.zeros((2, self.shape[1])), np.zeros((2, self.shape[1]))
        for image in range(self.extents.n):
            whole = piece._replace(n=(image, image + 1), h_y=(0, self.extents.h_y))
            dy, hat, reach, _ = parts(whole)
            sites = (0, *range(2, dy.ndim))
            sums += np.stack([dy.sum(axis=sites), (dy * hat).sum(axis=sites)])
            sizes += np.stack([abs(dy).sum(axis=sites), (abs(dy) * reach).sum(axis=sites)])
        return {**found, "sums": (sums, sizes)}
