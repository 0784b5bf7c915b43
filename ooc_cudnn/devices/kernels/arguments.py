"""Arguments of kernels: types and modes as template arguments, numbers as structs by value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_cudnn.devices.view import DeviceView

CUDA_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
CUDA_INTEGERS = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "uint16": "unsigned short",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
}
#: Copies move elements as words of so many bytes.
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

#: Offsets below this are computed in 32 bits; what is left of 2**31 is room for steps past the end.
SMALL_OFFSETS = 2**31 - 2**16


def real_type(dtype: str) -> type[np.float32 | np.float64]:
    """The type in which elements of `dtype` are computed, as NumPy's type of scalars."""
    return np.float64 if dtype == "float64" else np.float32


def boolean(value: bool) -> str:
    """A template argument that is true or false."""
    return "true" if value else "false"


def instance(kernel: str, *arguments: str | int) -> str:
    """Name the instance of a template.

    >>> instance("take", "int", 4, True)
    'take<int, 4, true>'
    """
    words = (boolean(each) if isinstance(each, bool) else str(each) for each in arguments)
    return f"{kernel}<{', '.join(words)}>"


def is_small(views: Sequence[DeviceView | None], *numbers: int) -> bool:
    """True if every offset in the views, and every one of `numbers`, fits an int.

    >>> is_small([DeviceView(0, "float32", (2, 2**30), (2**30, 1))], 5)
    False
    """
    reach = [
        sum((size - 1) * abs(step) for size, step in zip(view.shape, view.strides, strict=True))
        for view in views
        if view is not None and view.size
    ]
    return all(abs(number) < SMALL_OFFSETS for number in (*reach, *numbers))


def index_type(*, small: bool) -> str:
    """The template argument I of the kernels that compute offsets in either width."""
    return "int" if small else "long long"


def three(numbers: Sequence[int], filler: int) -> tuple[int, ...]:
    """One number for each of three spatial axes; those that are not there come first."""
    return (filler,) * (3 - len(numbers)) + tuple(numbers)
