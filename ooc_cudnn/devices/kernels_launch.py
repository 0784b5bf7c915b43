"""From a planned launch to the card: what the runners of the kernels share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ooc_cudnn.devices import kernels
from ooc_cudnn.devices.kernel_plans import Launch
from ooc_cudnn.devices.view import DeviceView

#: (operation, inputs, output, workspace (pointer, bytes), stream) -> None
Runner = Callable[
    [Any, tuple[DeviceView | None, ...], DeviceView, tuple[int, int], Any],
    None,
]


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
