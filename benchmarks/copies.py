"""What copies cost beside their bytes: rows of pinned memory that lie apart, and staging.

The constants of `perfmodel.rows` rest on this: of which width and pitch a row costs the link
something (`NARROW_BYTES`, `GAP_BYTES`), beside what the model says, while copies run both ways at
once through more memory than the link knows the pages of; and through how many slabs of which size
calls on plain memory are staged (`SLABS`, `SLAB_BYTES`), in how large chunks (`STAGED_BYTES`).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.placing import release_device, release_pinned
from ooc_cudnn.bench.timing import interleave
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.cuda import staging
from ooc_cudnn.devices.measuring import Action, Bench
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.units import format_bytes
from perfmodel import MachineModel
from perfmodel.named import named_machine
from perfmodel.rows import Rows

NAME = "copies"
DIRECTIONS = ("copy_in", "copy_out")
KIB, MIB = 2**10, 2**20

#: Bytes of a row, and from one row to the next; pinned memory each way, and the most of a copy.
WIDTHS = tuple(KIB * n for n in (1, 4, 12, 24, 48, 96, 256))
PITCHES = tuple(KIB * n for n in (64, 196, 512, 2048, 8192))
HOST_BYTES, COPY_BYTES = 3 * 2**30, 2**26
#: Copies of a measurement, each of other columns: rows that are looked up again.
COPIES = 8
QUICK_WIDTHS, QUICK_PITCHES, QUICK_BYTES = (KIB, 4 * KIB), (16 * KIB,), 2 * MIB
REPEATS = 5

#: Slabs each way and bytes of one, bytes that a thread stages at once, of a piece, of an operand.
SLABS = (4, 16 * MIB), (8, 16 * MIB), (16, 8 * MIB)
CHUNKS = tuple(MIB * n for n in (2, 4, 8))
PIECES = tuple(MIB * n for n in (8, 16, 17, 34))
STAGED_TOTAL, QUICK_STAGED_TOTAL = 2**29, 2 * MIB
#: What is in plain memory; the other operand is on the device.
STAGED_WAYS = {"in": "x", "out": "y", "both ways": "xy"}


class RowsApart:
    """Copies of rows, each of memory that the last one did not touch: `count` bytes each way."""

    def __init__(self, bench: Bench, machine: MachineModel, count: int) -> None:
        self.bench, self.machine = bench, machine
        self.hosts = {
            direction: bench.device.allocate_pinned(count).view(np.float32)
            for direction in DIRECTIONS
        }
        for host in self.hosts.values():
            host[...] = 1.0
        self.most = min(COPY_BYTES, count)
        self.base = bench.reserve(2 * self.most)

    def microseconds_a_row(self, width: int, pitch: int) -> dict[str, float]:
        """What a row takes longer than its bytes in one piece: measured, and by the model."""
        count = self.hosts["copy_in"].nbytes
        rows = max(1, min(count // pitch, self.most // width))
        apart, joined = (
            statistics.median(
                self.bench.seconds_to_rest(
                    {way: list(self._copies(way, rows, width, step)) for way in DIRECTIONS},
                    staged=False,
                )
                for _ in range(REPEATS)
            )
            for step in (pitch, width)
        )
        link, lying = self.machine.transfer, Rows(width, pitch)
        predicted = max(link.apart_seconds_per_byte(way, "pinned", lying) for way in DIRECTIONS)
        return {
            "measured": (apart - joined) / (rows * COPIES) * 1e6,
            "predicted": predicted * width * 1e6,
            "its bytes": joined / (rows * COPIES) * 1e6,
            "rows": rows,
        }

    def _copies(self, way: str, rows: int, width: int, pitch: int) -> Iterator[Action]:
        """Copies of so many rows, through all the memory there is, each of another column of it."""
        host, length, step = self.hosts[way], width // 4, pitch // 4
        pointer = self.base + DIRECTIONS.index(way) * self.most
        slot = DeviceView(pointer, "float32", (rows, length), (length, 1))
        device, blocks = self.bench.device, host.size // (rows * step)
        for at in range(COPIES):
            block = at % blocks
            column = at // blocks * length % (step - length + 1)
            first = block * rows * step
            region = host[first : first + rows * step].reshape(rows, step)
            yield _copy(device, way, slot, region[:, column : column + length])


def _copy(device: Any, way: str, slot: DeviceView, region: HostArray) -> Action:
    if way == "copy_in":
        return lambda stream: device.copy_in(slot, region, stream)
    return lambda stream: device.copy_out(region, slot, stream)


def rows_apart(report: common.Report) -> None:
    arguments = report.arguments
    device = get_device(arguments.device)
    widths, pitches = (QUICK_WIDTHS, QUICK_PITCHES) if report.quick else (WIDTHS, PITCHES)
    bench = Bench(device, device.free_bytes() // 2, batches=REPEATS, batch_seconds=0.0)
    machine = named_machine(arguments.machine)
    copies = RowsApart(bench, machine, QUICK_BYTES if report.quick else HOST_BYTES)
    for pitch, width in itertools.product(pitches, widths):
        if width < pitch:
            found = copies.microseconds_a_row(width, pitch)
            name = f"rows of {format_bytes(width)}, {format_bytes(pitch)} apart: us a row"
            said = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
            report.measure(name, found, spoken=said)
    device.arena.release_block()
    copies.hosts.clear()
    release_pinned(report.arguments.device)


def staged(report: common.Report) -> None:
    """Calls on plain memory, staged through several numbers of slabs in chunks of several sizes."""
    quick = report.quick
    total = QUICK_STAGED_TOTAL if quick else STAGED_TOTAL
    kept = staging.SLABS, staging.SLAB_BYTES, staging.CHUNK_BYTES
    random = np.random.default_rng(0).standard_normal(total // 4, np.float32)
    expected = np.maximum(random, 0.0)
    try:
        for slabs, size in SLABS[:2] if quick else SLABS:
            staging.SLABS, staging.SLAB_BYTES = slabs, size
            release_device(report.arguments.device)  # and the slabs that there are
            for piece, way in itertools.product((total // 4,) if quick else PIECES, STAGED_WAYS):
                _staged(
                    report, f"{slabs} slabs of {format_bytes(size)}", way, piece, random, expected
                )
    finally:
        staging.SLABS, staging.SLAB_BYTES, staging.CHUNK_BYTES = kept
        release_device(report.arguments.device)


def _staged(
    report: common.Report, slabs: str, way: str, piece: int, random: HostArray, expected: HostArray
) -> None:
    """Pieces of one size, one way or both."""
    count = random.nbytes // piece
    size = count * piece // 4
    x = random[:size].reshape(count, 1, 1, -1)
    y = np.empty_like(x)
    plain = STAGED_WAYS[way]
    given = x if "x" in plain else report.to_device(x)
    out = y if "y" in plain else report.to_device(y)
    calls = {
        format_bytes(chunk): partial(_call, given, out, chunk, 3 * len(plain) * piece + MIB)
        for chunk in (CHUNKS[:1] if report.quick else CHUNKS)
    }
    synchronize = report.synchronize
    times = interleave(calls, synchronize, repeats=REPEATS)
    what = f"{slabs}, {way}, pieces of {format_bytes(piece)}"
    for chunk, timing in times.items():
        name = f"{what}, chunks of {chunk}"
        rate = len(plain) * x.nbytes / timing.median / 1e9
        report.measure(f"{name}: seconds", timing, spoken=f"{timing.median * 1e3:.2f} ms")
        report.claim(name, rate, unit="GB/s")
        out[...] = np.nan
        calls[chunk]()
        synchronize()
        found = out if isinstance(out, np.ndarray) else out.get()
        right = bool(np.array_equal(found.ravel(), expected[:size]))
        report.check(f"{name}: contents", {"ok": right})


def _call(x: Any, y: Any, chunk: int, limit: int) -> None:
    staging.CHUNK_BYTES = chunk
    with ooc_cudnn.settings(memory_limit=limit):
        ooc_cudnn.activation_forward(x, mode="relu", out=y)


def body(report: common.Report) -> None:
    rows_apart(report)
    staged(report)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
