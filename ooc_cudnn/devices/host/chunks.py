"""Arrays in boxes of a bounded size, in the order of memory: small temporaries, few misses.

The host device computes in chunks, because anonymous memory counts against the machine too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ooc_cudnn.memory.blocks import boxes
from ooc_cudnn.tensor import ACCUMULATOR

Array = np.ndarray[Any, Any]
Box = tuple[slice, ...]

#: Arrays; None in place of one that is absent.
Inputs = tuple[Any, ...]
#: What runs an operation on the host: a function of (operation, inputs, output, workspace).
Runner = Callable[[Any, Inputs, Array, Array], None]

#: Elements that are worked on at a time: about a second-level cache.
CHUNK_ELEMENTS = 2**18


def arithmetic_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of arithmetic: float64 for float64, float32 for all others."""
    return np.dtype(ACCUMULATOR[dtype])


def chunks(array: Array, most: int | None = None) -> Iterator[Box]:
    """Cut an array into boxes of at most `most` elements, one slice per axis, as memory has them.

    Of a channels-last (1, 2, 3) array, whole sites:

    >>> [box[1:] for box in chunks(np.zeros((1, 3, 2)).transpose(0, 2, 1), 4)]
    [(slice(0, 2, None), slice(0, 2, None)), (slice(0, 2, None), slice(2, 3, None))]
    """
    if array.size == 0:
        return
    axes = memory_axes(array)
    for box in boxes(tuple(array.shape[axis] for axis in axes), most or CHUNK_ELEMENTS):
        slices = [slice(0, extent) for extent in array.shape]
        for axis, part in zip(axes, box, strict=False):  # the innermost axes are whole
            slices[axis] = part
        yield tuple(slices)


def memory_axes(array: Array) -> tuple[int, ...]:
    """Axes of an array from the outermost in memory to the innermost.

    >>> memory_axes(np.zeros((2, 5, 7, 3)).transpose(0, 3, 1, 2))
    (0, 2, 3, 1)
    """
    return tuple(sorted(range(array.ndim), key=lambda axis: (-abs(array.strides[axis]), axis)))


def of_channels(vector: Array, box: Box) -> Array:
    """The part of a vector (c,) that meets a box of a tensor (n, c, spatial...), to broadcast."""
    return vector[box[1]].reshape(-1, *[1] * (len(box) - 2))


def of_images(vector: Array, box: Box) -> Array:
    """The part of a vector (n,) that meets a box of a tensor (n, c, spatial...), to broadcast."""
    return vector[box[0]].reshape(-1, *[1] * (len(box) - 1))


def kept_where(mask: Array, values: Array) -> Array:
    """Values where the mask is true, 0 elsewhere, whatever they are there.

    By bits: `numpy.where` takes a branch for each element, ten times as long on a random mask.

    >>> kept_where(np.array([True, False]), np.array([2.5, np.nan]))
    array([2.5, 0. ])
    """
    bits = np.dtype(f"i{values.itemsize}")
    keep = mask.astype(bits)
    np.negative(keep, out=keep)
    np.bitwise_and(keep, values.view(bits), out=keep)
    return keep.view(values.dtype)
