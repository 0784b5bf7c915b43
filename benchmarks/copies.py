"""What copies cost beside their bytes: rows of pinned memory that lie apart, and staging's chunks.

The constants of `perfmodel.transfer` rest on this: from which width and pitch on a row costs the
link something (`FAR_BYTES`, `FAR_LEAST`, `FAR_WIDTH_BYTES`), beside what the model says; and how
large the chunks are that one thread stages (`STAGED_BYTES`). Copies run both ways at once, through
more memory than the link knows the pages of.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from ooc_cudnn.bench.timing import Timing, interleave
from ooc_cudnn.devices import get_device, staging
from ooc_cudnn.devices.base import HostArray
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.machines import named_machine
from ooc_cudnn.measuring import Action, Bench
from ooc_cudnn.units import format_bytes
from perfmodel import MachineModel
from perfmodel.transfer import Rows

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

#: Bytes that a thread stages at once, bytes of a piece, and of each operand.
CHUNKS = tuple(MIB * n for n in (1, 2, 4, 8))
PIECES = tuple(MIB * n for n in (2, 8, 16, 32))
STAGED_TOTAL, QUICK_STAGED_TOTAL = 2**30, 2 * MIB


class RowsApart:
    """Copies of rows, each of memory that the last one did not touch.

    Parameters
    ----------
    bench : Bench
    machine : MachineModel
    count : int
        Bytes of pinned memory each way.
    """

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
    """Rows of pinned memory by width and pitch."""
    arguments = report.arguments
    device = get_device(arguments.device)
    widths, pitches = (QUICK_WIDTHS, QUICK_PITCHES) if arguments.quick else (WIDTHS, PITCHES)
    bench = Bench(device, device.free_bytes() // 2, batches=REPEATS, batch_seconds=0.0)
    machine = named_machine(arguments.machine)
    copies = RowsApart(bench, machine, QUICK_BYTES if arguments.quick else HOST_BYTES)
    for pitch, width in itertools.product(pitches, widths):
        if width < pitch:
            found = copies.microseconds_a_row(width, pitch)
            name = f"rows of {format_bytes(width)}, {format_bytes(pitch)} apart: us a row"
            said = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
            report.measure(name, found, spoken=said)
    device.arena.release_block()
    copies.hosts.clear()
    common.release_pinned(arguments)


def staged_chunks(report: common.Report) -> None:
    """A call on plain memory, whose threads stage chunks of several sizes."""
    arguments = report.arguments
    total = QUICK_STAGED_TOTAL if arguments.quick else STAGED_TOTAL
    chunks = CHUNKS[:2] if arguments.quick else CHUNKS
    for piece in (total // 4,) if arguments.quick else PIECES:
        x = np.random.default_rng(0).standard_normal((total // piece, piece // 4), np.float32)
        x = x.reshape(total // piece, 1, 1, -1)
        y = np.zeros_like(x)
        calls = {format_bytes(chunk): _Call(x, y, chunk, 6 * piece) for chunk in chunks}
        synchronize = common.synchronizer(arguments)
        times = interleave(calls, synchronize, repeats=REPEATS)
        _tell(report, f"pieces of {format_bytes(piece)}", 2 * total, times)
        expected = np.maximum(x, 0.0)
        for chunk, call in calls.items():
            y[...] = np.nan
            call()
            synchronize()
            right = bool(np.array_equal(y, expected))
            name = f"pieces of {format_bytes(piece)}, chunks of {chunk}"
            report.check(f"{name}: contents", {"ok": right})


class _Call:
    """An activation of pieces of one image."""

    def __init__(self, x: HostArray, y: HostArray, chunk: int, limit: int) -> None:
        self.x, self.y, self.chunk, self.limit = x, y, chunk, limit

    def __call__(self) -> None:
        kept = staging.CHUNK_BYTES
        staging.CHUNK_BYTES = self.chunk
        try:
            with ooc_cudnn.settings(memory_limit=self.limit):
                ooc_cudnn.activation_forward(self.x, mode="relu", out=self.y)
        finally:
            staging.CHUNK_BYTES = kept


def _tell(report: common.Report, what: str, moved: int, times: Mapping[str, Timing]) -> None:
    for chunk, timing in times.items():
        name = f"{what}, chunks of {chunk}"
        rate = moved / timing.median / 1e9
        report.measure(f"{name}: seconds", timing, spoken=f"{timing.median * 1e3:.2f} ms")
        report.claim(f"{name}: both ways together", rate, unit="GB/s")


def body(report: common.Report) -> None:
    """Both."""
    rows_apart(report)
    staged_chunks(report)


def main(argv: list[str] | None = None) -> int:
    return common.run(NAME, body, __doc__, argv)


if __name__ == "__main__":
    common.main(main)
