"""Layer normalisation of each site over its channels, and its gradient.

Sites are cut, channels are not. Mean and inverse deviation have one element a site: they are
(n, 1, spatial...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Read, Rounding
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import per_channel
from ooc_cudnn.operations.normalization.channel_reduction import (
    SAVED,
    SUMS,
    OfStatistics,
    make_vectors,
    sums_of_channels,
)
from ooc_cudnn.operations.normalization.set_reduction import (
    NormaliseSets,
    NormaliseSitesBackward,
    SetMoments,
    SetSums,
    statistics_shape,
)


def of_sites(array: Array) -> Array:
    """The mean of each site over its channels."""
    return np.asarray(array.mean(axis=1, keepdims=True))


class OfSites(OfStatistics):
    """Cut along n and rows, with all channels of each site."""

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation: one of each site."""
        return statistics_shape(self.shape, by_site=True)

    def may_cut(self, axis: str) -> bool:
        """Sites."""
        return axis in ("n", "h_y") and super().may_cut(axis)

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one image."""
        return super().patch(random)._replace(c_y=(0, self.shape[1]))


@dataclass(frozen=True)
class LayerStatisticsCall(OfSites):
    """Mean and inverse deviation of each site, from x."""

    shape: Shape
    dtype: str
    epsilon: float

    inputs = ("x",)
    results = SAVED
    reduced = ()

    def build(self, build: Builder) -> None:
        """Find the statistics of the sites."""
        shape = self.piece_shape(build.piece)
        moments = SetMoments(shape, self.dtype, shape[1], by_site=True)
        state = build.scratch("moments", moments.output_shape, "float64")
        build.launch(moments, ("x", ""), state)
        kinds = dict(zip(SAVED, ("mean", "inverse_deviation"), strict=True))
        make_vectors(build, state, kinds, epsilon=self.epsilon)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over axis 1."""
        x = read("x", self.region("x", piece) or ())
        largest = np.abs(x).max(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(x.var(axis=1, keepdims=True) + self.epsilon)
        return {
            SAVED[0]: (of_sites(x), largest),
            SAVED[1]: (inverse, inverse * (1 + inverse * largest)),
        }


@dataclass(frozen=True)
class LayerNormalizationCastCall(OfSites):
    """y of another type than x, rounded once, from x, scale, bias, mean and inverse deviation."""

    shape: Shape
    dtype: str
    y_dtype: str

    inputs = ("x", "scale", "bias", *SAVED)
    reduced = ()

    def _operand(self, name: str) -> Operand:
        found = super()._operand(name)
        return found._replace(dtype=self.y_dtype) if name == "y" else found

    def build(self, build: Builder) -> None:
        """One pass, in y's memory order."""
        order, dtype = build.buffers["y"].order, build.product_dtype("y")
        x = build.in_order("x", order)
        normalise = NormaliseSets(
            self.piece_shape(build.piece), self.dtype, by_site=True, y_dtype=dtype
        )
        build.make(normalise, (x, "scale", "bias", *SAVED), "y", order, done=(x,))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the statistics that are given."""
        operands = [read(name, self.region(name, piece) or ()) for name in self.inputs]
        operation = NormaliseSets(self.piece_shape(piece), self.dtype, by_site=True)
        return {"y": (operation.reference(*operands), operation.magnitude(*operands))}

    def rounding(self) -> Rounding:
        return Rounding(1, self.y_dtype, 8)


@dataclass(frozen=True)
class LayerNormalizationGradientCall(OfSites):
    """dx, and what dscale and dbias are sums of, from x, dy, scale, mean and inverse deviation.

    Parameters
    ----------
    data : bool
        Whether dx is made; else scale is no operand.
    dy_dtype : str
        The type of dy where that has another one than x: that of what y was rounded to.
    """

    shape: Shape
    dtype: str
    deterministic: bool = False
    data: bool = True
    dy_dtype: str = ""

    reduced = ("h_y",)
    by_sets = True

    @property
    def may_be_in_place(self) -> bool:  # type: ignore[override]
        return self.dy_dtype in ("", self.dtype)

    def _operand(self, name: str) -> Operand:
        found = super()._operand(name)
        return found._replace(dtype=self.dy_dtype or self.dtype) if name == "dy" else found

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Scale for dx alone."""
        return ("x", "dy", *SAVED, *(("scale",) if self.data else ()))

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dx first, where it is made."""
        return ("dx", *SUMS) if self.data else SUMS

    def build(self, build: Builder) -> None:
        """Add to the sums, and make the gradient of a piece."""
        build.accumulating = False
        shape, order = self.piece_shape(build.piece), build.buffers["x"].order
        statistics, laid = build.buffers[SAVED[0]].shape, build.in_order("dy", order)
        of_channels = SetSums(
            shape, self.dtype, self.unit, statistics_shape=statistics, dy_dtype=self.dy_dtype
        )
        self.sum_channels(build, of_channels, ("x", laid, *SAVED, ""))
        if not self.data:
            return
        build.release(laid)
        backward = NormaliseSitesBackward(shape, self.dtype)
        if self.may_be_in_place or build.product_dtype("dx") != self.dtype:
            self.make(build, backward, ("x", "dy"), ("scale", *SAVED), order)
            return
        laid, mixed = build.in_order("dy", order), replace(backward, dy_dtype=self.dy_dtype)
        build.make(mixed, ("x", laid, "scale", *SAVED), "dx", order, done=(laid,))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over axis 1; and the sums over all sites of the image."""

        def parts(piece: Piece) -> tuple[Array, ...]:
            x, dy, mean, inverse = (
                read(name, self.region(name, piece) or ()) for name in ("x", "dy", *SAVED)
            )
            return dy, (x - mean) * inverse, (np.abs(x) + np.abs(mean)) * inverse, inverse

        dy, hat, reach, _ = parts(piece._replace(h_y=(0, self.extents.h_y)))
        results = sums_of_channels(dy, hat, reach, np.abs(dy))
        if self.data:
            dy, hat, reach, inverse = parts(piece)
            gradient = per_channel(read("scale", (piece.c_y,)), dy.ndim) * dy
            value = gradient - of_sites(gradient) - hat * of_sites(gradient * hat)
            size = np.abs(gradient)
            size = size + of_sites(size) + reach * of_sites(size * reach)
            results["dx"] = inverse * value, inverse * size
        return results
