"""Instance, group and layer normalisation: each image by itself, and each group of its channels.

As many groups as channels are instance normalisation, one group is layer normalisation over whole
images. Training and inference do the same. The first sweep over a group's rows sums them up, the
second one uses the sums; where the group fits the device, it is copied there once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.batch_normalization import StateRow, per_channel
from ooc_cudnn.operations.builder import Builder
from ooc_cudnn.operations.channel_statistics import SAVED, OfStatistics, make_vectors
from ooc_cudnn.operations.rows import tensor_region
from ooc_cudnn.operations.set_statistics import (
    GroupSums,
    MergeGroups,
    NormaliseSets,
    NormaliseSetsBackward,
    SetMoments,
    SetSums,
)
from ooc_cudnn.operations.splittable import SWEEP, Operand, Piece, Read, random_range
from ooc_cudnn.operations.window import Ranges
from ooc_cudnn.tensor import ACCUMULATOR

#: Sums over the sites of each channel of each image: they are added up to dscale and dbias.
SUMS = ("scale_sums", "bias_sums")


class _OfGroups(OfStatistics):
    """Cut along n, groups of channels, and rows, over which statistics are summed."""

    groups: int

    sweeps = 2
    reduced = ("h_y",)
    loop_order = ("n", "c_y", SWEEP, "h_y", "c_x")
    by_sets = True

    @property
    def statistics_shape(self) -> Shape:
        """A mean and an inverse deviation of each channel of each image: those of its group."""
        return (*self.shape[:2], *(1 for _ in self.shape[2:]))

    def _operand(self, name: str) -> Operand:
        if name in SUMS:
            return Operand(self.shape[:2], "float64", frozenset({"n", "c_y"}))
        return super()._operand(name)

    @property
    def of_group(self) -> int:
        """Channels of a group."""
        return self.shape[1] // self.groups

    @property
    def elements(self) -> int:
        """Elements of a group in one image."""
        return self.of_group * math.prod(self.shape[2:])

    def may_cut(self, axis: str) -> bool:
        """Channels where there are several groups."""
        return super().may_cut(axis) and (axis != "c_y" or self.groups > 1)

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: channels in whole groups."""
        group = self.of_group if axis == "c_y" else 1
        return super().axis_ranges(axis, -(-size // group) * group)

    def groups_of(self, build: Builder) -> tuple[int, int, int]:
        """Images, channels and groups of a piece."""
        images, channels = self.piece_shape(build.piece)[:2]
        return images, channels, channels // self.of_group

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one group of one image."""
        n, group = random_range(random, self.extents.n, 1), random_range(random, self.groups, 1)
        c_y = (group[0] * self.of_group, group[1] * self.of_group)
        return Piece(n, c_y, random_range(random, self.extents.h_y, 2), (0, 1), self.sweeps - 1)

    def group(self, name: str, piece: Piece, read: Read) -> Array:
        """All rows of a patch's group."""
        rows = (0, self.extents.h_y)
        return read(name, tensor_region(self.shape, piece.n, piece.c_y, rows, self.row_axis))

    def within(self, array: Array, piece: Piece) -> Array:
        """Of all rows of a group those of the patch."""
        if array.ndim <= self.row_axis:
            return array
        return array.take(range(*piece.h_y), axis=self.row_axis)


@dataclass(frozen=True)
class GroupNormalization(_OfGroups):
    """y, and mean and inverse deviation of each image's channels, from x, scale and bias."""

    shape: Shape
    dtype: str
    groups: int
    epsilon: float
    deterministic: bool = False

    inputs = ("x", "scale", "bias")
    results = ("y", *SAVED)

    def touched(self, name: str) -> range:
        """Statistics in the first sweep, the data's scale and y in the second."""
        return range(1, 2) if name in ("scale", "bias", "y") else range(2)

    def build(self, build: Builder) -> None:
        """Add to the moments of the groups, or normalise them."""
        build.accumulating = False
        shape = self.piece_shape(build.piece)
        if build.piece.sweep == 0:
            made = SetMoments(shape, self.dtype, self.unit)
            state = self.sum_sets(build, made, ("x",), "moments")
            if build.accumulation.last:
                if self.of_group > 1:
                    build.launch(MergeGroups(*self.groups_of(build)), (state,), state)
                made_of = dict(zip(SAVED, ("mean", "inverse_deviation"), strict=True))
                make_vectors(build, state, made_of, epsilon=self.epsilon)
            return
        normalise = NormaliseSets(shape, self.dtype, build.buffers[SAVED[0]].shape)
        vectors = ("scale", "bias", *SAVED)
        self.make(build, normalise, ("x",), vectors, build.buffers["x"].order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Statistics of the patch's group."""
        whole = self.group("x", piece, read)
        mean, largest = whole.mean(), float(np.abs(whole).max())
        inverse = 1 / math.sqrt(whole.var() + self.epsilon)
        x = self.within(whole, piece)
        scale, bias = (per_channel(read(name, (piece.c_y,)), x.ndim) for name in ("scale", "bias"))
        size = np.abs(scale) * (np.abs(x) + largest) * inverse + np.abs(bias)
        one = np.ones((1, self.of_group, *self.statistics_shape[2:]))
        return {
            "y": (scale * (x - mean) * inverse + bias, size),
            SAVED[0]: (mean * one, largest * one),
            SAVED[1]: (inverse * one, inverse * (1 + inverse * largest) * one),
        }


@dataclass(frozen=True)
class GroupNormalizationGradient(_OfGroups):
    """dx, and what dscale and dbias are sums of, from x, dy, scale, mean and inverse deviation.

    Parameters
    ----------
    data : bool
        Whether dx is made; else scale is no operand, and there is one sweep.
    """

    shape: Shape
    dtype: str
    groups: int
    deterministic: bool = False
    data: bool = True

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """One for the sums, one for dx."""
        return 2 if self.data else 1

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Scale for dx alone."""
        return ("x", "dy", *SAVED, *(("scale",) if self.data else ()))

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dx first, where it is made."""
        return ("dx", *SUMS) if self.data else SUMS

    def touched(self, name: str) -> range:
        """The sums in the first sweep, scale and dx in the second."""
        if name in SUMS:
            return range(1)
        return range(1, 2) if name in ("scale", "dx") else range(self.sweeps)

    def build(self, build: Builder) -> None:
        """Add to the sums of the groups, or make their gradient."""
        build.accumulating = False
        shape, order = self.piece_shape(build.piece), build.buffers["x"].order
        statistics = build.buffers[SAVED[0]].shape
        if build.piece.sweep == 0:
            made = SetSums(shape, self.dtype, self.unit, statistics_shape=statistics)
            inputs = ("x", build.in_order("dy", order), *SAVED, "")
            state = self.sum_sets(build, made, inputs, "sums")
            if build.accumulation.last:
                for row, name in ((1, SUMS[0]), (0, SUMS[1])):
                    build.launch(StateRow(shape[:2], row, "float64"), (state,), name)
            return
        state = build.state("sums", (2, *shape[:2]), "float64")
        scaled = build.scratch("sums of groups", (2, *shape[:2]), "float64")
        groups = GroupSums(*self.groups_of(build), ACCUMULATOR[self.dtype])
        build.launch(groups, (state, "scale"), scaled)
        backward = NormaliseSetsBackward(shape, self.dtype, statistics, self.elements)
        self.make(build, backward, ("x", "dy"), ("scale", *SAVED, scaled), order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Sums over the patch's group."""
        x, dy = (self.group(name, piece, read) for name in ("x", "dy"))
        mean, inverse = (read(name, self.region(name, piece) or ()) for name in SAVED)
        hat, reach = (x - mean) * inverse, (np.abs(x) + np.abs(mean)) * inverse
        sites = tuple(range(2, x.ndim))
        sums = {
            SUMS[0]: ((dy * hat).sum(axis=sites), (np.abs(dy) * reach).sum(axis=sites)),
            SUMS[1]: (dy.sum(axis=sites), np.abs(dy).sum(axis=sites)),
        }
        if not self.data:
            return sums
        gradient = per_channel(read("scale", (piece.c_y,)), x.ndim) * dy
        value = inverse * (gradient - gradient.mean() - hat * (gradient * hat).mean())
        size = np.abs(gradient)
        size = inverse * (size + size.mean() + reach * (size * reach).mean())
        return {"dx": (self.within(value, piece), self.within(size, piece)), **sums}
