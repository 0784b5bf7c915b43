"""What bounds a call: its bytes over the duplex link, and its arithmetic on data of the device."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

HostArray = np.ndarray[Any, Any]


class Link:
    """Raw copies of some arrays to the device and of NaN to others, both ways at once.

    In pieces of `piece_bytes` that share a ring of device memory each way; on the host by two
    threads. What comes back is NaN, so every measurement also poisons the results of what follows.
    """

    RING_PIECES = 4

    def __init__(self, *, cuda: bool, piece_bytes: int = 2**25) -> None:
        self._piece_bytes, self._cuda = piece_bytes, cuda
        if cuda:
            import cupy

            self._runtime = cupy.cuda.runtime
            self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            held = self.RING_PIECES * piece_bytes
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
        """The bytes of the arrays, piece by piece."""
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
            back = threading.Thread(target=self._poison, args=(outward,))
            back.start()
            for piece in inward:
                np.copyto(self._host_into[: len(piece)], piece)
            back.join()
            return
        copy, (to_device, to_host) = self._runtime.memcpyAsync, self._streams
        for index, (piece, result) in enumerate(itertools.zip_longest(inward, outward)):
            slot = index % self.RING_PIECES * self._piece_bytes
            if piece is not None:
                copy(self._into.ptr + slot, piece.ctypes.data, len(piece), 1, to_device.ptr)
            if result is not None:
                copy(result.ctypes.data, self._from.ptr + slot, len(result), 2, to_host.ptr)
        to_device.synchronize()
        to_host.synchronize()


@contextmanager
def without_link(device: Any) -> Iterator[None]:
    """Let calls leave out their copies from and to the host: their launches, in core.

    Plans, pieces and launches are those of the call; they run on whatever the device's memory holds
    from the call before, and results on the host stay as they are.
    """
    kept = {name: getattr(device, name) for name in ("copy_in", "copy_out")}

    def on_device_alone(name: str) -> Callable[[Any, Any, Any], Any]:
        def copy(destination: Any, source: Any, stream: Any) -> Any:
            if isinstance(source, np.ndarray) or isinstance(destination, np.ndarray):
                return None
            return kept[name](destination, source, stream)

        return copy

    try:
        for name in kept:
            setattr(device, name, on_device_alone(name))
        yield
    finally:
        for name in kept:
            delattr(device, name)


def busy_shares(trace: Any, parts: int = 20) -> dict[str, list[float]]:
    """How busy each stream was in each part of a call: where its pipeline runs dry."""
    if not trace.steps or not trace.seconds:
        return {}
    begin = min(step.start_seconds for step in trace.steps)
    width = trace.seconds / parts
    shares: dict[str, list[float]] = {}
    for step in trace.steps:
        row = shares.setdefault(step.stream, [0.0] * parts)
        start, stop = (step.start_seconds - begin) / width, (step.stop_seconds - begin) / width
        for part in range(math.floor(start), min(parts, math.ceil(stop))):
            row[part] += min(stop, part + 1) - max(start, part)
    return {stream: [round(share, 3) for share in row] for stream, row in shares.items()}
