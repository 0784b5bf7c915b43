"""Pinned host memory: allocated exactly, counted against the host limit, given back with the array."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import HostOutOfMemoryError

_held: dict[str, int] = {}


def held_bytes(device: Device) -> int:
    """Bytes of pinned host memory that the library holds for a device."""
    return _held.get(device.name, 0)


def allocate(
    device: Device, nbytes: int, limit_bytes: int | None, *, purpose: str = "an array"
) -> np.ndarray[Any, Any]:
    """Allocate pinned host memory as bytes; it is uncounted when the array is gone.

    Raises
    ------
    HostOutOfMemoryError
        If `limit_bytes` or the machine does not allow it.
    """
    held = held_bytes(device)
    if limit_bytes is not None and held + nbytes > limit_bytes:
        raise HostOutOfMemoryError(
            requested_bytes=nbytes,
            available_bytes=max(limit_bytes - held, 0),
            limit_bytes=limit_bytes,
            held_bytes=held,
            purpose=purpose,
        )
    try:
        array = device.allocate_pinned(nbytes)
    except MemoryError as error:
        raise HostOutOfMemoryError(
            requested_bytes=nbytes,
            available_bytes=0,
            limit_bytes=limit_bytes,
            held_bytes=held,
            purpose=purpose,
        ) from error
    _held[device.name] = held + nbytes
    weakref.finalize(array, _uncount, device.name, nbytes)
    return array


def _uncount(name: str, nbytes: int) -> None:
    _held[name] -= nbytes
