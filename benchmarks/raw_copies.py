"""Raw copies over the link, the bound of `convolution_link`: whole, in pieces, or one by one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np


class DuplexLink:
    """Raw copies of x to the device and of NaN to y, both at once: the bytes of a call, no more.

    On a GPU asynchronous copies, each way on a stream of its own: whole, or in pieces of
    `piece_bytes` that share a ring of device memory, whichever the link likes better; on the host
    two threads. What comes back is NaN, so every measurement also poisons y for what follows.
    """

    RING_PIECES = 4

    def __init__(
        self,
        x: np.ndarray[Any, Any],
        y: np.ndarray[Any, Any],
        *,
        cuda: bool,
        piece_bytes: int | None = None,
    ) -> None:
        self._x, self._y, self._cuda = x, y, cuda
        self._piece_bytes = min(piece_bytes or x.nbytes, x.nbytes)
        if x.nbytes != y.nbytes:
            raise ValueError(f"x has {x.nbytes} bytes and y {y.nbytes}; as many each way, please")
        if cuda:
            import cupy

            self._runtime = cupy.cuda.runtime
            self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            pieces = -(-x.nbytes // self._piece_bytes)
            held = min(pieces, self.RING_PIECES) * self._piece_bytes
            self._into, self._from = cupy.cuda.Memory(held), cupy.cuda.Memory(held)
            self._runtime.memset(self._from.ptr, 0xFF, held)  # every float of ones is NaN
            self._runtime.deviceSynchronize()
        else:
            self._into = np.empty_like(x)
            self._from = np.full_like(y, np.nan)

    def __call__(self) -> None:
        """Copy both ways; return when both have ended."""
        if self._cuda:
            copy, (inward, outward) = self._runtime.memcpyAsync, self._streams
            x, y = self._x.ctypes.data, self._y.ctypes.data
            for index, start in enumerate(range(0, self._x.nbytes, self._piece_bytes)):
                size = min(self._piece_bytes, self._x.nbytes - start)
                slot = index % self.RING_PIECES * self._piece_bytes
                copy(self._into.ptr + slot, x + start, size, 1, inward.ptr)
                copy(y + start, self._from.ptr + slot, size, 2, outward.ptr)
            inward.synchronize()
            outward.synchronize()
            return
        back = threading.Thread(target=np.copyto, args=(self._y, self._from))
        back.start()
        np.copyto(self._into, self._x)
        back.join()


def one_after_the_other(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], *, cuda: bool) -> Any:
    """Return the driver's own synchronous copies: all of x in, then as many bytes out to y."""
    if not cuda:
        held = np.empty_like(x)

        def copies() -> None:
            np.copyto(held, x)
            np.copyto(y, held.reshape(y.shape))

        return copies
    import cupy

    runtime, memory = cupy.cuda.runtime, cupy.cuda.Memory(max(x.nbytes, y.nbytes))

    def driver_copies() -> None:
        runtime.memcpy(memory.ptr, x.ctypes.data, x.nbytes, 1)
        runtime.memcpy(y.ctypes.data, memory.ptr, y.nbytes, 2)

    return driver_copies
