"""Pinned host memory: allocated exactly, counted against the host limit, used again.

Page-locking costs a quarter of a second a GiB, so memory whose arrays are gone is kept for the next
array of the same size, until the limit asks for it or `release` gives it back.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np

from ooc_cudnn import forks, interrupts
from ooc_cudnn.devices.base import Device, HostArray
from ooc_cudnn.errors import HostOutOfMemoryError

PAGE_BYTES = 4096


class _Loan(weakref.ref[Any]):
    """Tells that an array is gone; holds the memory that it had."""

    __slots__ = ("memory",)
    memory: HostArray


class _Pool:
    """The pinned memory of one device: bytes held, and what lies ready, by size.

    That an array is gone is noted by one append in C, and counted by `collect`: a finalizer in
    Python could be cut short by Ctrl-C, wherever it happened to run, and its memory would be lost.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.ready: defaultdict[int, list[HostArray]] = defaultdict(list)
        self._lent: dict[int, _Loan] = {}
        self._over: deque[_Loan] = deque()

    def lend(self, memory: HostArray, array: object) -> None:
        """Keep memory until the array that has it is gone."""
        loan = _Loan(array, self._over.append)
        loan.memory = memory
        self._lent[id(loan)] = loan

    def collect(self) -> None:
        """Let what has come back lie ready for the next array of its size."""
        while self._over:
            loan = self._over.popleft()
            del self._lent[id(loan)]
            self.ready[loan.memory.nbytes].append(loan.memory)

    def drop_ready(self) -> None:
        """Give back to the system what no array uses."""
        while self.ready:
            nbytes, memory = self.ready.popitem()
            self.held_bytes -= nbytes * len(memory)


_pools: defaultdict[str, _Pool] = defaultdict(_Pool)
_lock = forks.recursive_lock()


def held_bytes(device: Device) -> int:
    """Bytes of pinned host memory held for a device: in arrays, and ready for new ones."""
    return _pools[device.name].held_bytes


def idle_bytes(device: Device) -> int:
    """Bytes of pinned host memory that no array uses: ready for new ones of the same sizes."""
    with interrupts.deferred(), _lock:
        pool = _pools[device.name]
        pool.collect()
        return sum(nbytes * len(memory) for nbytes, memory in pool.ready.items())


def release(device: Device) -> None:
    """Give back the pinned memory that no array uses."""
    with interrupts.deferred(), _lock:
        pool = _pools[device.name]
        pool.collect()
        pool.drop_ready()


def allocate(
    device: Device, nbytes: int, limit_bytes: int | None, *, purpose: str = "an array"
) -> np.ndarray[Any, Any]:
    """Return pinned host memory as bytes: a multiple of the page size is taken for them.

    Raises
    ------
    HostOutOfMemoryError
        If `limit_bytes` or the machine does not allow it.
    """
    rounded = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    with interrupts.deferred(), _lock:
        pool = _pools[device.name]
        pool.collect()
        if pool.ready.get(rounded):
            memory = pool.ready[rounded].pop()
        else:
            if limit_bytes is not None and pool.held_bytes + rounded > limit_bytes:
                pool.drop_ready()
            try:
                memory = _allocate(device, pool, rounded, limit_bytes, purpose)
            except HostOutOfMemoryError:
                if not pool.ready:
                    raise
                pool.drop_ready()
                memory = _allocate(device, pool, rounded, limit_bytes, purpose)
            pool.held_bytes += rounded
        # The array's memory is an object of its own: when the last view is gone, so is it.
        owner = (ctypes.c_char * nbytes).from_address(memory.__array_interface__["data"][0])
        pool.lend(memory, owner)
    buffer: Any = owner
    return np.ndarray((nbytes,), np.uint8, buffer=buffer)


def _allocate(
    device: Device, pool: _Pool, nbytes: int, limit_bytes: int | None, purpose: str
) -> HostArray:
    available = 0
    try:
        if limit_bytes is None or pool.held_bytes + nbytes <= limit_bytes:
            return device.allocate_pinned(nbytes)
        available = max(limit_bytes - pool.held_bytes, 0)
        refused: MemoryError | None = None
    except MemoryError as error:
        refused = error
    raise HostOutOfMemoryError(
        requested_bytes=nbytes,
        available_bytes=available,
        limit_bytes=limit_bytes,
        held_bytes=pool.held_bytes,
        purpose=purpose,
    ) from refused
