"""The device memory the library holds, counted byte by byte against the memory limit.

Two kinds: one block that calls lay their slots and workspace out in (kept between calls, grown when
a plan needs more, given back when the room is needed), and arrays handed to the user by `empty`,
`zeros` and `malloc`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ooc_cudnn.errors import DeviceOutOfMemoryError, OocError


class Allocation(Protocol):
    """Device memory that is freed when the object is gone."""

    pointer: int
    nbytes: int


class Arena:
    """Accounts for every byte of device memory that one device holds for the library.

    Parameters
    ----------
    allocate : callable
        Takes bytes, returns an `Allocation`; raises MemoryError when the driver has no more.
    free_bytes : callable
        Bytes the device has free, whoever uses the rest.
    """

    def __init__(
        self, allocate: Callable[[int], Allocation], free_bytes: Callable[[], int]
    ) -> None:
        self._allocate, self._free_bytes = allocate, free_bytes
        self._block: Allocation | None = None
        self._array_bytes = 0
        self._peak_bytes = 0
        self._at_work = False
        self.lock = threading.RLock()

    @property
    def array_bytes(self) -> int:
        """Bytes in arrays the user holds from `empty`, `zeros` and `malloc`."""
        return self._array_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of the block calls work in."""
        return self._block.nbytes if self._block is not None else 0

    @property
    def held_bytes(self) -> int:
        """All bytes held now."""
        return self._array_bytes + self.block_bytes

    @property
    def is_at_work(self) -> bool:
        """Whether a call works in the block: nothing else may until it has ended."""
        return self._at_work

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at once since `reset_peak`."""
        return self._peak_bytes

    def reset_peak(self) -> None:
        """Start measuring the peak anew, from the arrays held now."""
        self._peak_bytes = self._array_bytes

    def reserve(self, nbytes: int, limit_bytes: int, *, purpose: str) -> int:
        """Return the address of the block, grown to `nbytes` if it was smaller.

        A kept block that would break the limit is exchanged for one that fits, so what is held
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
            if self.block_bytes < nbytes or self.held_bytes > limit_bytes:
                self.release_block()
                self._check(nbytes, limit_bytes, purpose)
                if nbytes:
                    self._block = self._from_device(nbytes, limit_bytes, purpose)
            self._peak_bytes = max(self._peak_bytes, self._array_bytes + nbytes)
            return self._block.pointer if self._block is not None else 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the block where it is while a call works in it.

        Other threads wait for `lock`; this is for what the same thread does meanwhile, in a
        progress callable.
        """
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def release_block(self) -> None:
        """Give the block back to the device, unless a call works in it."""
        with self.lock:
            if not self._at_work:
                self._block = None

    def allocate_array(self, nbytes: int, limit_bytes: int) -> Allocation:
        """Allocate memory for a user's array; it is uncounted when the allocation is collected.

        Raises
        ------
        DeviceOutOfMemoryError
            If the limit or the device does not allow it.
        """
        with self.lock:
            if self.held_bytes + nbytes > limit_bytes:
                self.release_block()
            self._check(nbytes, limit_bytes, "an array")
            try:
                allocation = self._from_device(nbytes, limit_bytes, "an array")
            except DeviceOutOfMemoryError:
                if self._block is None:
                    raise
                self.release_block()
                allocation = self._from_device(nbytes, limit_bytes, "an array")
            self._array_bytes += nbytes
            self._peak_bytes = max(self._peak_bytes, self._array_bytes)
        weakref.finalize(allocation, self._uncount, nbytes)
        return allocation

    def _uncount(self, nbytes: int) -> None:
        # No lock: a finalizer may run at any point of the very thread that holds it. The update
        # is one operation under the interpreter's lock.
        self._array_bytes -= nbytes

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
        try:
            return self._allocate(nbytes)
        except MemoryError as error:
            raise DeviceOutOfMemoryError(
                requested_bytes=nbytes,
                available_bytes=self._free_bytes(),
                limit_bytes=limit_bytes,
                held_bytes=self.held_bytes,
                purpose=purpose,
            ) from error
