"""Checks that runners make of the memory they are handed."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.tensor import packed_strides, same_strides


def check(name: str, view: DeviceView | None, shape: Sequence[int], dtype: str) -> DeviceView:
    """Return the view, which must be there, of this shape and type.

    Raises
    ------
    ValueError
        If it is not.
    """
    if view is None:
        raise ValueError(f"{name} is absent")
    if view.shape != tuple(shape) or view.dtype != dtype:
        raise ValueError(
            f"{name} is {view.dtype} of shape {view.shape}; the operation says {dtype} of {shape}"
        )
    return view


def check_packed(
    name: str, view: DeviceView | None, shape: Sequence[int], dtype: str
) -> DeviceView:
    """Return the view, which must also lie without gaps in the order of its axes."""
    found = check(name, view, shape, dtype)
    packed = packed_strides(found.shape)
    if found.size and not same_strides(found.shape, found.strides, packed):
        raise ValueError(f"{name} of shape {shape} has strides {found.strides}, is not packed")
    return found


def workspace_pointer(workspace: tuple[int, int], nbytes: int) -> int:
    """Return the workspace's pointer; it must have so many bytes."""
    pointer, available = workspace
    if available < nbytes:
        raise ValueError(f"the workspace has {available} bytes; this launch needs {nbytes}")
    return pointer
