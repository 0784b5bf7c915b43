"""Batch normalisation: exact over the whole batch, however it is cut.

Statistics are (3, c) float64: count, mean, and sum of squared deviations (M2) of each channel;
those of two pieces are merged by Chan's formula, so they do not depend on how the batch is cut and
do not cancel where the mean is large. Channel vectors (mean, scale, ...) are float32, for float64
data float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.elementwise import OneShape, PerElement
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.row_axis import per_channel
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Work, pass_work


class _Tensor(OneShape):
    """A launch that goes over the data."""

    name: str

    def over(self, count: int, kind: str = "") -> Work:
        """Count the reads and writes of it."""
        problem = f"{self.name}; {self.shape[1]} channels"
        return self.passes(f"/batch_normalization{kind}", count, problem=problem)


def small(channels: int) -> Work:
    """Work of going over a few numbers a channel, or an image."""
    return pass_work(
        "pointwise/float64/statistics", device_bytes=72.0 * channels, elements=channels
    )


class _OfChannels:
    """A launch on a few numbers a channel."""

    channels: int

    def work(self) -> Work:
        """No work to speak of."""
        return small(self.channels)


@dataclass(frozen=True)
class Moments(_Tensor):
    """(3, c) float64 from (x,): count, mean and M2 of each channel in this piece."""

    shape: Shape
    dtype: str

    name = "moments"
    any_strides = True

    @property
    def output_shape(self) -> Shape:
        return (3, self.shape[1])

    def work(self) -> Work:
        """One read."""
        return self.over(1, "/sums")


@dataclass(frozen=True)
class MergeMoments(_OfChannels):
    """The moments of two parts together, from (state, part); in place on the state.

    delta = mean_b - mean_a; mean = mean_a + delta * n_b / n; M2 = M2_a + M2_b + delta^2 n_a n_b / n
    """

    channels: int

    name = "merge_moments"

    @property
    def output_shape(self) -> Shape:
        return (3, self.channels)


@dataclass(frozen=True)
class MomentsResult:
    """One vector from (state, old): of each channel, or whatever else a state is of.

    It has any `shape` of as many elements as the state has columns.

    `what`: "mean"; "inverse_deviation", 1 / sqrt(M2 / count + epsilon); "running_mean",
    (1 - factor) * old + factor * mean; "running_variance", the same with M2 / (count - 1), or
    M2 / count where count is 1. `old` is absent but for the running ones, and may be the output.
    """

    shape: Shape
    what: str
    dtype: str
    epsilon: float = 0.0
    factor: float = 0.0

    name = "moments_result"

    @property
    def output_shape(self) -> Shape:
        return self.shape

    def work(self) -> Work:
        """No work to speak of."""
        return small(math.prod(self.shape))


@dataclass(frozen=True)
class Normalise(_Tensor, PerElement):
    """y = f(scale * (x - mean) * inverse deviation + bias + z).

    From (x, scale, bias, mean, spread) and, if `has_addend`, z, a tensor of the shape of x.

    The order is that of cudnnBatchNormalizationForwardInference. `spread` is the inverse deviation,
    or with `epsilon` the variance, of which the inverse deviation is 1 / sqrt(spread + epsilon).
    As an operation of a chain it is inference; f is an activation fused into the pass. y may be the
    same memory as x or z.
    """

    shape: Shape
    dtype: str
    epsilon: float | None = None
    mode: str = "identity"
    coef: float = 0.0
    has_addend: bool = False

    name = "batch_normalization_forward_inference"
    any_strides = True

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        dtype, shape = ACCUMULATOR[self.dtype], (self.shape[1],)
        spread = "inverse_deviation" if self.epsilon is None else "variance"
        return tuple(Parameter(name, shape, dtype) for name in ("scale", "bias", "mean", spread))

    def work(self) -> Work:
        """A read and a write; another read of z."""
        return self.over(2 + self.has_addend)

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        scale, bias, mean, spread = (np.abs(p) for p in parameters)
        return replace(self, mode="identity").reference(x, scale, bias, -mean, spread)

    def reference(self, x: Array, *parameters: Array) -> Array:
        x = x.astype(np.float64)
        scale, bias, mean, spread = (per_channel(p, x.ndim) for p in parameters[:4])
        if self.epsilon is not None:
            spread = 1 / np.sqrt(spread + self.epsilon)
        y = scale * (x - mean) * spread + bias
        if self.has_addend:
            y = y + parameters[4]
        return MODES[self.mode].value(y, self.coef)


@dataclass(frozen=True)
class NormaliseSums(_Tensor):
    """(2, c) float64 from (x, dy, mean, ...): sums of dy and of dy * (x - mean).

    Where an activation f came after the normalisation, of dy * f'(y) in place of dy, y made again
    of x: further inputs are (inverse deviation, scale, bias). f is one whose y tells the slope.
    """

    shape: Shape
    dtype: str
    mode: str = "identity"
    coef: float = 0.0

    name = "normalise_sums"
    any_strides = True

    @property
    def output_shape(self) -> Shape:
        return (2, self.shape[1])

    def work(self) -> Work:
        """Two reads."""
        return self.over(2, "/sums")


@dataclass(frozen=True)
class AddStates:
    """state + part, from (state, part), float64 of the same shape; in place on the state."""

    shape: Shape

    name = "add_states"

    @property
    def output_shape(self) -> Shape:
        return self.shape

    def work(self) -> Work:
        """No work to speak of."""
        return small(math.prod(self.shape))


@dataclass(frozen=True)
class ScaleRow(_OfChannels):
    """One row of a (rows, c) float64 state times a vector of `dtype`, from (state, vector).

    In place on the state, whose other rows stay.
    """

    rows: int
    channels: int
    row: int
    dtype: str

    name = "scale_row"

    @property
    def output_shape(self) -> Shape:
        return (self.rows, self.channels)


@dataclass(frozen=True)
class StateRow:
    """One row of a float64 state in another `dtype`, from (state,).

    It has any `shape` of as many elements as the state has columns.
    """

    shape: Shape
    row: int
    dtype: str

    name = "state_row"

    @property
    def output_shape(self) -> Shape:
        return self.shape

    def work(self) -> Work:
        """No work to speak of."""
        return small(math.prod(self.shape))


@dataclass(frozen=True)
class NormaliseBackward(_Tensor):
    """dx from (x, dy, scale, mean, inverse deviation, sums): the gradient through the statistics.

    dx = scale * inverse deviation * (dy - sums[0] / count - xhat * sums[1] / count)

    `count` is the number of elements a channel has in the whole batch. With an activation after the
    normalisation, as for `NormaliseSums`, the bias is a further input. Source:
    cudnnBatchNormalizationBackward.
    """

    shape: Shape
    dtype: str
    count: int
    mode: str = "identity"
    coef: float = 0.0

    name = "normalise_backward"
    any_strides = True

    def work(self) -> Work:
        """Two reads and a write."""
        return self.over(3)
