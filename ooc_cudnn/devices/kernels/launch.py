"""From a planned launch to the card: what the runners of the kernels share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels import launchers as kernels
from ooc_cudnn.devices.kernels.plans import Launch
from ooc_cudnn.devices.view import DeviceView

#: (operation, inputs, output, workspace (pointer, bytes), stream) -> None
Runner = Callable[
    [Any, tuple[DeviceView | None, ...], DeviceView, tuple[int, int], Any],
    None,
]

#: Offsets below this are computed in 32 bits; what is left of 2**31 is room for steps past the end.
SMALL_OFFSETS = 2**31 - 2**16


def is_small(views: Sequence[DeviceView | None], *numbers: int) -> bool:
    """Whether every offset in the views, and every one of `numbers`, fits an int.

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


def geometry(numbers: Sequence[int], *, small: bool) -> np.ndarray:
    """A C struct of ints or long longs, which CuPy passes by value."""
    data = np.array(numbers, np.int32 if small else np.int64)
    return data.view(f"V{data.nbytes}")


def launch(
    operation: Hashable,
    views: Sequence[DeviceView | None],
    plan: Callable[[], Launch | None],
    scalars: Sequence[Any],
    stream: Any,
) -> None:
    """Run the kernel that `plan` chooses, planned and compiled once for all views alike.

    The kernel's arguments are the geometry, the pointers of `views` (0 for None) and `scalars`.
    """
    device = kernels._device()
    key = (operation, device, *map(kernels._signature, views))
    prepared = kernels._prepared.get(key, kernels._UNKNOWN)
    if prepared is kernels._UNKNOWN:
        prepared = kernels._prepare(device, key, plan())
    if prepared is None:
        return
    pointers = [view.pointer if view else 0 for view in views]
    prepared.function(
        prepared.grid,
        prepared.block,
        (prepared.geometry, *pointers, *scalars),
        stream=stream,
    )
