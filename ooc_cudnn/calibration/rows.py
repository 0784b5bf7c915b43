"""What a calibration measures of copies beside their bytes: rows that lie apart, and latency.

The host gathers rows of plain memory one by one, and pinned memory whose rows lie far apart is
slower to read and write both ways at once. Staging takes a while to start, and trails.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn.arrays.functions import empty_in
from ooc_cudnn.arrays.operands import Wrapped, wrap
from ooc_cudnn.calibration.files import latency_line
from ooc_cudnn.calibration.steps import cut_into_images, run_pieces
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.measuring import Action, Bench, Group
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.pipeline.execute import Source
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Line
from perfmodel.cached import cached_property
from perfmodel.transfer import STAGED_BYTES, narrow_rows, staging_slots

#: How a region of some memory lies: the region, and its packed strides.
Lying = Callable[[HostArray], tuple[HostArray, tuple[int, ...]]]

DIRECTIONS = ("copy_in", "copy_out")
#: A row of a channel is copied of every channel and image: (channels, rows, elements of a row).
NARROW = (32, 8, 16)
#: Rows of pinned memory that lie far apart, and the bytes of one: on a card, and elsewhere.
GPU_FAR, FEW_FAR = (512, 2**18), (32, 2**18)
FAR_PITCH_BYTES = 2**21
#: Narrow rows, as a few channels of a map of 28 x 28: elements of one, from one to the next, and
#: where the first one starts.
NARROW_ROWS = (3 * 784, 64 * 784, 784)
#: A row in another page costs this at least, so that images are cut before rows where all else is
#: equal: where little memory may be used (and in a quick calibration) the link knows all pages.
LEAST_ROW_SECONDS = 1e-7
#: Bytes of a copy, and of one on the host.
GPU_BYTES, HOST_BYTES = 2**24, 2**20
#: Plain memory each way: on a card several times what any processor caches, elsewhere as it fits.
GPU_PLAIN, FEW_PLAIN = 2**30, 2**24
#: What a small copy has, beside which staging's latency grows with the bytes.
SMALL_BYTES = 2**16
#: A piece that all threads stage at once.
LARGE_BYTES, FEWEST_LARGE = 2**25, 4
#: Most pieces of a call in which rings turn.
MOST_TURNS = 32
#: Copies that follow each other, where what they take together counts.
MANY = 5
REPEATS = 5


class PlainMemory:
    """Plain memory of which each copy takes the next part, as none of a large tensor is cached."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.ones(nbytes // 4, np.float32)
        self._at = 0

    def next(self, nbytes: int) -> HostArray:
        """The part that was taken longest ago."""
        size = nbytes // 4
        if self._at + size > self.array.size:
            self._at = 0
        part = self.array[self._at : self._at + size]
        self._at += size
        return part


class RowMeasurements:
    """The copies that tell what rows and staging take.

    Attributes
    ----------
    terms : dict
        Further terms of the lines, by "copy_in/PLACEMENT" and "copy_out/PLACEMENT": seconds a row.
    latency : dict
        As `TransferModel` has it.
    paces : dict
        Seconds of a piece of `LARGE_BYTES` in a call that is staged one way, or "both". A call is
        slower than copies alone: its pieces go from thread to thread.
    """

    def __init__(self, bench: Bench, *, quick: bool) -> None:
        self.bench, self.device = bench, bench.device
        few = self.device.kind == "host" or quick
        self.size, self.far = (HOST_BYTES, FEW_FAR) if few else (GPU_BYTES, GPU_FAR)
        self.plain_bytes = FEW_PLAIN if few else GPU_PLAIN
        parts = self.plain_bytes // (NARROW[1] * self.size)
        self._row_of_next = itertools.cycle(np.repeat(range(NARROW[1]), parts).tolist())
        self.terms: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.latency: dict[str, Line] = {}
        self.paces: dict[str, float] = {}
        self._late: defaultdict[str, list[Line]] = defaultdict(list)
        self._paces: defaultdict[str, list[float]] = defaultdict(list)

    def groups(self) -> list[Group]:
        """What is to be measured."""
        return [Group("rows that lie apart", 0.5, self.measure)]

    @cached_property
    def plain(self) -> PlainMemory:
        """Plain memory that is read, or read and written."""
        return PlainMemory(self.plain_bytes)

    @cached_property
    def written(self) -> PlainMemory:
        """As much of it, for results of calls."""
        return PlainMemory(self.plain_bytes)

    def measure(self) -> None:
        """Measure rows, where memory allows."""
        if not self.bench.fits(2 * self.size):
            return
        base = self.bench.reserve(2 * self.size)
        # one row of eight is copied
        for at, direction in enumerate(DIRECTIONS):
            copy = partial(self._copy, direction, base + at * self.size)
            whole = partial(self._next_copy, copy, self.size)
            apart = partial(self._next_copy, copy, NARROW[1] * self.size, self._narrow)
            extra = self._seconds({direction: apart}) - self._seconds({direction: whole})
            count = self.size // (4 * NARROW[2])
            for placement in ("pageable", "disk"):
                self.terms[f"{direction}/{placement}"]["rows"] = max(extra / count, 0.0)
        self._far()

    def staging(self) -> None:
        """Measure what staged copies are late by; the median of several times counts."""
        if not self.bench.fits(2 * self.size):
            return
        late = {direction: self._latency(direction) for direction in DIRECTIONS}
        terms = {} if self.device.kind == "host" else {"others": self._others(late)}
        for direction, alone in late.items():
            found = self._late[direction]
            found.append(replace(alone, terms=terms))
            found.sort(key=_in_a_ring)
            self.latency[f"{direction}/pageable"] = found[len(found) // 2]
        enough = self.plain_bytes >= FEWEST_LARGE * LARGE_BYTES
        # one way, the other operand is on the device
        fits = self.bench.fits(self.plain_bytes // 2 + 6 * LARGE_BYTES)
        if self.device.kind == "cuda" and enough and fits:
            for ways in ("both", *DIRECTIONS):
                self._paces[ways].append(self._pace(LARGE_BYTES, ways))
                self.paces[ways] = statistics.median(self._paces[ways])

    def close(self) -> None:
        """Let the plain memory go."""
        for name in ("plain", "written"):
            self.__dict__.pop(name, None)

    def _pace(self, nbytes: int, ways: str) -> float:
        """Seconds of a piece of a call that is staged: all of the call but what it is late by.

        Told from one long call: the difference of two is far less certain than either.
        """
        pieces = self.plain_bytes // nbytes // 2
        late = sum(
            self.latency[f"{way}/pageable"].seconds(min(nbytes, STAGED_BYTES))
            for way in DIRECTIONS
            if ways in (way, "both")
        )
        # the first piece is in before any leaves
        turns = pieces + (ways == "both")
        return max(self._call(nbytes, pieces, ways)[0] - late, 0.0) / turns

    def _latency(self, direction: str) -> Line:
        """What a copy alone is late by: a small one, and one that a thread can stage."""
        large, late = self._large, list[float]()
        for nbytes in (SMALL_BYTES, large):
            pointer = self.bench.reserve(self.size)
            copy = partial(self._next_copy, partial(self._copy, direction, pointer), nbytes)
            few, many = (self._wall({direction: copy}, number) for number in (1, MANY))
            each = (many - few) / (MANY - 1)
            late.append(max(few - each, 0.0))
        return latency_line([(SMALL_BYTES, late[0]), (large, late[1])])

    @property
    def _large(self) -> int:
        """Bytes of a copy that one thread stages."""
        return min(STAGED_BYTES, self.size)

    def _others(self, late: Mapping[str, Line]) -> float:
        """Seconds that a copy is late by each other one in flight, in a call staged both ways.

        Measured as it happens, not copy by copy. The slower ring decides what the call takes and
        the other one waits for it, so that the least that either tells is what both are late by.
        """
        large = self._large
        pieces = min(MOST_TURNS, self.plain_bytes // large)
        seconds, slots = self._call(large, pieces)
        found = []
        for direction, alone in late.items():
            turning = seconds / pieces * float(staging_slots(direction, large, slots))
            found.append(turning - alone.seconds(large) - self._crossing(direction, large))
        # both rings of that call are as deep
        return float(f"{max(min(found), 0.0) / (2 * slots - 1):.4g}")

    def _crossing(self, direction: str, nbytes: int) -> float:
        """Seconds that a copy of pinned memory takes."""
        host = self.device.allocate_pinned(nbytes).view(np.float32)
        host[...] = 1.0
        base = self.bench.reserve(nbytes)
        return self.bench.time(direction, self.bench.copy(direction, base, host, host.size)).seconds

    def _call(self, nbytes: int, pieces: int, ways: str = "both") -> tuple[float, int]:
        """Seconds of a call that is staged so, and the slots of the ring of what is staged."""
        shape = (pieces, 1, 1, nbytes // 4)
        x, y = (
            TensorSpec(shape, "float32", "pageable" if ways in (way, "both") else "device")
            for way in DIRECTIONS
        )
        executor, plan = cut_into_images(self.bench, "activation_forward", {"x": x}, out=y)
        in_device = {
            name: self._in_device(spec)
            for name, spec in {"x": x, "y": y}.items()
            if spec.placement == "device"
        }
        timings = []
        for _ in range(REPEATS + 1):
            # the operands as the executor takes them do not keep the device's memory
            arrays: dict[str, Source] = {name: held.view() for name, held in in_device.items()}
            for name, memory in {"x": self.plain, "y": self.written}.items():
                if name not in arrays:
                    arrays[name] = memory.next(x.nbytes).reshape(shape)
            began = time.perf_counter()
            run_pieces(self.bench, executor, arrays, staged=True)
            timings.append(time.perf_counter() - began)
        staged = "y" if x.placement == "device" else "x"
        return statistics.median(timings[1:]), dict(plan.rings)[staged]

    def _in_device(self, spec: TensorSpec) -> Wrapped:
        """An operand on the device."""
        array = empty_in(self.device, "device", spec.shape, spec.dtype, "channels_first")
        return wrap(array, self.device, name="an operand")

    def _far(self) -> None:
        """Pinned memory, both ways at once, over so many pages that the link does not know all."""
        rows, width = self.far
        if not self.bench.fits(2 * rows * width):
            return
        base = self.bench.reserve(2 * rows * width)
        hosts = [
            self.device.allocate_pinned(rows * FAR_PITCH_BYTES).view(np.float32) for _ in DIRECTIONS
        ]
        if self.device.kind == "host":  # elsewhere, pinning has touched every page
            for host in hosts:
                host[...] = 1.0

        def longer(lying: Lying) -> float:
            """Seconds that rows take longer, each, than as many bytes in one piece."""
            regions = [lying(host) for host in hosts]
            count, size = len(regions[0][0]), regions[0][0].size
            joined = [(host[:size], (1,)) for host in hosts]
            apart, whole = (
                {
                    direction: partial(self._copy, direction, base + at * rows * width, *region)
                    for at, (direction, region) in enumerate(zip(DIRECTIONS, of, strict=True))
                }
                for of in (regions, joined)
            )
            extra = self._seconds(apart, staged=False) - self._seconds(whole, staged=False)
            return max(extra / count, 0.0)

        far, narrow = longer(self._rows_far), longer(self._rows_narrow)
        each, pitch = (4 * elements for elements in NARROW_ROWS[:2])
        near = narrow / (each * narrow_rows(each, pitch))
        for direction in DIRECTIONS:
            self.terms[f"{direction}/pinned"] |= {"rows": max(far, LEAST_ROW_SECONDS), "near": near}

    def _narrow(self, host: HostArray) -> tuple[HostArray, tuple[int, ...]]:
        channels, rows, width = NARROW
        images = self.size // (4 * channels * width)
        lying = host[: images * channels * rows * width].reshape(images, channels, rows, width)
        row = next(self._row_of_next)  # parts come again, but the other rows of them first
        return lying[:, :, row : row + 1], (channels * width, width, width, 1)

    def _rows_far(self, host: HostArray) -> tuple[HostArray, tuple[int, ...]]:
        row = self.far[1] // 4
        return host.reshape(-1, FAR_PITCH_BYTES // 4)[:, :row], (row, 1)

    def _rows_narrow(self, host: HostArray) -> tuple[HostArray, tuple[int, ...]]:
        width, pitch, start = NARROW_ROWS
        lying = host[: host.size // pitch * pitch].reshape(-1, pitch)
        most = math.prod(self.far) // (4 * width)
        return lying[:most, start : start + width], (width, 1)

    def _next_copy(
        self, copy: Callable[..., Action], nbytes: int, lying: Lying | None = None
    ) -> Action:
        """A copy of the next part of plain memory, in one piece or as that lies."""
        part = self.plain.next(nbytes)
        return copy(*(lying(part) if lying else (part, (1,))))

    def _copy(
        self, direction: str, pointer: int, host: HostArray, strides: tuple[int, ...]
    ) -> Action:
        slot = DeviceView(pointer, "float32", host.shape, strides)
        if direction == "copy_in":
            return lambda handle: self.device.copy_in(slot, host, handle)
        return lambda handle: self.device.copy_out(host, slot, handle)

    def _seconds(self, copies: Mapping[str, Callable[[], Action]], *, staged: bool = True) -> float:
        """Seconds of a copy among many."""
        few, many = (self._wall(copies, number, staged=staged) for number in (MANY, 3 * MANY))
        return (many - few) / (2 * MANY)

    def _wall(
        self, copies: Mapping[str, Callable[[], Action]], number: int, *, staged: bool = True
    ) -> float:
        """Seconds until so many copies of each direction are done, from the very start."""
        found = []
        for _ in range(REPEATS + 1):
            actions: dict[str, list[Any]] = {
                direction: [copy() for _ in range(number)] for direction, copy in copies.items()
            }
            found.append(self.bench.seconds_to_rest(actions, staged=staged))
        return statistics.median(found[1:])


def _in_a_ring(line: Line) -> float:
    """What a copy is late by that one thread stages, beside a few others."""
    return line.seconds(STAGED_BYTES, {"others": 3.0})
