"""Memory lent to arrays, and what lies ready for new ones since the old ones are gone.

cudaMalloc and cudaFree wait for the device and take as long as many a layer, and page-locking takes
longer still, so the memory of an array that is gone is kept for the next array of its size.

**In what order a device uses it.** The host lets go of an array while the device still works on
it. So memory is handed out again only for the stream that was current when it was first asked for:
what is queued there later runs later. That is the contract of CuPy's own pool. cudaMallocAsync
would order across streams, too, but holds more than it says in chunks of its own, which no limit
could count to the byte.

**When an array is gone** is noted by whichever thread drops it, at any point, perhaps by the
garbage collector in the midst of a line of this file. So all that happens then is one append, in C:
no lock, no line of Python that Ctrl-C could cut short. `collect` counts it later.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar


class Allocation(Protocol):
    """Device memory that is freed when the object is gone."""

    pointer: int
    nbytes: int


class Memory(Protocol):
    """Memory of either kind, device or pinned, that is freed when the object is gone."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


M = TypeVar("M", bound=Memory)
H = TypeVar("H")


class Lease:
    """Memory in the hands of an array: back when the array and all its views are gone."""

    __slots__ = ("__weakref__", "nbytes", "pointer")

    def __init__(self, memory: Allocation) -> None:
        self.pointer, self.nbytes = memory.pointer, memory.nbytes


class _Lease(weakref.ref[Any]):
    """Tells that whoever holds the memory is gone; knows what was lent, and for which stream."""

    __slots__ = ("memory", "stream")
    memory: Any
    stream: Hashable


class Leases(Generic[M]):
    """All memory of one kind that is, or was, lent to arrays of one device.

    Its owner holds a lock around every call. What is counted changes together with what it counts,
    with no call in between: Ctrl-C is heard at calls alone.
    """

    def __init__(self) -> None:
        self.lent_bytes = 0
        self.ready_bytes = 0
        self._lent: dict[int, _Lease] = {}  # by identity: not every holder can be hashed
        self._over: deque[_Lease] = deque()
        self._ready: dict[tuple[Hashable, int], list[M]] = {}

    @property
    def held_bytes(self) -> int:
        """All of it."""
        return self.lent_bytes + self.ready_bytes

    def lend(self, memory: M, holder: H, stream: Hashable = None) -> H:
        """Lend memory for as long as an object lives; an array on it is used first on a stream."""
        loan = _Lease(holder, self._over.append)
        loan.memory, loan.stream = memory, stream
        key = id(loan)
        self._lent[key] = loan
        self.lent_bytes += memory.nbytes
        return holder

    def take(self, nbytes: int, stream: Hashable = None) -> M | None:
        """Take memory of exactly this size that lies ready for a stream."""
        key = (stream, nbytes)
        ready = self._ready.get(key)
        if ready is None:
            return None
        memory = ready[-1]  # the latest: the device's caches may still know it
        del ready[-1]
        self.ready_bytes -= nbytes
        if not ready:
            del self._ready[key]  # and with it the stream, which was kept for its number
        return memory

    def collect(self) -> None:
        """Count what has come back."""
        while self._over:
            loan = self._over[0]
            key = id(loan)
            if key in self._lent:
                nbytes = loan.memory.nbytes
                ready = self._ready.setdefault((loan.stream, nbytes), [])
                ready += [loan.memory]
                del self._lent[key]
                self.lent_bytes -= nbytes
                self.ready_bytes += nbytes
            del self._over[0]

    def drop_ready(self) -> None:
        """Give what lies ready back to the device."""
        ready, self._ready, self.ready_bytes = self._ready, {}, 0
        ready.clear()
