"""Statistics of sets on the host: in float64, unit by unit, and what is normalised by them.

A unit's members are copied next to each other before they are summed, so that NumPy adds them in
the same order wherever they lie and whatever is summed beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.channel_reduction import merge_moments, moments_result
from ooc_cudnn.devices.host.chunks import (
    Array,
    Box,
    Inputs,
    Runner,
    arithmetic_dtype,
    chunks,
    of_channels,
)
from ooc_cudnn.devices.host.elementwise import slope_before
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.normalization.batch_launches import MomentsResult
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.normalization.set_reduction import (
    FoldImages,
    GroupSums,
    MergeGroups,
    NormaliseSets,
    NormaliseSetsBackward,
    NormaliseSitesBackward,
    SetMoments,
    SetSums,
)
from ooc_cudnn.tensor import ACCUMULATOR


def set_moments(operation: SetMoments, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Count, mean and M2 of each set: two passes over each unit, units merged by Chan."""
    x, state = inputs
    x = _sets(x, operation.by_site)

    def moments(box: Box) -> Array:
        values = x[box].astype(np.float64, order="C")
        mean = values.sum(axis=2) / values.shape[2]
        values -= mean[..., np.newaxis]
        values *= values
        count = np.full_like(mean, values.shape[2])
        return np.stack([count, mean, values.sum(axis=2)])

    _by_units(operation, moments, merge_moments, state, output)


def set_sums(operation: SetSums, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Sums of scale * dy, and of scale * dy * (x - mean) * inverse deviation, of each set."""
    x, dy, mean, inverse, scale, *of_y, state = inputs
    if of_y:
        dy = _before_activation(operation, x, dy, (*of_y, mean, inverse))
    x, dy = (_sets(tensor, operation.by_site) for tensor in (x, dy))
    vectors = (v if v is None else _sets(v, operation.by_site) for v in (mean, inverse, scale))
    mean, inverse, scale = (v if v is None else np.broadcast_to(v, x.shape) for v in vectors)

    def sums(box: Box) -> Array:
        gradient = dy[box].astype(np.float64, order="C")
        if scale is not None:
            gradient *= scale[box]
        first = gradient.sum(axis=2)
        gradient *= x[box] - mean[box].astype(np.float64)  # type: ignore[index]
        if inverse is not None:
            gradient *= inverse[box]
        return np.stack([first, gradient.sum(axis=2)])

    _by_units(operation, sums, np.add, state, output)


def _sets(array: Array, by_site: bool) -> Array:
    """A tensor, or what is broadcast over one, as (n, sets, members)."""
    n, c = (1, array.size) if array.ndim == 1 else array.shape[:2]
    flat = array.reshape(n, c, -1)
    return flat.swapaxes(1, 2) if by_site else flat


def _by_units(
    operation: SetMoments | SetSums,
    of: Callable[[Box], Array],
    merge: Callable[[Array, Array], Array],
    state: Array | None,
    output: Array,
) -> None:
    """Merge what is found `of` the units of each set after what is in the state."""
    images, sets, members = operation.shape[0], operation.sets, operation.members
    across = max(1, min(sets, host_chunks.CHUNK_ELEMENTS // operation.unit))
    down = max(1, host_chunks.CHUNK_ELEMENTS // (sets * operation.unit))
    for n in _ranges(images, down):
        for some in _ranges(sets, across):
            units = (of((n, some, unit)) for unit in _ranges(members, operation.unit))
            before = [] if state is None else [state[:, n, some].copy()]
            output[:, n, some] = reduce(merge, units, *before)


def _ranges(extent: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, extent)) for start in range(0, extent, size))


def fold_images(operation: FoldImages, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The states of all images together, one after the other."""
    images, state = inputs
    merge = merge_moments if operation.rows == 3 else np.add
    before = [] if state is None else [state.copy()]
    images = images.reshape(operation.rows, operation.images, operation.sets)
    output[...] = reduce(merge, images.swapaxes(0, 1), *before)


def merge_groups(operation: MergeGroups, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The moments of each group of channels, for each of its channels."""
    (state,) = inputs
    groups = state.reshape(3, operation.images, operation.groups, -1)
    merged = reduce(merge_moments, np.moveaxis(groups, 3, 0))
    output[...] = np.repeat(merged, operation.channels // operation.groups, axis=2)


def group_sums(operation: GroupSums, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Sums times scale, added up in each group, for each of its channels."""
    sums, scale = inputs
    scaled = (sums * scale).reshape(2, operation.images, operation.groups, -1)
    added = reduce(np.add, np.moveaxis(scaled, 3, 0))
    output[...] = np.repeat(added, operation.channels // operation.groups, axis=2)


def normalise_sets(
    operation: NormaliseSets, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """y = f(scale * (x - mean) * inverse deviation + bias)."""
    x, *vectors = inputs
    for box in chunks(output):
        np.copyto(output[box], _normalised(operation, x, vectors, box), casting="unsafe")


def _normalised(
    operation: NormaliseSets | SetSums | NormaliseSetsBackward,
    x: Array,
    vectors: Sequence[Array],
    box: Box,
) -> Array:
    """A box of y, not rounded yet, by scale, bias, mean and inverse deviation."""
    scale, bias, mean, inverse = vectors
    narrow = _narrow(mean, box)
    y = x[box].astype(arithmetic_dtype(operation.dtype))
    y -= mean[narrow]
    y *= inverse[narrow] * of_channels(scale, box)
    y += of_channels(bias, box)
    return MODES[operation.mode].value(y, operation.coef)


def normalise_sets_backward(
    operation: NormaliseSetsBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = inverse deviation * (scale * dy - sums[0] / count - xhat * sums[1] / count)."""
    x, dy, scale, mean, inverse, sums, *biases = inputs
    dtype = arithmetic_dtype(operation.dtype)
    if biases:
        dy = _before_activation(operation, x, dy, (scale, *biases, mean, inverse))
    level, slope = sums.reshape(2, *operation.statistics_shape) / operation.count
    level, slope = level.astype(dtype), (slope * inverse).astype(dtype)
    for box in chunks(output):
        narrow = _narrow(mean, box)
        part = x[box].astype(dtype)
        part -= mean[narrow]
        part *= slope[narrow]
        result = dy[box].astype(dtype)
        result *= of_channels(scale, box)
        result -= level[narrow]
        result -= part
        result *= inverse[narrow]
        np.copyto(output[box], result, casting="unsafe")


def normalise_sites_backward(
    operation: NormaliseSitesBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Find the sums of each site, and make dx by them."""
    x, dy, scale, mean, inverse = inputs
    sums = np.empty(operation.sums.output_shape)
    set_sums(operation.sums, (x, dy, mean, inverse, scale, None), sums, workspace)
    normalise_sets_backward(operation.by_sums, (*inputs, sums), output, workspace)


def _before_activation(
    operation: SetSums | NormaliseSetsBackward, x: Array, dy: Array, vectors: Sequence[Array]
) -> Array:
    """Dy times the slope of an activation after the normalisation, whose result is made again."""
    dtype = arithmetic_dtype(operation.dtype)
    dx = np.empty(dy.shape, dtype)
    before = replace(operation, mode="identity")
    for box in chunks(dx):
        normal = _normalised(before, x, vectors, box)
        dx[box] = slope_before(operation, normal, dy[box].astype(dtype))
    return dx


def normalise_sites(
    operation: NormaliseSites, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Find the statistics of each site, and normalise by them."""
    x, *vectors = inputs
    state = np.empty(operation.moments.output_shape)
    set_moments(operation.moments, (x, None), state, workspace)
    dtype, kept = ACCUMULATOR[operation.dtype], operation.statistics_shape
    for what in ("mean", "inverse_deviation"):
        vector = np.empty(kept, dtype)
        result = MomentsResult(kept, what, dtype, operation.epsilon)
        moments_result(result, (state, None), vector, workspace)
        vectors.append(vector)
    normalise = NormaliseSets(operation.shape, operation.dtype, by_site=True)
    normalise_sets(normalise, (x, *vectors), output, workspace)


def _narrow(statistics: Array, box: Box) -> Box:
    """The part of what is broadcast over a tensor that meets a box of it."""
    extents = zip(statistics.shape, box, strict=True)
    return tuple(slice(0, 1) if extent == 1 else part for extent, part in extents)


RUNNERS: dict[type, Runner] = {
    SetMoments: set_moments,
    SetSums: set_sums,
    FoldImages: fold_images,
    MergeGroups: merge_groups,
    GroupSums: group_sums,
    NormaliseSets: normalise_sets,
    NormaliseSetsBackward: normalise_sets_backward,
    NormaliseSitesBackward: normalise_sites_backward,
    NormaliseSites: normalise_sites,
}
