"""A tensor in device memory, as the kernels see it: a pointer, an element type, sizes, strides."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ooc_cudnn.tensor import ITEM_BYTES

#: The most that a thread of the card moves in one access: what all memory is aligned to.
WIDEST_ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A strided tensor in device memory. Owns nothing and keeps nothing alive.

    Parameters
    ----------
    pointer : int
        Device address of the first element.
    dtype : str
        "float16", "bfloat16", "float32" or "float64"; of images and labels also one of
        `INTEGERS`. "uint8" for bytes that are only copied, too.
    shape : tuple of int
        Sizes in logical order: n, c, then the spatial axes. (Filters: k, c, spatial. Channel
        vectors: one axis.)
    strides : tuple of int
        Strides in elements, not bytes, one per axis.

    Examples
    --------
    >>> rows = DeviceView(4096, "float32", (2, 3, 4, 5), (300, 100, 5, 1))  # 4 of 20 rows
    >>> rows.flat()
    ((2, 3, 20), (300, 100, 1))
    >>> DeviceView(4096, "float32", (2, 3, 4, 5), (60, 1, 15, 3)).flat()  # channels-last
    ((2, 3, 20), (60, 1, 3))
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(ITEM_BYTES)}")
        if len(self.shape) != len(self.strides):
            raise ValueError(
                f"shape {self.shape} and strides {self.strides} differ in their number of axes"
            )
        if min(self.shape, default=0) < 0:
            raise ValueError(f"shape is {self.shape}; sizes must not be negative")

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def flattens(self) -> bool:
        """True if the spatial axes flatten to one stride; not if columns were cut off the rows."""
        inside = self._spatial
        return not self.size or all(
            step == extent * inner for (_, step), (extent, inner) in itertools.pairwise(inside)
        )

    def flat(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Sizes and strides as (n, c, s), with the spatial axes flattened into s.

        Raises
        ------
        ValueError
            If there are fewer than two axes, or the spatial axes do not flatten.
        """
        if len(self.shape) < 2:
            raise ValueError(f"shape is {self.shape}; the axes n and c are required")
        if not self.flattens:
            raise ValueError(
                f"the spatial axes of shape {self.shape} with strides {self.strides} do not "
                "flatten into one of one stride"
            )
        stride = self._spatial[-1][1] if self._spatial else 1
        (n, c), (step_n, step_c) = self.shape[:2], self.strides[:2]
        return (n, c, math.prod(self.shape[2:])), (step_n, step_c, stride)

    @property
    def _spatial(self) -> list[tuple[int, int]]:
        """Extent and stride of each spatial axis of more than one element."""
        axes = zip(self.shape[2:], self.strides[2:], strict=True)
        return [(extent, step) for extent, step in axes if extent != 1]
