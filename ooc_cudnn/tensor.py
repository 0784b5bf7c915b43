"""Description of a tensor without its data: shape, dtype, placement, strides.

Logical axis order is always N, C, then one to three spatial axes; the memory order is read from the
strides. Strides are counted in elements, not bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.cached import cached_property
from perfmodel.record import Record

__all__ = ["DTYPES", "ORDERS", "PLACEMENTS", "TensorSpec", "numpy_dtype", "packed_strides"]

PLACEMENTS = ("device", "pinned", "pageable", "disk")
ORDERS = ("channels_first", "channels_last")

#: Bytes of one element, by dtype name.
DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

#: The same of images and labels, which are read and never computed in.
INTEGERS = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8}

#: Of everything that is copied.
ITEM_BYTES = {**DTYPES, **INTEGERS}

#: What sums are held in, by dtype: half types accumulate in float32.
ACCUMULATOR = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}

#: Relative rounding error of one product or sum, by arithmetic.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-11, "float32": 2.0**-24,
                 "float64": 2.0**-53}  # fmt: skip

#: What results this small are rounded to.
SMALLEST_STEP = {"float16": 2.0**-24}


@lru_cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`; bfloat16 needs the package ``ml_dtypes``.

    >>> numpy_dtype("float16").itemsize
    2
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError(
            "dtype bfloat16 needs the package ml_dtypes: pip install 'ooc_cudnn[bfloat16]'"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)


def rounded_to(dtype: str, value: float) -> float:
    """Return a number as an element of a dtype holds it; of one that is too large, infinity.

    >>> rounded_to("bfloat16", 0.1), rounded_to("float16", 1e5)
    (0.10009765625, inf)
    """
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return float(numpy_dtype(dtype).type(value))
        single = np.float32(value)  # without ml_dtypes: a card needs none
    if not np.isfinite(single):
        return float(single)
    bits = int(single.view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits >> 16 << 16).view(np.float32))


def dtype_name(dtype: Any, *, name: str = "dtype", integers: bool = False) -> str:
    """Return the name of a supported dtype, given as a string, a NumPy dtype or a scalar type.

    Raises
    ------
    TypeError
        If the dtype is not one of `DTYPES`, nor, with `integers`, of `INTEGERS`.
    """
    allowed = ITEM_BYTES if integers else DTYPES
    if isinstance(dtype, str) and dtype in allowed:
        return dtype
    try:
        type_name = np.dtype(dtype).name
    except TypeError:
        type_name = str(dtype)
    if type_name not in allowed:
        further = f", or of images and labels {', '.join(INTEGERS)}" if integers else ""
        raise TypeError(f"{name} must be one of {', '.join(DTYPES)}{further}, not {type_name}")
    return type_name


@lru_cache(maxsize=4096)
def packed_strides(shape: tuple[int, ...], order: str = "channels_first") -> tuple[int, ...]:
    """Strides in elements of a packed tensor (N, C, spatial...) in the given memory order.

    >>> packed_strides((2, 3, 5, 7))
    (105, 35, 7, 1)
    >>> packed_strides((2, 3, 5, 7), "channels_last")
    (105, 1, 21, 3)
    """
    axes = list(range(len(shape)))
    if order == "channels_last" and len(shape) > 2:
        axes = [0, *axes[2:], 1]
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= int(shape[axis])
    return tuple(strides)


def same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if strides lead to the same elements: those of axes of extent 1 are never taken.

    >>> same_strides((2, 3, 1, 7), (21, 7, 7, 1), (21, 7, 99, 1))
    True
    """
    return one == other or all(
        extent == 1 or a == b for extent, a, b in zip(shape, one, other, strict=True)
    )


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
    """Memory order of a tensor whose rows may be pitched, or None if it is neither order.

    A tensor is in an order when everything inside one row range of one image and one channel (or,
    channels-last, one row range of one image) is packed: such a tensor is copied and computed on
    as it lies. Axes of extent 1 fit any stride; that of a single channel says which of the two
    orders, which are one then, is meant.

    >>> memory_order((2, 3, 5, 7), (105, 35, 7, 1)), memory_order((2, 3, 5, 7), (105, 1, 21, 3))
    ('channels_first', 'channels_last')
    >>> memory_order((2, 3, 5, 7), (210, 70, 7, 1))  # every second image and channel
    'channels_first'
    >>> memory_order((2, 1, 5, 7), (35, 35, 7, 1)), memory_order((2, 1, 5, 7), (35, 1, 7, 1))
    ('channels_first', 'channels_last')
    >>> memory_order((2, 3, 5, 7), (105, 35, 1, 5)) is None  # transposed
    True
    """
    if any(stride <= 0 for extent, stride in zip(shape, strides, strict=True) if extent > 1):
        return None
    for order in reversed(ORDERS) if _is_single_channel_last(shape, strides) else ORDERS:
        packed = packed_strides(shape, order)
        inner = range(1, len(shape)) if order == "channels_last" else range(2, len(shape))
        if all(shape[axis] == 1 or strides[axis] == packed[axis] for axis in inner) and (
            _nested(shape, strides)
        ):
            return order
    return None


def _is_single_channel_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if the stride of a single channel is that of channels-last, and of no other order."""
    return shape[1:2] == (1,) and strides[1] == 1 and math.prod(shape[2:]) > 1


def _nested(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if no two index tuples share an element (each axis steps over the axes inside it)."""
    inner = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1:
            if stride < inner:
                return False
            inner = stride * (extent - 1) + inner
    return True


@dataclass(frozen=True)
class TensorSpec(Record):
    """Shape, dtype, placement and strides of a tensor; what `plan` takes in place of an array.

    Parameters
    ----------
    shape : tuple of int
        Logical shape; N, C, then one to three spatial axes for feature maps.
    dtype : str
        "float16", "bfloat16", "float32" or "float64"; of images and labels also one of
        `INTEGERS`.
    placement : str
        "device", "pinned", "pageable" or "disk".
    strides : tuple of int, optional
        In elements; packed channels-first when left out.

    Examples
    --------
    >>> spec = TensorSpec((512, 64, 256, 256))
    >>> spec.nbytes, spec.order
    (8589934592, 'channels_first')
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    placement: str = "pinned"
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(int(extent) for extent in self.shape)
        if not shape or any(extent < 1 for extent in shape):
            raise ValueError(f"shape must hold positive sizes, not {tuple(self.shape)}")
        if self.placement not in PLACEMENTS:
            raise ValueError(
                f"placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype_name(self.dtype, integers=True))
        strides = tuple(int(s) for s in self.strides) or packed_strides(shape)
        if len(strides) != len(shape):
            raise ValueError(f"strides {strides} do not match shape {shape}")
        object.__setattr__(self, "strides", strides)
        key = (shape, self.dtype, self.placement, strides)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]  # looked up in every call

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of the memory that strided ones span)."""
        return self.elements * self.itemsize

    @cached_property
    def order(self) -> str | None:
        """Memory order, or None for strides that fit neither order."""
        return memory_order(self.shape, self.strides)
