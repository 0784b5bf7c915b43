"""The mean of each site over its channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Read, Tile
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.normalization.channel_reduction import SAVED, make_vectors
from ooc_cudnn.operations.normalization.layer import OfSites, of_sites
from ooc_cudnn.operations.normalization.set_reduction import SetMoments

(MEAN, _) = SAVED


@dataclass(frozen=True)
class ChannelMeanCall(OfSites):
    """Mean of each site, (n, 1, spatial...), from x; of half types in float32."""

    shape: Shape
    dtype: str

    inputs = ("x",)
    results = (MEAN,)
    reduced = ()

    def on_tile(self, tile: Tile) -> Self:
        images, _, *sites = tile.shape
        return replace(self, shape=(images, self.shape[1], *sites))

    def build(self, build: Builder) -> None:
        """Sum up the sites in float64, and round once."""
        shape = self.piece_shape(build.piece)
        moments = SetMoments(shape, self.dtype, shape[1], by_site=True)
        state = build.scratch("moments", moments.output_shape, "float64")
        build.launch(moments, ("x", ""), state)
        make_vectors(build, state, {MEAN: "mean"}, epsilon=0.0)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Over axis 1."""
        x = read("x", self.region("x", piece) or ())
        return {MEAN: (of_sites(x), np.abs(x).max(axis=1, keepdims=True))}
