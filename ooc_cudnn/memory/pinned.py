"""Pinned host memory: allocated exactly, counted against the host limit, used again.

Page-locking costs a quarter of a second a GiB, so memory whose arrays are gone is kept for the next
array of the same size, until the limit asks for it or `release` gives it back.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn import fork_safety, interrupts
from ooc_cudnn.activity import activity
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.host_memory import available_host_bytes
from ooc_cudnn.memory.loans import Leases
from ooc_cudnn.memory.source import HostArray, Source
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes

PAGE_BYTES = 4096


#: A search for what can be page-locked ends within this share of what was asked for.
FOUND_WITHIN = 16

_pools: defaultdict[str, Leases[HostArray]] = defaultdict(Leases)
#: By device, what could be page-locked in all when more was refused.
_most: dict[str, int] = {}
_lock = fork_safety.recursive_lock()


def held_bytes(device: Source) -> int:
    """Bytes of pinned host memory held for a device: in arrays, and ready for new ones."""
    with interrupts.defer_signals(), _lock:
        return _pools[device.name].held_bytes


def idle_bytes(device: Source) -> int:
    """Bytes of pinned host memory that no array uses: ready for new ones of the same sizes."""
    with interrupts.defer_signals(), _lock:
        pool = _collected(device)
        return pool.ready_bytes


class Room(NamedTuple):
    """Pinned memory that a device's arrays may still take, and what stands in the way of more.

    Attributes
    ----------
    available_bytes : int
    limit_bytes : int, optional
    held_bytes : int
        In arrays.
    """

    available_bytes: int
    limit_bytes: int | None
    held_bytes: int


def room(device: Source, limit_bytes: int | None) -> Room:
    """Return what may still be pinned: what the machine has free, and what lies ready here.

    Where the driver has refused to page-lock more (WSL, a container and ``ulimit -l`` cap it), it
    is what it would page-lock then.
    """
    with interrupts.defer_signals(), _lock:
        ready = idle_bytes(device)
        held = _pools[device.name].held_bytes - ready
        available = available_host_bytes() + ready
        for most in (limit_bytes, _most.get(device.name)):
            if most is not None:
                available = max(min(available, most - held), 0)
        return Room(available, limit_bytes, held)


def release(device: Source) -> None:
    """Give back the pinned memory that no array uses."""
    with interrupts.defer_signals(), _lock:
        pool = _collected(device)
        pool.drop_ready()
        _most.pop(device.name, None)  # more may be had by now


def allocate(
    device: Source, nbytes: int, limit_bytes: int | None, *, purpose: str = "an array"
) -> np.ndarray[Any, Any]:
    """Return pinned host memory as bytes: a multiple of the page size is taken for them.

    Raises
    ------
    HostOutOfMemoryError
        If `limit_bytes` or the machine does not allow it.
    """
    rounded = _in_pages(nbytes)
    with interrupts.defer_signals(), _lock:
        pool = _collected(device)
        memory = pool.take(rounded)
        if memory is None:
            beyond = limit_bytes is not None and pool.held_bytes + rounded > limit_bytes
            if pool.ready_bytes and (beyond or rounded > available_host_bytes()):
                pool.drop_ready()
            try:
                memory = _allocate(device, pool, rounded, limit_bytes, purpose)
            except HostOutOfMemoryError:
                if not pool.ready_bytes:
                    raise
                pool.drop_ready()
                memory = _allocate(device, pool, rounded, limit_bytes, purpose)
        # The array's memory is an object of its own: when the last view is gone, so is it.
        owner = (ctypes.c_char * nbytes).from_address(memory.__array_interface__["data"][0])
        pool.lend(memory, owner)
    buffer: Any = owner
    return np.ndarray((nbytes,), np.uint8, buffer=buffer)


def have_ready(device: Source, sizes: Collection[int], limit_bytes: int | None) -> None:
    """Pin memory for arrays of these bytes, all at once; where there is no room for it, none."""
    if sum(map(_in_pages, sizes)) > room(device, limit_bytes).available_bytes:
        return
    arrays = []
    try:
        for nbytes in sizes:  # each by itself: pinning takes long, and Ctrl-C is heard between them
            arrays.append(allocate(device, nbytes, limit_bytes))
    except HostOutOfMemoryError:
        return  # another took it meanwhile, or the machine has less than it said


def _collected(device: Source) -> Leases[HostArray]:
    """The pool of a device; what nobody uses is ready for others, and no run is still at it."""
    device.drop_kept()
    pool = _pools[device.name]
    pool.collect()
    return pool


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _allocate(
    device: Source, pool: Leases[HostArray], nbytes: int, limit_bytes: int | None, purpose: str
) -> HostArray:
    available = 0
    try:
        if limit_bytes is None or pool.held_bytes + nbytes <= limit_bytes:
            with activity(f"page-locking {format_bytes(nbytes)}", current().progress):
                return device.allocate_pinned(nbytes)
        available = max(limit_bytes - pool.held_bytes, 0)
        refused: MemoryError | None = None
    except MemoryError as error:
        refused = error
        available = _lockable_bytes(device, nbytes)
        _most[device.name] = pool.held_bytes + available
    raise HostOutOfMemoryError(
        requested_bytes=nbytes,
        available_bytes=available,
        limit_bytes=limit_bytes,
        held_bytes=pool.held_bytes,
        purpose=purpose,
    ) from refused


def _lockable_bytes(device: Source, refused_bytes: int) -> int:
    """Bytes that the driver page-locks at once, where it has refused so many: by bisection."""
    least, most = 0, refused_bytes
    while most - least > max(refused_bytes // FOUND_WITHIN, PAGE_BYTES):
        middle = _in_pages((least + most) // 2)
        try:
            device.allocate_pinned(middle)  # nobody holds it
        except MemoryError:
            most = middle
        else:
            least = middle
    return least
