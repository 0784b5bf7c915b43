"""Staging: pageable memory and memory-mapped files, through pinned slabs, by several threads.

The driver copies pageable memory at a tenth of the link and on the caller's time. Here slabs of one
size take the pieces: a pool of threads fills an input slab in chunks, and the thread that finishes
it starts its copy to the device; an output slab is emptied the same way once its copy has ended.
Measured on an H200: with 12 threads, 4 slabs of 16 MiB each way reached half of the duplex link,
against 11 % for the driver's own copies and 16 to 47 % for page-locking piece by piece. Eight slabs
are a third faster one way for large pieces, and up to a quarter slower both ways, or for small ones
in (docs/closed-studies.md).
"""

from __future__ import annotations

import itertools
import math
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.blocks import boxes
from perfmodel.staging import AT_ONCE_BYTES, SLAB_BYTES, SLABS, STAGED_BYTES

CHUNK_BYTES = STAGED_BYTES
THREADS = 12


class Slab:
    """Pinned memory for one copy at a time, with the event of its last one."""

    def __init__(self, array: HostArray, event: int) -> None:
        self.array = array
        self.pointer = array.__array_interface__["data"][0]
        self.event = event


class Pool:
    """Threads that copy chunks; what they raise goes to the chunk's own callback."""

    def __init__(self, threads: int, prepare: Callable[[], None]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(
                target=self._work, args=(prepare,), name=f"ooc_cudnn staging {index}", daemon=True
            )
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Callable[[], None]) -> None:
        """Queue a task, which must not raise."""
        self._tasks.put(task)

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, prepare: Callable[[], None]) -> None:
        prepare()
        while (task := self._tasks.get()) is not None:
            task()
            # else an idle thread keeps what it copied last: a file would stay mapped, and cached
            task = None


class FirstCopyStream:
    """A CUDA stream that tells when a step is about to issue its first copy (for timing)."""

    def __init__(self, stream: Any, before_first_copy: Callable[[], None]) -> None:
        self.stream = stream
        self._before: Callable[[], None] | None = before_first_copy

    def begin(self) -> Any:
        """Tell, the first time; return the stream."""
        before, self._before = self._before, None
        if before is not None:
            before()
        return self.stream


def begun(stream: Any) -> Any:
    """Return the plain stream, just before something is issued on it."""
    return stream.begin() if isinstance(stream, FirstCopyStream) else stream


class Transfer:
    """One staged copy of a region: counts its slabs, and resolves `future` after the last."""

    def __init__(self, slabs: int) -> None:
        self.future: Future[None] = Future()
        self._left = slabs
        self._lock = threading.Lock()

    def slab_done(self) -> None:
        """One slab fewer."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Hand an error to whoever waits."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)


class Staging:
    """The slabs and the pool of one GPU.

    Parameters
    ----------
    allocate_pinned : callable
        Takes bytes, returns pinned memory.
    prepare : callable
        Makes the GPU current on a thread.
    """

    def __init__(
        self, allocate_pinned: Callable[[int], HostArray], prepare: Callable[[], None]
    ) -> None:
        import cupy

        self._runtime = cupy.cuda.runtime
        self._drained: queue.SimpleQueue[tuple[Slab, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._free: dict[str, queue.SimpleQueue[Slab]] = {}
        self._memory = []
        for way in ("in", "out"):
            self._free[way] = queue.SimpleQueue()
        for index in range(2 * SLABS):
            try:
                array = allocate_pinned(SLAB_BYTES)
            except HostOutOfMemoryError:
                if index < 2:
                    raise  # each way needs one
                break
            self._memory.append(array)
            # Not timed: the cheapest kind of event.
            slab = Slab(array, self._runtime.eventCreateWithFlags(2))
            self._free["in" if index % 2 else "out"].put(slab)
        self._pool = Pool(max(2, min(THREADS, (os.cpu_count() or 4) - 4)), prepare)
        self._drainer = threading.Thread(
            target=self._drain, args=(prepare,), name="ooc_cudnn draining", daemon=True
        )
        self._drainer.start()

    def close(self) -> None:
        """End the threads and give the slabs back; only when nothing is being copied."""
        self._drained.put(None)
        self._drainer.join()  # it holds the slab that it emptied last
        self._pool.close()
        for slabs in self._free.values():
            while not slabs.empty():
                self._runtime.eventDestroy(slabs.get().event)
        self._memory.clear()

    def copy_in(self, destination: DeviceView, source: HostArray, stream: Any) -> Future[None]:
        """Copy a host region to packed device memory.

        Returns when every chunk is queued; the future resolves when the last copy was issued.
        """
        source, pieces = _slabs(destination, source)
        transfer = Transfer(len(pieces))
        for offset, chunks in pieces:
            slab = self._free["in"].get()
            self._runtime.eventSynchronize(slab.event)
            self._fill(slab, source, chunks, destination.pointer + offset, stream, transfer)
        return transfer.future

    def _fill(
        self,
        slab: Slab,
        source: HostArray,
        chunks: list[tuple[slice, ...]],
        pointer: int,
        stream: Any,
        transfer: Transfer,
    ) -> None:
        """Queue the chunks of a slab; whoever copies the last one sends the slab off."""
        parts, total = _parts(slab, source, chunks)

        def send() -> None:
            try:
                to = begun(stream).ptr
                self._runtime.memcpyAsync(pointer, slab.pointer, total, 1, to)
                self._runtime.eventRecord(slab.event, to)
            except BaseException as error:
                transfer.fail(error)
            self._free["in"].put(slab)
            transfer.slab_done()

        self._copy_chunks(parts, transfer, send)

    def _copy_chunks(
        self, parts: list[tuple[HostArray, HostArray]], transfer: Transfer, then: Callable[[], None]
    ) -> None:
        """Queue copies (destination, source); the thread that does the last one goes on.

        One that is tiny is made at once.
        """
        left = itertools.count(len(parts) - 1, -1)  # counting is atomic

        def copy(to: HostArray, from_: HostArray) -> None:
            try:
                np.copyto(to, from_)
            except BaseException as error:
                transfer.fail(error)
            if next(left) == 0:
                then()

        if len(parts) == 1 and parts[0][0].nbytes <= AT_ONCE_BYTES:
            copy(*parts[0])
            return
        for to, from_ in parts:
            self._pool.put(partial(copy, to, from_))

    def copy_out(self, destination: HostArray, source: DeviceView, stream: Any) -> Future[None]:
        """Copy packed device memory to a host region.

        Returns when every device copy is issued; the future resolves when all is written.
        """
        destination, pieces = _slabs(source, destination)
        transfer = Transfer(len(pieces))
        for offset, chunks in pieces:
            slab = self._free["out"].get()
            parts, total = _parts(slab, destination, chunks)
            self._runtime.memcpyAsync(slab.pointer, source.pointer + offset, total, 2, stream.ptr)
            self._runtime.eventRecord(slab.event, stream.ptr)
            self._drained.put((slab, partial(self._empty, slab, parts, transfer)))
        return transfer.future

    def _empty(
        self, slab: Slab, parts: list[tuple[HostArray, HostArray]], transfer: Transfer
    ) -> None:
        """Queue the chunks of a slab whose copy has ended."""

        def give_back() -> None:
            self._free["out"].put(slab)
            transfer.slab_done()

        self._copy_chunks([(to, held) for held, to in parts], transfer, give_back)

    def _drain(self, prepare: Callable[[], None]) -> None:
        prepare()
        while (item := self._drained.get()) is not None:
            slab, empty = item
            self._runtime.eventSynchronize(slab.event)
            empty()
            del item, slab, empty  # nor is anything kept here


def _slabs(
    view: DeviceView, array: HostArray
) -> tuple[HostArray, list[tuple[int, list[tuple[slice, ...]]]]]:
    """Cut a region into slabs of chunks: (byte offset in the packed piece, boxes of the array).

    The array comes back with its axes in the piece's memory order, in which boxes are contiguous.
    """
    order = sorted(
        range(len(view.shape)), key=lambda axis: (-view.strides[axis], view.shape[axis] != 1, axis)
    )
    ordered = array.transpose(order)
    item = view.item_bytes
    slabs: list[tuple[int, list[tuple[slice, ...]]]] = []
    offset = room = 0
    for box in boxes(ordered.shape, CHUNK_BYTES // item):
        lengths = [part.stop - part.start for part in box]
        nbytes = math.prod(lengths) * math.prod(ordered.shape[len(box) :]) * item
        if nbytes > room:
            slabs.append((offset, []))
            room = SLAB_BYTES
        slabs[-1][1].append(box)
        room -= nbytes
        offset += nbytes
    return ordered, slabs


def _parts(
    slab: Slab, array: HostArray, chunks: list[tuple[slice, ...]]
) -> tuple[list[tuple[HostArray, HostArray]], int]:
    """Pair each chunk's place in the slab with its place in the array; and their bytes in all."""
    parts, offset = [], 0
    for box in chunks:
        outside = array[box]
        held = slab.array[offset : offset + outside.nbytes]
        parts.append((held.view(outside.dtype).reshape(outside.shape), outside))
        offset += outside.nbytes
    return parts, offset
