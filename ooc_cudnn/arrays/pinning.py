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

from ooc_cudnn import fork_safety, interrupts
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.memory.files import array_span
from ooc_cudnn.settings import current


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
    with interrupts.defer_signals():
        device.pin(pointer, array.nbytes)
        page_lock = PageLock(holder, _dropped.append)
        page_lock.array, page_lock.device, page_lock.pointer = array, device, pointer
        _locks[id(page_lock)] = page_lock
    return page_lock


def unlock(found: PageLock) -> None:
    """Unlock the pages; a second call does nothing."""
    with interrupts.defer_signals():
        if _locks.pop(id(found), None) is not None:
            found.device.synchronize()
            found.device.unpin(found.pointer)


def unlock_dropped() -> None:
    """Unlock the pages of those that are gone."""
    while _dropped:
        with interrupts.defer_signals():
            try:
                dropped = _dropped.popleft()
            except IndexError:  # another thread took the last one
                return
            unlock(dropped)


def _leave_gpus_to_the_parent() -> None:
    for found in [found for found in _locks.values() if found.device.kind == "cuda"]:
        del _locks[id(found)]


fork_safety.run_in_child(_leave_gpus_to_the_parent)


class Pin:
    """Page-locks an existing NumPy array in place, until `close` or the end of a ``with`` block."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"array must be a NumPy array, not {type(array).__name__}")
        low, high = array_span(array)
        if array.size and high - low != array.nbytes:
            raise ValueError("array must fill its memory without holes to be pinned")
        self.array = array
        unlock_dropped()
        # From the lowest address: of an array with negative strides, not its first element's.
        self._lock = lock(self, array, low, get_device(current().device))

    def close(self) -> None:
        """Unlock the pages; a second call does nothing."""
        unlock(self._lock)

    def __enter__(self) -> np.ndarray[Any, Any]:
        return self.array

    def __exit__(self, *error: object) -> None:
        self.close()


def pin(array: np.ndarray[Any, Any]) -> Pin:
    """Page-lock an existing NumPy array in place.

    Copies to and from pinned memory run at the full speed of the link. Pinning takes time once (on
    an H200 some hundredths of a second a GiB), so it pays for arrays that are used in more than one
    call.

    Parameters
    ----------
    array : numpy.ndarray
        Without holes in its memory; any axis order.

    Returns
    -------
    Pin
        A context manager that yields the array; or keep it and call `close`.

    Raises
    ------
    TypeError, ValueError
        If it is no such array.

    Examples
    --------
    >>> import numpy, ooc_cudnn
    >>> x = numpy.zeros((1, 3, 64, 64), "float32")
    >>> with ooc_cudnn.pin(x):
    ...     ooc_cudnn.placement(x)
    'pinned'
    """
    return Pin(array)
