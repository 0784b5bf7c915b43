"""Lower bound of a call: its bytes over the duplex link."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

HostArray = np.ndarray[Any, Any]


class Link:
    """Raw copies of some arrays to the device and of NaN to others, both ways at once.

    In pieces of `piece_bytes` that share a ring of `ring_pieces` in device memory each way; on the
    host by two threads. What comes back is NaN, so every measurement also poisons the results of
    what follows.
    """

    def __init__(self, *, cuda: bool, piece_bytes: int = 2**25, ring_pieces: int = 4) -> None:
        self._piece_bytes, self._ring_pieces, self._cuda = piece_bytes, ring_pieces, cuda
        if cuda:
            import cupy

            self._runtime = cupy.cuda.runtime
            self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            held = ring_pieces * piece_bytes
            self._into, self._from = cupy.cuda.Memory(held), cupy.cuda.Memory(held)
            self._runtime.memset(self._from.ptr, 0xFF, held)  # every float of ones is NaN
            self._runtime.deviceSynchronize()
        else:
            self._host_into = np.empty(piece_bytes, np.uint8)
            self._host_from = np.full(piece_bytes, 0xFF, np.uint8)

    def copies(self, ins: Sequence[HostArray], outs: Sequence[HostArray]) -> Callable[[], None]:
        """Return what copies all of `ins` and overwrites all of `outs`."""
        inward, outward = list(self._pieces(ins)), list(self._pieces(outs))
        return lambda: self._copy(inward, outward)

    def _pieces(self, arrays: Sequence[HostArray]) -> Iterator[HostArray]:
        for array in arrays:
            flat = array.reshape(-1).view(np.uint8)
            if not np.shares_memory(flat, array):
                raise ValueError("only packed arrays can be copied in pieces")
            for start in range(0, flat.nbytes, self._piece_bytes):
                yield flat[start : start + self._piece_bytes]

    def _poison(self, pieces: Sequence[HostArray]) -> None:
        for piece in pieces:
            np.copyto(piece, self._host_from[: len(piece)])

    def _copy(self, inward: Sequence[HostArray], outward: Sequence[HostArray]) -> None:
        if not self._cuda:
            thread = threading.Thread(target=self._poison, args=(outward,))
            thread.start()
            for piece in inward:
                np.copyto(self._host_into[: len(piece)], piece)
            thread.join()
            return
        copy, (to_device, to_host) = self._runtime.memcpyAsync, self._streams
        for index, (piece, result) in enumerate(itertools.zip_longest(inward, outward)):
            slot = index % self._ring_pieces * self._piece_bytes
            if piece is not None:
                copy(self._into.ptr + slot, piece.ctypes.data, len(piece), 1, to_device.ptr)
            if result is not None:
                copy(result.ctypes.data, self._from.ptr + slot, len(result), 2, to_host.ptr)
        to_device.synchronize()
        to_host.synchronize()
