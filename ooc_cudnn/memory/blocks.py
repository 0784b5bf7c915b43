"""A region as the fewest 2-D copies, or as boxes of a bounded size: pure integer arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ooc_cudnn.memory.axes import merged_axes
from perfmodel.rows import WHOLE, Rows

Shape = tuple[int, ...]

#: Copies of more blocks are gathered by the host instead, as narrow rows are.
MOST_BLOCKS = 256


class Block(NamedTuple):
    """One 2-D copy: `rows` runs of `width` elements, `pitch` elements apart on each side."""

    destination_offset: int
    source_offset: int
    width: int
    rows: int
    destination_pitch: int
    source_pitch: int


@lru_cache(maxsize=4096)
def blocks(shape: Shape, destination: Shape, source: Shape) -> tuple[Block, ...] | None:
    """Cut a copy between two strided tensors into 2-D copies, as few as can be.

    Strides are in elements. None where that is more than `MOST_BLOCKS`.

    Rows 0 to 4 of every channel of a (2, 3, 16, 8) tensor, to a packed piece: one strided copy.

    >>> blocks((2, 3, 4, 8), (96, 32, 8, 1), (384, 128, 8, 1))
    (Block(destination_offset=0, source_offset=0, width=32, rows=6, destination_pitch=32,
           source_pitch=128),)

    A whole packed tensor is one plain copy:

    >>> blocks((2, 3, 4, 8), (96, 32, 8, 1), (96, 32, 8, 1))[0].rows
    1
    """
    if 0 in shape:
        return ()
    axes = merged_axes(shape, [source, destination])
    outer = list(zip(axes.sizes, *axes.strides, strict=True))
    width = axes.inner
    if axes.inner_strides != (1, 1):
        outer.append((width, *axes.inner_strides))
        width = 1
    rows, source_pitch, destination_pitch = outer.pop() if outer else (1, width, width)
    if math.prod(extent for extent, _, _ in outer) > MOST_BLOCKS:
        return None
    copies = []
    for index in itertools.product(*(range(extent) for extent, _, _ in outer)):
        to = sum(i * d for i, (_, _, d) in zip(index, outer, strict=True))
        from_ = sum(i * s for i, (_, s, _) in zip(index, outer, strict=True))
        copies.append(Block(to, from_, width, rows, destination_pitch, source_pitch))
    return tuple(copies)


def rows_of(shape: Shape, strides: Shape, itemsize: int) -> Rows:
    """Return how a region lies in memory: the rows that are in one piece, and how far apart.

    `strides` are those of the tensor it is a region of, in elements.

    Rows 0 to 4 of every channel of a (2, 3, 16, 8) tensor of float32; and all of it:

    >>> rows_of((2, 3, 4, 8), (384, 128, 8, 1), 4)
    Rows(width_bytes=128, pitch_bytes=512, scattered=False)
    >>> rows_of((2, 3, 16, 8), (384, 128, 8, 1), 4)
    Rows(width_bytes=inf, pitch_bytes=0.0, scattered=False)
    """
    axes = merged_axes([max(e, 1) for e in shape], [[abs(stride) for stride in strides]])
    around = zip(axes.sizes, *axes.strides, strict=True)
    merged = [*around, (axes.inner, *axes.inner_strides)][::-1]  # innermost first
    width = merged.pop(0)[0] if merged[0][1] == 1 else 1
    if not merged:
        return WHOLE
    # one 2-D copy takes the rows of one axis; there is one for each of all others
    scattered = math.prod(extent for extent, _ in merged[1:]) > MOST_BLOCKS
    return Rows(width * itemsize, merged[0][1] * itemsize, scattered)


def boxes(shape: Shape, most: int) -> Iterator[tuple[slice, ...]]:
    """Cut an array along its leading axes into boxes of at most `most` elements, in memory order.

    Each box of a packed array is contiguous, and follows the one before.

    >>> list(boxes((2, 3), 3))
    [(slice(0, 1, None),), (slice(1, 2, None),)]
    >>> list(boxes((2, 3), 2))[:2]
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 3, None))]
    """
    inner = math.prod(shape[1:])
    if inner <= most or len(shape) == 1:
        step = max(1, most // max(inner, 1))
        for start in range(0, shape[0], step):
            yield (slice(start, min(start + step, shape[0])),)
        return
    for index in range(shape[0]):
        for rest in boxes(shape[1:], most):
            yield (slice(index, index + 1), *rest)
