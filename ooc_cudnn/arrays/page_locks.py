"""Users' arrays that are page-locked where they lie, until their `Pin` is closed or dropped.

A `Pin` may be dropped anywhere, perhaps by the garbage collector. Python code that ran then would
swallow Ctrl-C. So all that happens then is one append, in C, as in `loans`; the pages are unlocked
when the library next looks where an array lies. Until then the array is kept.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

from ooc_cudnn import forks, interrupts
from ooc_cudnn.devices.base import Device


class PageLock(weakref.ref[Any]):
    """Tells that whoever holds the lock is gone; keeps the array, and knows where it is locked."""

    __slots__ = ("array", "device", "pointer")
    array: np.ndarray[Any, Any]
    device: Device
    pointer: int


_locks: dict[int, PageLock] = {}  # by identity: not every holder can be hashed
_dropped: deque[PageLock] = deque()


def lock(holder: object, array: np.ndarray[Any, Any], pointer: int, device: Device) -> PageLock:
    """Page-lock an array for as long as an object lives, or until `unlock`."""
    with interrupts.deferred():
        device.pin(pointer, array.nbytes)
        found = PageLock(holder, _dropped.append)
        found.array, found.device, found.pointer = array, device, pointer
        _locks[id(found)] = found
    return found


def unlock(found: PageLock) -> None:
    """Unlock the pages; a second call does nothing."""
    with interrupts.deferred():
        if _locks.pop(id(found), None) is not None:
            found.device.synchronize()
            found.device.unpin(found.pointer)


def unlock_dropped() -> None:
    """Unlock the pages of those that are gone."""
    while _dropped:
        with interrupts.deferred():
            unlock(_dropped.popleft())


def _leave_gpus_to_the_parent() -> None:
    for found in [found for found in _locks.values() if found.device.kind == "cuda"]:
        del _locks[id(found)]


forks.in_child(_leave_gpus_to_the_parent)
