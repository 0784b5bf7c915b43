"""Launches of CUDA kernels: planned and compiled once, called with pointers.

A launch has two halves. What depends only on types, shapes, strides and alignment (which template
to instantiate, the grid, the geometry the kernel reads) is planned and compiled once, and
remembered; what changes from call to call (pointers, alpha, beta) is passed along. The second call
of a shape costs microseconds.

Streams are CuPy streams (anything with `.ptr`); None is CuPy's current stream. Nothing here
allocates device memory or synchronises.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.kernels import compile_ahead, compiling
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView

MOST_LAUNCHES = 4096  # remembered; a process that meets more shapes starts over


class Launch(NamedTuple):
    """All of a launch that does not change between calls of one shape."""

    source: str
    expression: str
    grid: tuple[int, ...]
    geometry: np.ndarray
    block: tuple[int, int] = (BLOCK_THREADS, 1)


class Call(NamedTuple):
    """Memory that an operation is run on: `workspace` is (pointer, bytes)."""

    inputs: tuple[DeviceView | None, ...]
    output: DeviceView
    workspace: tuple[int, int] = (0, 0)
    stream: Any = None


#: Runs an operation.
Runner = Callable[[Any, Call], None]

#: Compiled function and launch; None where there is nothing to do.
_prepared: dict[Hashable, tuple[Any, Launch | None]] = {}


def launch(
    operation: Hashable,
    views: Sequence[DeviceView | None],
    plan: Callable[[], Launch | None],
    scalars: Sequence[Any],
    stream: Any,
) -> None:
    """Run the kernel that `plan` chooses, planned and compiled once for all views alike.

    Where launches are collected (`compile_ahead`), it is only planned.

    The kernel's arguments are the geometry, the pointers of `views` (0 for None) and `scalars`.
    """
    device = compiling.current_device()
    # all of a view on which the choice of a kernel depends
    signatures = [
        view and (view.dtype, view.shape, view.strides, view.pointer % WIDEST_ACCESS_BYTES)
        for view in views
    ]
    key = (operation, device, *signatures)
    collected = compile_ahead.collected()
    if collected is not None:
        _, planned = _prepared.get(key) or (None, plan())
        if planned is not None:
            name = planned.source, planned.expression
            collected.kernels[name] = planned.geometry.nbytes
        return
    function, planned = _prepared.get(key) or _prepare(device, key, plan())
    if planned is None:
        return
    pointers = [view.pointer if view else 0 for view in views]
    function(planned.grid, planned.block, (planned.geometry, *pointers, *scalars), stream=stream)


def _prepare(device: int, key: Hashable, planned: Launch | None) -> tuple[Any, Launch | None]:
    """Compile a launch and remember it."""
    function = None
    if planned is not None:
        function = compiling.function(
            device, planned.source, planned.expression, planned.geometry.nbytes
        )
    if len(_prepared) >= MOST_LAUNCHES:
        _prepared.clear()
    _prepared[key] = function, planned
    return function, planned
