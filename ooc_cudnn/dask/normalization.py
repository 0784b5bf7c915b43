"""Batch normalisation on dask arrays, exact over the whole batch: moments of blocks, then a tree.

With `deterministic` and images that are whole chunks, each image is summed up by itself and images
are merged in their order, as one call does: then the statistics are those of one call to the last
bit. Where chunks cut images, the order of sums is another one, the same each time.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import dask.array as da
import numpy as np

from ooc_cudnn.dask.functions import described_as, on_dask
from ooc_cudnn.dask.lazily import (
    Arrays,
    as_numpy,
    describe_operands,
    map_blocks,
    scaled_to,
    sum_blocks,
    total,
)
from ooc_cudnn.devices.host.channel_reduction import merge_moments
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.normalization.batch_calls import (
    BatchNormalizationCall,
    BatchNormalizationGradientCall,
)
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.batch_two_phase import (
    BatchNormalizationDataCall,
    ChannelMomentsCall,
    ChannelSumsCall,
)
from ooc_cudnn.operations.normalization.channel_reduction import SAVED
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype


@on_dask("batch_normalization_forward_training")
def batch_normalization_forward_training(
    *, x: Any, alpha: float, **given: Any
) -> tuple[da.Array, da.Array, da.Array]:
    """Moments, what is saved, and y."""
    name = "batch_normalization_forward_training"
    arrays, call = describe_operands(name, described_as(name, x=x, alpha=alpha, **given))
    assert isinstance(call, BatchNormalizationCall)
    mean, inverse = _statistics(name, arrays, call, call.epsilon)
    normalise = Chain((Normalise(call.shape, call.dtype),), call.dtype, alpha=alpha)
    vectors = {"mean": mean, "inverse_deviation": inverse}
    return map_blocks(name, normalise, {**arrays, **vectors}), mean, inverse


@on_dask("batch_normalization_backward")
def batch_normalization_backward(
    *, x: Any, dy: Any, alpha: float, **given: Any
) -> tuple[da.Array, da.Array, da.Array]:
    """Sums, gradients of scale and bias, and dx."""
    name = "batch_normalization_backward"
    inputs, call = describe_operands(name, described_as(name, x=x, dy=dy, alpha=alpha, **given))
    assert isinstance(call, BatchNormalizationGradientCall)
    arrays = dict(inputs)
    if call.epsilon is not None:
        made_anew = _statistics(name, arrays, call, call.epsilon)
        arrays |= zip(SAVED, made_anew, strict=True)
    channels, elements = call.shape[1], call.elements
    # xhat is made of the whole sum at the end, as one call does.
    mean, inverse = (arrays[each] for each in SAVED)
    saved = dict(zip(SAVED, (mean, da.ones_like(mean)), strict=True))
    products = _summed(
        name,
        ChannelSumsCall(call.shape, call.dtype, _sums_images(call, arrays)),
        {"x": arrays["x"], "dy": arrays["dy"], **saved},
        total,
        scaled_to(1.0, "float64"),
        (2, channels),
        "float64",
    )
    sums = da.map_blocks(_times, products, inverse, dtype="float64")
    vector = numpy_dtype(ACCUMULATOR[call.dtype])
    data = BatchNormalizationDataCall(call.shape, call.dtype, elements=elements, alpha=alpha)
    operands = {key: {**arrays, "sums": sums}[key] for key in data.inputs}
    return map_blocks(name, data, operands), sums[1].astype(vector), sums[0].astype(vector)


def _sums_images(
    call: BatchNormalizationCall | BatchNormalizationGradientCall, arrays: Arrays
) -> bool:
    """True if each image is summed up by itself: in a fixed order, and whole in one chunk."""
    return call.deterministic and all(
        count == 1 for name in ("x", "dy") if name in arrays for count in arrays[name].numblocks[2:]
    )


def _statistics(
    name: str,
    arrays: Arrays,
    call: BatchNormalizationCall | BatchNormalizationGradientCall,
    epsilon: float,
) -> tuple[da.Array, da.Array]:
    """Mean and inverse deviation of each channel."""
    by_image, channels = _sums_images(call, arrays), call.shape[1]
    moments = ChannelMomentsCall(call.shape, call.dtype, by_image)
    dtype = ACCUMULATOR[call.dtype]
    merged = _summed(
        name,
        moments,
        {"x": arrays["x"]},
        merge_all_moments,
        scaled_to(1.0, "float64"),
        (3, channels),
        "float64",
    )
    vectors = da.map_blocks(
        _vectors, merged, epsilon, dtype, dtype=dtype, chunks=((2,), (channels,)), name=None
    )
    return vectors[0], vectors[1]


def _summed(
    name: str,
    call: ChannelMomentsCall | ChannelSumsCall,
    arrays: Arrays,
    fold: Any,
    finish: Any,
    shape: tuple[int, ...],
    dtype: str,
) -> da.Array:
    """Parts of blocks; or of each image, one after the other."""
    if call.deterministic:
        # Blocks of one image, merged in their order as one call merges images.
        arrays = {
            key: each.rechunk({0: 1}) if len(each.shape) > 1 else each
            for key, each in arrays.items()
        }
    return sum_blocks(
        name, call, arrays, finish, fold=fold, in_order=call.deterministic, shape=shape, dtype=dtype
    )


def merge_all_moments(parts: list[Any]) -> Any:
    """Moments (3, c) merged one after the other by Chan's formula."""
    return reduce(merge_moments, [as_numpy(part) for part in parts])


def _times(sums: Any, inverse: Any) -> Any:
    of_dy, of_products = sums
    return np.stack([of_dy, of_products * as_numpy(inverse)])


def _vectors(moments: Any, epsilon: float, dtype: str) -> Any:
    count, mean, m2 = moments
    return np.stack([mean, 1 / np.sqrt(m2 / count + epsilon)]).astype(numpy_dtype(dtype))
