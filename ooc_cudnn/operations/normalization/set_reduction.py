"""Statistics of sets: of each channel of each image, or of each site of each image.

What batch norm sums over all images, instance and group norm keep apart by image; layer norm sums
over the channels of a site. A set is what is summed up in one go: the sites of one channel of one
image, or with `by_site` the channels of one site. All else is merged from sets, in a fixed order:
channels of a group one after the other, images one after the other.

A set is summed in units of so many members, each in a tree of its own that depends on nothing but
their number, and units one after the other. So where pieces are cut at units, the sums are the same
to the last bit, however the images and channels are cut and wherever they lie in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.elementwise import OneShape, PerElement
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.row_axis import per_channel
from ooc_cudnn.operations.normalization.batch_launches import Normalise, small
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Work

#: A unit is at least so many members: few enough for many to be summed side by side.
LEAST_UNIT = 1024


def unit_rows(shape: Shape) -> int:
    """Rows along the first spatial axis that are a unit of a channel.

    >>> unit_rows((1, 3, 56, 56)), unit_rows((1, 3, 4000, 4000)), unit_rows((1, 3, 9000))
    (19, 1, 1024)
    """
    return -(-LEAST_UNIT // max(1, math.prod(shape[3:])))


def unit_of(shape: Shape) -> int:
    """Members of a unit of a channel: whole rows."""
    return unit_rows(shape) * math.prod(shape[3:])


def statistics_shape(shape: Shape, *, by_site: bool) -> Shape:
    """Shape of one value per reduction group, broadcastable to the tensor.

    >>> statistics_shape((2, 3, 5, 7), by_site=False), statistics_shape((2, 3, 5, 7), by_site=True)
    ((2, 3, 1, 1), (2, 1, 5, 7))
    """
    n, c, *spatial = shape
    return (n, 1, *spatial) if by_site else (n, c, *(1 for _ in spatial))


@dataclass(frozen=True)
class _OfSets(OneShape):
    """A launch that sums up every set of a piece.

    `unit` are the members of a unit.
    """

    shape: Shape
    dtype: str
    unit: int
    by_site: bool = False

    name = "set_statistics"
    rows = 0

    @property
    def sets(self) -> int:
        """Sets of one image."""
        return math.prod(self.shape[2:]) if self.by_site else self.shape[1]

    @property
    def members(self) -> int:
        """Members of a set."""
        return self.shape[1] if self.by_site else math.prod(self.shape[2:])

    @property
    def output_shape(self) -> Shape:
        return (self.rows, self.shape[0], self.sets)

    def over(self, count: int, one_in: str = "") -> Work:
        """Count the reads of it, one of them in a type."""
        problem = f"{self.name}; {self.shape[1]} channels"
        return self.passes("/batch_normalization/sums", count, problem=problem, one_in=one_in)


@dataclass(frozen=True)
class SetMoments(_OfSets):
    """(3, n, sets) float64 from (x, state): count, mean and M2 of each set.

    What is summed up before is in `state`, which may be the output; "" where nothing is.
    """

    name = "set_moments"
    rows = 3

    def work(self) -> Work:
        """One read."""
        return self.over(1)


@dataclass(frozen=True)
class SetSums(_OfSets):
    """(2, n, sets) float64 from (x, dy, mean, inverse deviation, scale, state).

    Sums of scale * dy, and of scale * dy * (x - mean) * inverse deviation, of each set. Mean and
    inverse deviation have `statistics_shape`, which is broadcast over x; the latter and scale,
    which is (c,), are 1 where they are "". What is summed up before is in `state`, as for
    `SetMoments`. With an activation after a normalisation of channels, dy is that of its result;
    before the state come scale and bias of that. `dy_dtype` is the type of dy where that has
    another one than x.
    """

    statistics_shape: Shape = ()
    mode: str = "identity"
    coef: float = 0.0
    dy_dtype: str = ""

    name = "set_sums"
    rows = 2

    def work(self) -> Work:
        """Two reads."""
        return self.over(2, self.dy_dtype)


@dataclass(frozen=True)
class FoldImages:
    """(rows, sets) from (images, state): states (rows, n, sets), one image after the other.

    Of three rows, moments, merged by Chan's formula; else sums. `state` are those of all images
    before, and may be the output; "" where there are none.
    """

    rows: int
    images: int
    sets: int

    name = "fold_images"

    @property
    def output_shape(self) -> Shape:
        return (self.rows, self.sets)

    def work(self) -> Work:
        """One read of the states of images."""
        return small(self.images * self.sets)


@dataclass(frozen=True)
class MergeGroups:
    """The moments of each group of channels, for each of its channels, from (state,), (3, n, c).

    In place on the state. Channels are merged one after the other.
    """

    images: int
    channels: int
    groups: int

    name = "merge_groups"

    @property
    def output_shape(self) -> Shape:
        return (3, self.images, self.channels)

    def work(self) -> Work:
        """A read and a write of the state."""
        return small(self.images * self.channels)


@dataclass(frozen=True)
class GroupSums:
    """(2, n, c) float64 from (sums, scale): sums (2, n, c) times scale, added up in each group.

    For each channel those of its group. `dtype` is that of scale, (c,).
    """

    images: int
    channels: int
    groups: int
    dtype: str

    name = "group_sums"

    @property
    def output_shape(self) -> Shape:
        return (2, self.images, self.channels)

    def work(self) -> Work:
        """A read and a write of the sums."""
        return small(self.images * self.channels)


@dataclass(frozen=True)
class NormaliseSets(PerElement):
    """y = f(scale * (x - mean) * inverse deviation + bias), from (x, scale, bias, mean, inverse).

    Scale and bias are (c,); mean and inverse deviation are (n, c, 1...), or with `by_site`
    (n, 1, spatial...), and f is an activation fused into the pass. `y_dtype` is the type of y where
    that has another one than x: it is rounded once.
    """

    shape: Shape
    dtype: str
    by_site: bool = False
    mode: str = "identity"
    coef: float = 0.0
    y_dtype: str = ""

    name = "normalise_sets"

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation."""
        return statistics_shape(self.shape, by_site=self.by_site)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        dtype, vector, kept = ACCUMULATOR[self.dtype], self.shape[1:2], self.statistics_shape
        shapes = {"scale": vector, "bias": vector, "mean": kept, "inverse_deviation": kept}
        return tuple(Parameter(name, shape, dtype) for name, shape in shapes.items())

    def work(self) -> Work:
        """One read and one write."""
        return self.passes("/batch_normalization", 2, problem=self.name, one_in=self.y_dtype)

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        scale, bias, mean, inverse = (np.abs(p) for p in parameters)
        return replace(self, mode="identity").reference(x, scale, bias, -mean, inverse)

    def reference(self, x: Array, *parameters: Array) -> Array:
        scale, bias, mean, inverse = (p.astype(np.float64) for p in parameters)
        scale, bias = (per_channel(vector, x.ndim) for vector in (scale, bias))
        return MODES[self.mode].value(scale * (x - mean) * inverse + bias, self.coef)


#: Passes by statistics that are known, into which an activation is fused.
Normalising = Normalise | NormaliseSets


@dataclass(frozen=True)
class NormaliseSetsBackward(OneShape):
    """dx from (x, dy, scale, mean, inverse deviation, sums).

    dx = inverse deviation * (scale * dy - sums[0] / count - xhat * sums[1] / count)

    `sums` (2, n, sets) are those of scale * dy and scale * dy * xhat, over the `count` elements
    that share a mean. The other operands are as for `NormaliseSets`. With an activation after the
    normalisation dy is that of its result, and takes its slope; the bias is the last operand.
    `dy_dtype` is the type of dy where that has another one than x.
    """

    shape: Shape
    dtype: str
    count: int
    by_site: bool = False
    mode: str = "identity"
    coef: float = 0.0
    dy_dtype: str = ""

    name = "normalise_sets_backward"

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation."""
        return statistics_shape(self.shape, by_site=self.by_site)

    def work(self) -> Work:
        """Two reads and a write."""
        return self.passes("/batch_normalization", 3, problem=self.name, one_in=self.dy_dtype)


@dataclass(frozen=True)
class NormaliseSitesBackward(OneShape):
    """dx of layer normalisation from (x, dy, scale, mean, inverse deviation).

    `NormaliseSetsBackward` by site, with the sums that it takes.
    """

    shape: Shape
    dtype: str
    dy_dtype: str = ""

    name = "normalise_sites_backward"

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inverse deviation: one of each site."""
        return statistics_shape(self.shape, by_site=True)

    @property
    def sums(self) -> SetSums:
        """Launch that finds the sums of each site."""
        return SetSums(
            self.shape, self.dtype, self.shape[1], by_site=True,
            statistics_shape=self.statistics_shape, dy_dtype=self.dy_dtype,
        )  # fmt: skip

    @property
    def by_sums(self) -> NormaliseSetsBackward:
        """Launch that makes dx by the sums."""
        return NormaliseSetsBackward(
            self.shape, self.dtype, self.shape[1], by_site=True, dy_dtype=self.dy_dtype
        )

    def work(self) -> Work:
        """Two reads and a write."""
        return self.passes("/batch_normalization", 3, problem=self.name, one_in=self.dy_dtype)
