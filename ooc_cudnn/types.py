"""The types of the public functions' arguments.

They are for readers, editors and type checkers, and tell the command line what an argument is. What
a function accepts is checked where it is used, with an error that names the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, SupportsIndex

__all__ = [
    "Array",
    "ChannelStatistics",
    "ChannelVector",
    "Filters",
    "Padding",
    "PerChannel",
    "Sizes",
    "TransposedFilters",
]


class Array(Protocol):
    """An array of any framework that speaks DLPack: NumPy, CuPy, PyTorch and others.

    Examples
    --------
    >>> import numpy as np
    >>> array: Array = np.zeros((2, 3, 8, 8), "float32")
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""

    @property
    def dtype(self) -> Any:
        """Type of an element."""

    @property
    def __dlpack__(self) -> Any:
        """Hands the memory on."""

    @property
    def __dlpack_device__(self) -> Any:
        """Device of the memory."""


@dataclass(frozen=True)
class PerChannel:
    """Marks an array of one value per channel, in the data's dtype or in that of its sums."""

    in_dtype_of_sums: bool = False


@dataclass(frozen=True)
class OfFilters:
    """Marks the filters of a convolution, shape (cY, cX / groups, window...).

    Those of a transposed one have shape (cX, cY / groups, window...).
    """

    is_transposed: bool = False


Filters = Annotated[Array, OfFilters()]
TransposedFilters = Annotated[Array, OfFilters(is_transposed=True)]
ChannelVector = Annotated[Array, PerChannel()]
ChannelStatistics = Annotated[Array, PerChannel(in_dtype_of_sums=True)]

#: An integer, or one per spatial axis.
Sizes = SupportsIndex | Sequence[SupportsIndex]
#: An integer, one per spatial axis, or a (before, after) pair per axis.
Padding = SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]]
