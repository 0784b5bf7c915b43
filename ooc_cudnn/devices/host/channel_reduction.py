"""Sums, moments and maxima on the host: in float64, chunk by chunk, in the order of memory.

The order of the chunks depends on shapes and strides alone, so results are repeatable.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_cudnn.devices.host.chunks import (
    Array,
    Inputs,
    Runner,
    arithmetic_dtype,
    chunks,
    of_channels,
    of_images,
)
from ooc_cudnn.devices.host.elementwise import before_activation, times_slope
from ooc_cudnn.operations.elementwise.broadcast_reduction import TERMS, BroadcastSum
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    Moments,
    MomentsResult,
    NormaliseSums,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.softmax.channels import ImageMaximum, ImageProductSum, MergeImageMaximum


def broadcast_sum(operation: BroadcastSum, inputs: Inputs, output: Array, workspace: Array) -> None:
    """db = the sum of dy, or of dy * factor(x), over all that b was broadcast along."""
    dy, *rest = inputs
    wide = operation.wide
    axes = tuple(axis for axis, extent in enumerate(wide) if extent == 1)
    total = np.zeros(wide)
    for box in chunks(dy):
        terms = dy[box]
        if operation.factor:
            terms = TERMS[operation.factor](terms, rest[0][box].astype(np.float64))
        target = tuple(slice(0, 1) if e == 1 else part for part, e in zip(box, wide, strict=True))
        total[target] += terms.sum(axis=axes, dtype=np.float64, keepdims=True)
    np.copyto(output, total.reshape(operation.b_shape), casting="unsafe")


def moments(operation: Moments, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Count, mean and M2 of each channel: two passes over each chunk, chunks merged by Chan."""
    (x,) = inputs
    state = np.zeros((3, operation.shape[1]))
    for box in chunks(x):
        values = x[box].astype(np.float64)
        count = values.size // values.shape[1]
        mean = _over_channels(values) / count
        values -= of_channels(mean, (box[0], slice(None), *box[2:]))
        values *= values
        part = np.stack([np.full_like(mean, count), mean, _over_channels(values)])
        state[:, box[1]] = merge_moments(state[:, box[1]], part)
    output[...] = state


def merge_moments(state: Array, part: Array) -> Array:
    """Chan's formula; a part of no elements changes nothing.

    Infinite means are not subtracted: those of one sign together are infinite, not NaN.
    """
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = state, part
    n = n_a + n_b
    share = n_b / np.maximum(n, 1)
    delta = mean_b - mean_a
    mean = np.where(
        np.isfinite(delta), mean_a + delta * share, mean_a * (1 - share) + mean_b * share
    )
    return np.stack([n, mean, m2_a + m2_b + delta * delta * n_a * share])


def moments_result(
    operation: MomentsResult, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """One channel vector of the moments: a mean, an inverse deviation, a running statistic."""
    state, *rest = inputs
    count, mean, m2 = state.reshape(3, *output.shape)
    if operation.what == "mean":
        result = mean
    elif operation.what == "inverse_deviation":
        result = 1 / np.sqrt(m2 / count + operation.epsilon)
    else:
        (old,) = rest
        running = operation.what == "running_mean"
        new = mean if running else m2 / np.where(count == 1, 1, count - 1)
        result = (1 - operation.factor) * old.astype(np.float64) + operation.factor * new
    np.copyto(output, result, casting="unsafe")


def normalise_sums(
    operation: NormaliseSums, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Sums of dy and of dy * (x - mean), of dy times an activation's slope."""
    x, dy, mean, *further = inputs
    real = arithmetic_dtype(operation.dtype)
    center, vectors = mean.astype(real), None
    if further:
        inverse, scale, bias = (np.asarray(vector, np.float64) for vector in further)
        vectors = ((scale * inverse).astype(real), bias)
    mean = mean.astype(np.float64)
    sums = np.zeros((2, operation.shape[1]))
    for box in chunks(x):
        gradient = dy[box]
        if vectors is not None:
            difference = x[box].astype(real) - of_channels(center, box)
            gradient = before_activation(operation, difference, vectors, gradient.astype(real), box)
        gradient = gradient.astype(np.float64)
        sums[0, box[1]] += _over_channels(gradient)
        gradient *= x[box] - of_channels(mean, box)
        sums[1, box[1]] += _over_channels(gradient)
    output[...] = sums


def gradient_sums(operation: GradientSums, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Dz = dy * f'(y), written beside, and its sums: of dz, or of it and of dz * (x - mean)."""
    y, dy, more, dz, x, mean = inputs
    real = arithmetic_dtype(operation.dtype)
    sums = np.zeros((2, operation.shape[1]))
    for box in chunks(dz):
        incoming, value = dy[box].astype(real), y[box].astype(real)
        if operation.products:
            incoming += more[box]
        # read before dz is written, which may lie there
        difference = x[box].astype(np.float64) if operation.products else None
        dz[box] = times_slope(operation, value, value, incoming)
        gradient = dz[box].astype(np.float64)
        sums[0, box[1]] += _over_channels(gradient)
        if difference is not None:
            difference -= of_channels(mean.astype(np.float64), box)
            sums[1, box[1]] += _over_channels(gradient * difference)
    np.copyto(output, sums if operation.products else sums[0], casting="unsafe")


def _on_states(merge: Callable[[Array, Array], Array]) -> Runner:
    """Runner of an operation on (state, part): their two states together."""

    def run(operation: object, inputs: Inputs, output: Array, workspace: Array) -> None:
        output[...] = merge(*inputs)

    return run


def scale_row(operation: ScaleRow, inputs: Inputs, output: Array, workspace: Array) -> None:
    """One row of a state times a vector, in place."""
    state, factor = inputs
    np.multiply(state[operation.row], factor, out=output[operation.row])


def state_row(operation: StateRow, inputs: Inputs, output: Array, workspace: Array) -> None:
    """One row of a state, rounded."""
    (state,) = inputs
    np.copyto(output, state[operation.row].reshape(output.shape), casting="unsafe")


def image_maximum(operation: ImageMaximum, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Each image's maximum m and the sum of exp(x - m): chunks merged like pieces."""
    (x,) = inputs
    state = np.zeros((operation.shape[0], 2))
    state[:, 0] = -np.inf
    for box in chunks(x):
        values = x[box].astype(np.float64)
        maximum = values.max(axis=tuple(range(1, values.ndim)))
        values -= of_images(np.where(maximum == -np.inf, 0, maximum), (slice(None), *box[1:]))
        np.exp(values, out=values)
        part = np.stack([maximum, _over_images(values)], axis=1)
        state[box[0]] = _merged_maxima(state[box[0]], part)
    output[...] = state


def _merged_maxima(state: Array, part: Array) -> Array:
    """Sums rescaled to the larger maximum; a part that is -infinity throughout adds nothing."""
    maximum = np.maximum(state[:, 0], part[:, 0])
    base = np.where(maximum == -np.inf, 0, maximum)
    total = state[:, 1] * np.exp(state[:, 0] - base) + part[:, 1] * np.exp(part[:, 0] - base)
    return np.stack([maximum, total], axis=1)


def image_product_sum(
    operation: ImageProductSum, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Each image's sum of y * dy, or for "log" of dy."""
    *rest, dy = inputs
    y = None if operation.algorithm == "log" else rest[0]
    total = np.zeros(operation.shape[0])
    for box in chunks(dy):
        values = dy[box].astype(np.float64)
        if y is not None:
            values *= y[box]
        total[box[0]] += _over_images(values)
    output[:, 0] = total


def _over_channels(values: Array) -> Array:
    return np.asarray(values.sum(axis=(0, *range(2, values.ndim)), dtype=np.float64))


def _over_images(values: Array) -> Array:
    return np.asarray(values.sum(axis=tuple(range(1, values.ndim)), dtype=np.float64))


RUNNERS: dict[type, Runner] = {
    BroadcastSum: broadcast_sum,
    Moments: moments,
    MergeMoments: _on_states(merge_moments),
    MomentsResult: moments_result,
    NormaliseSums: normalise_sums,
    GradientSums: gradient_sums,
    AddStates: _on_states(np.add),
    ScaleRow: scale_row,
    StateRow: state_row,
    ImageMaximum: image_maximum,
    MergeImageMaximum: _on_states(_merged_maxima),
    ImageProductSum: image_product_sum,
}
