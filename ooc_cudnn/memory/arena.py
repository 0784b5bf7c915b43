"""The device memory the library holds, counted byte by byte against the memory limit.

Two kinds: one block that calls lay their slots and workspace out in (kept between calls, grown when
a plan needs more), and arrays: results of calls, and what `empty`, `zeros` and `malloc` return.
Memory whose arrays are gone lies ready for new ones (`loans.py`). The block and what lies ready are
given back when the room is needed, by either of them, under a lower limit, or by the driver.

Between two calls the block is anybody's, unless a tenant keeps something in it: who wants it then
lets the tenant leave first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ooc_cudnn import fork_safety
from ooc_cudnn.errors import DeviceOutOfMemoryError, OocError
from ooc_cudnn.memory.loans import Allocation, Lease, Leases

__all__ = ["Allocation", "Arena"]


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


class Tenant(Protocol):
    """Owner of something that stays in the block between two calls."""

    def leave(self) -> None:
        """Bring it to safety: the block goes to somebody else. What it raises, that one gets."""


class Arena:
    """Accounts for every byte of device memory that one device holds for the library.

    Parameters
    ----------
    allocate : callable
        Takes bytes, returns an `Allocation`; raises MemoryError when the driver has no more.
    free_bytes : callable
        Bytes the device has free, whoever uses the rest.
    stream : callable, optional
        What the device works on memory in that is asked for now; such work is done in order. It is
        kept as long as memory lies ready for it. A device without streams has none to tell apart.
    """

    def __init__(
        self,
        allocate: Callable[[int], Allocation],
        free_bytes: Callable[[], int],
        stream: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._allocate, self._free_bytes, self._stream = allocate, free_bytes, stream
        #: What waits until nothing works in memory that is about to be given back: not where giving
        #: it back does so itself.
        self._settle: Callable[[], None] | None = None
        self._block: Allocation | None = None
        self._loans: Leases[Allocation] = Leases()
        self._peak_bytes = 0
        self._at_work = False
        #: Weakly: when nobody wants what it keeps, it is gone.
        self._tenant: weakref.ref[Tenant] | None = None
        self.lock = threading.RLock()
        _arenas.add(self)

    @property
    def array_bytes(self) -> int:
        """Bytes in arrays that somebody holds. All else of the limit can be had."""
        with self.lock:
            self._loans.collect()
            return self._loans.lent_bytes

    @property
    def ready_bytes(self) -> int:
        """Bytes whose arrays are gone, ready for new ones of the same sizes."""
        with self.lock:
            self._loans.collect()
            return self._loans.ready_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of the block calls work in."""
        return self._block.nbytes if self._block is not None else 0

    @property
    def held_bytes(self) -> int:
        """All bytes held now: arrays, what lies ready for them, and the block."""
        return self._loans.held_bytes + self.block_bytes

    def allocate_by(
        self, allocate: Callable[[int], Allocation], settle: Callable[[], None]
    ) -> None:
        """Take memory from another allocator from here on: one pool serves it and the library.

        What is kept for later goes back first. Arrays keep the memory that they have.

        Parameters
        ----------
        allocate : callable
            As of the arena.
        settle : callable
            Waits until the device is done with all memory: that allocator may hand it on at once.
        """
        with self.lock:
            if self._allocate != allocate:
                self.release()
                self._allocate, self._settle = allocate, settle

    @property
    def shared_bytes(self) -> int:
        """Held bytes that another allocator counts, too."""
        return self.held_bytes if self._settle is not None else 0

    @property
    def is_at_work(self) -> bool:
        """True if a call works in the block: nothing else may until it has ended."""
        return self._at_work

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at once since `reset_peak`."""
        return self._peak_bytes

    def reset_peak(self) -> None:
        """Start measuring the peak anew, from the arrays held now."""
        self._peak_bytes = self.array_bytes

    def reserve(self, nbytes: int, limit_bytes: int, *, purpose: str) -> int:
        """Return the address of the block, grown to `nbytes` if it was smaller.

        What lies ready and a kept block make way where they would break the limit, so what is held
        never exceeds it. The peak counts the bytes in use: `nbytes` of the block, and all arrays.

        Raises
        ------
        DeviceOutOfMemoryError
            If the limit or the device does not allow it.
        OocError
            If a call works in the block: this one comes from its progress callable.
        """
        with self.lock:
            if self._at_work:
                raise OocError(
                    "a call is at work on this device: a progress callable may not call a "
                    "function that computes on it"
                )
            self._let_leave()
            self._loans.collect()
            if self.held_bytes > limit_bytes:
                self._drop_ready()
            if self.block_bytes < nbytes or self.held_bytes > limit_bytes:
                self.release_block()
                if self.held_bytes + nbytes > limit_bytes:
                    self._drop_ready()
                self._check(nbytes, limit_bytes, purpose)
                if nbytes:
                    self._block = self._from_device(nbytes, limit_bytes, purpose)
            self._peak_bytes = max(self._peak_bytes, self._loans.lent_bytes + nbytes)
            return self._block.pointer if self._block is not None else 0

    @contextmanager
    def at_work(self, nbytes: int = 0) -> Iterator[None]:
        """Keep the block where it is while a call works in so many bytes of it.

        Other threads wait for `lock`; this is for what the same thread does meanwhile, in a
        progress callable.
        """
        self._peak_bytes = max(self._peak_bytes, self._loans.lent_bytes + nbytes)
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def settle(self, tenant: Tenant) -> None:
        """Let somebody keep what is in the block until `resume`; who wants the block asks first."""
        with self.lock:
            self._let_leave()
            self._tenant = weakref.ref(tenant)

    def resume(self, tenant: Tenant) -> int | None:
        """The address of the block if a tenant was never asked to leave it, which ends; else None.

        Others may not reserve the block before the caller has run: it holds `lock`.
        """
        with self.lock:
            if self._tenant is None or self._tenant() is not tenant:
                return None
            self._tenant = None
            return self._block.pointer if self._block is not None else 0

    def _let_leave(self) -> None:
        tenant = None if self._tenant is None else self._tenant()
        if tenant is not None:
            tenant.leave()
        self._tenant = None

    def release_block(self) -> None:
        """Give the block back to the device, unless a call works in it."""
        with self.lock:
            if not self._at_work:
                self._let_leave()
                if self._block is not None and self._settle is not None:
                    self._settle()
                self._block = None

    def _drop_ready(self) -> None:
        if self._loans.ready_bytes and self._settle is not None:
            self._settle()
        self._loans.drop_ready()

    def release(self) -> None:
        """Give back all that is kept for later: the block, and what lies ready for arrays."""
        with self.lock:
            self.release_block()
            self._loans.collect()
            self._drop_ready()

    def allocate_array(self, nbytes: int, limit_bytes: int) -> Lease:
        """Return memory for an array, counted as in use until it is collected.

        Memory of just this size that lies ready for the stream is taken first.

        Raises
        ------
        DeviceOutOfMemoryError
            If the limit or the device does not allow it.
        """
        with self.lock:
            loans, stream = self._loans, self._stream()
            loans.collect()
            memory = loans.take(nbytes, stream)
            if self.held_bytes + nbytes > limit_bytes:
                self._drop_ready()
            if self.held_bytes + nbytes > limit_bytes:
                self.release_block()
            try:
                self._check(nbytes, limit_bytes, "an array")
            except DeviceOutOfMemoryError:
                memory = None  # the error's traceback shall not keep it
                raise
            if memory is None:
                # Others use the device, too: no more lies ready than is free beside it.
                if loans.ready_bytes and loans.ready_bytes > self._free_bytes():
                    self._drop_ready()
                memory = self._from_device(nbytes, limit_bytes, "an array")
            lent = loans.lend(memory, Lease(memory), stream)
            self._peak_bytes = max(self._peak_bytes, loans.lent_bytes)
            return lent

    def _check(self, nbytes: int, limit_bytes: int, purpose: str) -> None:
        available = limit_bytes - self.held_bytes
        if nbytes > available:
            raise DeviceOutOfMemoryError(
                requested_bytes=nbytes,
                available_bytes=max(available, 0),
                limit_bytes=limit_bytes,
                held_bytes=self.held_bytes,
                purpose=purpose,
            )

    def _from_device(self, nbytes: int, limit_bytes: int, purpose: str) -> Allocation:
        """Ask the device, and again once all that is kept for later went back to it."""
        while True:
            try:
                return self._allocate(nbytes)
            except MemoryError as error:
                held_bytes = self.held_bytes
                self.release()
                if self.held_bytes == held_bytes:
                    raise DeviceOutOfMemoryError(
                        requested_bytes=nbytes,
                        available_bytes=self._free_bytes(),
                        limit_bytes=limit_bytes,
                        held_bytes=held_bytes,
                        purpose=purpose,
                    ) from error


def _free_arenas() -> None:
    """Reset a forked child: the call that was at work is the parent's."""
    for arena in list(_arenas):
        arena.lock, arena._at_work = threading.RLock(), False


fork_safety.run_in_child(_free_arenas)
