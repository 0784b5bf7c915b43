"""What a calibration measures of the link: copies of pieces by placement, and both ways at once."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.machines import cache_directory
from ooc_cudnn.measuring import DUPLEX_BATCHES, Bench, Group, Recorder
from ooc_cudnn.memory.arrays import reserve_file
from perfmodel import Slowdown

MIB = 2**20


class LinkMeasurements:
    """The copies that are timed on a device.

    Parameters
    ----------
    bench : Bench
    record : callable
        Takes the key of a line, the bytes of a sample, and its timing.
    quick : bool
        Fewer of them.

    Attributes
    ----------
    slowdown : float
        How much longer copies take while the other direction is busy; 1 until it is measured.
    quality : dict
        Of what is no line.
    """

    def __init__(self, bench: Bench, record: Recorder, *, quick: bool) -> None:
        self.bench, self.record, self.device = bench, record, bench.device
        self.slowdown = 1.0
        self.quality: dict[str, dict[str, float]] = {}
        copies = (1, 4, 16) if quick else (1, 2, 4, 16, 32, 64)
        through_files = (1, 2, 4) if quick else (1, 4, 8, 16)
        self.copy_bytes = tuple(size * MIB for size in copies)
        self.disk_bytes = tuple(size * MIB for size in through_files)
        self.file_bytes = (24 if quick else 96) * MIB

    def slowdowns(self) -> dict[str, Slowdown]:
        """What `TransferModel` needs of both ways at once."""
        return {"pinned/pinned": Slowdown(self.slowdown, self.slowdown)}

    def groups(self) -> list[Group]:
        """What is to be measured, one after the other."""
        return [
            Group("pinned copies", 1.0, self.pinned),
            Group("pageable copies", 1.0, self.pageable),
            Group("copies of files", 1.0, self.files),
        ]

    def pinned(self) -> None:
        """Measure copies of pinned memory, and how the two directions slow each other down."""
        sizes = self._copy_sizes()
        host = self.device.allocate_pinned(2 * sizes[-1]).view(np.float32)
        self._link("pinned", host, sizes)
        other = self.device.allocate_pinned(2 * sizes[-1]).view(np.float32)
        other[...] = 0
        base, elements = self.bench.reserve(2 * sizes[-1]), sizes[-1] // 4
        copy_in = self.bench.copy("copy_in", base, host, elements)
        copy_out = self.bench.copy("copy_out", base + sizes[-1], other, elements)
        found = self.bench.slowdown(
            copy_in,
            copy_out,
            self.bench.time("copy_in", copy_in).seconds,
            self.bench.time("copy_out", copy_out).seconds,
        )
        self.quality["duplex"] = {"spread": found.spread, "samples": float(DUPLEX_BATCHES)}
        self.slowdown = found.seconds

    def pageable(self) -> None:
        """Measure copies of plain NumPy memory."""
        sizes = self._copy_sizes()
        self._link("pageable", np.zeros(2 * sizes[-1] // 4, np.float32), sizes)

    def _copy_sizes(self) -> tuple[int, ...]:
        sizes = tuple(size for size in self.copy_bytes if self.bench.fits(2 * size))
        return sizes or self.copy_bytes[:1]  # which then says what it lacks

    def _link(self, placement: str, host: Any, sizes: tuple[int, ...]) -> None:
        base, staged = self.bench.reserve(sizes[-1]), placement != "pinned"
        # Out first: it touches every page of the host's memory, and then of the device's.
        for direction in ("copy_out", "copy_in"):
            whole = self.bench.copy(direction, base, host, sizes[-1] // 4)
            self.bench.steps({direction: [whole(0), whole(1)]}, staged=staged)
            for size in sizes:
                action = self.bench.copy(direction, base, host, size // 4)
                timing = self.bench.time(direction, action, staged=staged)
                self.record(f"{direction}/{placement}", size, timing)

    def files(self) -> None:
        """Measure copies of files."""
        with _scratch_directory() as directory:
            self.disk(directory)

    def disk(self, directory: Path) -> None:
        """Measure reading a file that is not in the page cache, and writing one that is new.

        Writing is as fast as the page cache takes it, as it is until that is full.
        """
        source = directory / "source"
        np.ones(self.file_bytes // 4, np.float32).tofile(source)
        sizes = [size for size in self.disk_bytes if self.bench.fits(2 * size)]
        base = self.bench.reserve(max(sizes, default=MIB))
        openings: dict[str, Callable[[], Any]] = {
            "copy_in": lambda: _cold(source),
            "copy_out": lambda: _fresh(directory / "target", self.file_bytes),
        }
        for direction, opened in openings.items():
            for size in sizes:
                measure = functools.partial(self._through_file, direction, base, opened, size)
                self.record(f"{direction}/disk", size, self.bench.repeat(measure))

    def _through_file(
        self, direction: str, base: int, opened: Callable[[], Any], size: int
    ) -> float:
        """Seconds of one copy, to or from parts of a file that were not touched before."""
        file = opened()
        count = min(8, file.nbytes // size)
        copy = self.bench.copy(direction, base, file, size // 4)
        actions = [copy(index) for index in range(count)]
        stops = self.bench.steps({direction: actions}, staged=True)[direction]
        return float((stops[-1] - stops[0]) / (count - 1))


# Files -----------------------------------------------------------------------------------------


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    """Make a folder for a while: in the cache directory, else where temporary files go."""
    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="calibrate-", dir=cache_directory())
    except OSError:
        folder = tempfile.TemporaryDirectory(prefix="ooc_cudnn-calibrate-")
    with folder as name:
        yield Path(name)


def _cold(path: Path) -> np.memmap[Any, Any]:
    """Map a file, with nothing of it in the page cache where the system can be asked for that."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.memmap(path, np.float32, "r")


def _fresh(path: Path, nbytes: int) -> np.memmap[Any, Any]:
    """Map a new file, set aside on the disk as an output is."""
    path.unlink(missing_ok=True)
    file: np.memmap[Any, Any] = np.memmap(path, np.float32, "w+", shape=(nbytes // 4,))
    reserve_file(file)
    return file
