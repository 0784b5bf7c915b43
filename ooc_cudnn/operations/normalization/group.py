"""Instance, group and layer normalisation: each image by itself, and each group of its channels.

As many groups as channels are instance normalisation, one group is layer normalisation over whole
images. Training and inference do the same: statistics, and then `NormaliseSets`, which chains take
(with other operations of an element after it). Backward, the first sweep over a group's rows sums
them up, the second one uses the sums; where the group fits the device, it is copied there once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import SWEEP, Piece, Read, random_range
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Ranges
from ooc_cudnn.operations.core.row_axis import per_channel, tensor_region
from ooc_cudnn.operations.normalization.batch_fused_gradient import activation_slope
from ooc_cudnn.operations.normalization.batch_two_phase import VECTORS_OF_Y
from ooc_cudnn.operations.normalization.channel_reduction import (
    SAVED,
    SUMS,
    OfStatistics,
    make_vectors,
    sums_of_channels,
)
from ooc_cudnn.operations.normalization.set_reduction import (
    GroupSums,
    MergeGroups,
    NormaliseSetsBackward,
    SetMoments,
    SetSums,
    statistics_shape,
)
from ooc_cudnn.tensor import ACCUMULATOR


class _OfGroups(OfStatistics):
    """Cut along n, groups of channels, and rows, over which statistics are summed."""

    groups: int

    reduced = ("h_y",)
    by_sets = True

    @property
    def statistics_shape(self) -> Shape:
        """A mean and an inverse deviation of each channel of each image: those of its group."""
        return statistics_shape(self.shape, by_site=False)

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
        """Rows of the patch, of all those of a group."""
        if array.ndim <= self.row_axis:
            return array
        return array.take(range(*piece.h_y), axis=self.row_axis)


@dataclass(frozen=True)
class GroupStatisticsCall(_OfGroups):
    """Mean and inverse deviation of each channel of each image, those of its group, from x."""

    shape: Shape
    dtype: str
    groups: int
    epsilon: float
    deterministic: bool = False

    inputs = ("x",)
    results = SAVED
    sweeps = 1
    loop_order = ("n", "c_y", "c_x", "h_y")

    def build(self, build: Builder) -> None:
        """Add to the moments of the groups."""
        build.accumulating = False
        operation = SetMoments(self.piece_shape(build.piece), self.dtype, self.unit)
        state = self.sum_sets(build, operation, ("x",), "moments")
        if build.accumulation.last:
            if self.of_group > 1:
                build.launch(MergeGroups(*self.groups_of(build)), (state,), state)
            made_of = dict(zip(SAVED, ("mean", "inverse_deviation"), strict=True))
            make_vectors(build, state, made_of, epsilon=self.epsilon)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Expected statistics of the patch's group."""
        x = self.group("x", piece, read)
        mean, largest = x.mean(), float(np.abs(x).max())
        inverse = 1 / math.sqrt(x.var() + self.epsilon)
        one = np.ones((1, self.of_group, *self.statistics_shape[2:]))
        return {
            SAVED[0]: (mean * one, largest * one),
            SAVED[1]: (inverse * one, inverse * (1 + inverse * largest) * one),
        }


@dataclass(frozen=True)
class GroupNormalizationGradientCall(_OfGroups):
    """dx, and what dscale and dbias are sums of, from x, dy, scale, mean and inverse deviation.

    Parameters
    ----------
    data : bool
        Whether dx is made; else scale is no operand, and there is one sweep.
    mode, coef
        Of an activation after the normalisation. Then dy is that of its result, which is made again
        for its slope; the bias is read, too.
    """

    shape: Shape
    dtype: str
    groups: int
    deterministic: bool = False
    data: bool = True
    mode: str = "identity"
    coef: float = 0.0

    loop_order = ("n", "c_y", SWEEP, "h_y", "c_x")
    may_be_in_place = True

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """One for the sums, one for dx."""
        return 2 if self.data else 1

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Scale for dx, and for y with the bias."""
        of_y = VECTORS_OF_Y if self.mode != "identity" else VECTORS_OF_Y[:1] * self.data
        return ("x", "dy", *SAVED, *of_y)

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        """Dx first, where it is made."""
        return ("dx", *SUMS) if self.data else SUMS

    def touched(self, name: str) -> range:
        """The sums in the first sweep, dx in the second, and scale, but for y."""
        if name in SUMS:
            return range(1)
        late = name == "dx" or (name == "scale" and self.mode == "identity")
        return range(1, 2) if late else range(self.sweeps)

    def build(self, build: Builder) -> None:
        """Add to the sums of the groups, or make their gradient."""
        build.accumulating = False
        shape, order = self.piece_shape(build.piece), build.buffers["x"].order
        statistics = build.buffers[SAVED[0]].shape
        if build.piece.sweep == 0:
            operation = SetSums(
                shape, self.dtype, self.unit, statistics_shape=statistics, mode=self.mode,
                coef=self.coef,
            )  # fmt: skip
            of_y = VECTORS_OF_Y if self.mode != "identity" else ()
            inputs = ("x", build.in_order("dy", order), *SAVED, "", *of_y)
            self.sum_channels(build, operation, inputs)
            return
        state = build.state("sums of channels", (2, *shape[:2]), "float64")
        scaled = build.scratch("sums of groups", (2, *shape[:2]), "float64")
        groups = GroupSums(*self.groups_of(build), ACCUMULATOR[self.dtype])
        build.launch(groups, (state, "scale"), scaled)
        backward = NormaliseSetsBackward(
            shape, self.dtype, self.elements, mode=self.mode, coef=self.coef
        )
        bias = VECTORS_OF_Y[1:] if self.mode != "identity" else ()
        self.make(build, backward, ("x", "dy"), ("scale", *SAVED, scaled, *bias), order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Sums over the patch's group."""
        x, dy = (self.group(name, piece, read) for name in ("x", "dy"))
        mean, inverse = (read(name, self.region(name, piece) or ()) for name in SAVED)
        hat, reach = (x - mean) * inverse, (np.abs(x) + np.abs(mean)) * inverse
        size = np.abs(dy)
        if self.mode != "identity":
            vectors = {n: per_channel(read(n, (piece.c_y,)), x.ndim) for n in VECTORS_OF_Y}
            dy, size = activation_slope(
                self, x, dy, vectors | dict(zip(SAVED, (mean, inverse), strict=True))
            )
        sums = sums_of_channels(dy, hat, reach, size)
        if not self.data:
            return sums
        scale = per_channel(read("scale", (piece.c_y,)), x.ndim)
        gradient, size = scale * dy, np.abs(scale) * size
        value = inverse * (gradient - gradient.mean() - hat * (gradient * hat).mean())
        size = inverse * (size + size.mean() + reach * (size * reach).mean())
        return {"dx": (self.within(value, piece), self.within(size, piece)), **sums}
