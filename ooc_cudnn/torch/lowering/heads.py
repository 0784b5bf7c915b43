"""Channels that reshapes and permutations make heads of attention.

People write it in many ways. So the numbers of an image's elements are moved as the elements are,
and compared with what heads are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.torch.lowering.fallback_subgraph import FallbackSubgraph


class HeadsOfChannels(NamedTuple):
    """Heads that are some channels of a tensor (n, channels, sites...), one after the other."""

    source: Tensor
    start: int
    heads: int
    depth: int


def heads_of_channels(part: FallbackSubgraph, source: Tensor) -> HeadsOfChannels | None:
    """Match moves of a tensor (n, channels, sites...) to (n, depth, heads, sites), or None."""
    shape = part.first.shape
    if len(source.shape) < 3 or len(shape) != 4 or shape[3] != math.prod(source.shape[2:]):
        return None
    _, depth, heads, sites = shape
    numbers = _moved_numbers(part, source)
    start, first = divmod(int(numbers.flat[0]), sites)
    channels = np.arange(heads * depth).reshape(heads, depth).T[:, :, None]
    if first or not np.array_equal(numbers[0], (start + channels) * sites + np.arange(sites)):
        return None
    return HeadsOfChannels(source, start, heads, depth)


def _moved_numbers(part: FallbackSubgraph, source: Tensor) -> np.ndarray[Any, Any]:
    """Numbers of one image's elements, moved as these are. Whole numbers are exact in float64."""
    shape = (1, *source.shape[1:])
    numbers = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu").reshape(shape)
    with torch.no_grad():
        (moved,) = part.run([numbers], 1)
    return moved.numpy().astype(np.int64)
