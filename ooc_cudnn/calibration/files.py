"""What a calibration measures of files: reading ones that nothing has cached, writing new ones.

A copy is over when all is at rest: results wait in slabs until they are written, and the system
sets the pages of a file aside one by one, so that one thread writes it many times slower than all.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.devices.machines import cache_directory
from ooc_cudnn.devices.measuring import Bench, Measure, Recorder
from ooc_cudnn.memory.files import reserve_file
from perfmodel import Line
from perfmodel.transfer import SLAB_BYTES, SLABS, STAGED_BYTES

#: Copies of one measurement: parts of a file, each touched once.
MOST_PARTS = 16
FILE_BYTES = 192 * 2**20
#: Single copies in a row: the first one finds a file that nobody has used yet.
SINGLES = 3


class FileCopies:
    """Copies of pieces from and to files, each of parts that were not touched before.

    Parameters
    ----------
    bench : Bench
    record : callable
        Takes the key of a line, the bytes of a sample, and its timing.
    sizes : tuple of int
        Bytes of the pieces.
    turns : int
        How often each is measured at least: nothing is disturbed as often as files are.

    Attributes
    ----------
    alone : dict
        Of each direction, bytes and seconds of single copies.
    """

    def __init__(
        self, bench: Bench, record: Recorder, sizes: tuple[int, ...], *, turns: int
    ) -> None:
        self.bench, self.record, self.turns = bench, record, turns
        self.sizes = tuple(size for size in sizes if bench.fits(2 * size))
        self.file_bytes = min(FILE_BYTES, 6 * sizes[-1])
        self.alone: dict[str, list[tuple[int, float]]] = {}

    @property
    def seconds(self) -> float:
        """About how long the measurements take, at 2 GB/s."""
        read = sum(min(MOST_PARTS * size, self.file_bytes) for size in self.sizes)
        return 2 * self.bench.batches * read / 2e9

    def measure(self) -> None:
        """Measure both directions.

        Writing is as fast as the page cache takes it, as it is until that is full.
        """
        with _scratch_directory() as directory:
            source, target = directory / "source", directory / "target"
            np.ones(self.file_bytes // 4, np.float32).tofile(source)
            base = self.bench.reserve(max(self.sizes, default=2**20))
            openings: dict[str, Callable[[int], Any]] = {
                "copy_in": lambda nbytes: _cold(source),
                "copy_out": lambda nbytes: _fresh(target, nbytes),
            }
            wanted = [(direction, size) for direction in openings for size in self.sizes]
            measures: list[Measure] = [
                partial(self._through_file, direction, base, openings[direction], size)
                for direction, size in wanted
            ]
            timings = self.bench.in_turns(measures, fewest=self.turns)
            for (direction, size), found in zip(wanted, timings, strict=True):
                if found[direction].seconds <= 0:
                    continue  # no time at all is the disturbance of a run, not a file's
                self.record(f"{direction}/disk", size, found[direction])
                self.alone.setdefault(direction, []).append((size, found["alone"].seconds))

    def latency(self, direction: str, line: Line) -> Line | None:
        """What one copy is late by that one thread stages, beside what its line says.

        Of larger ones that is lost in the noise of files: they take 10 ms, and are late by 1.
        """
        late = [
            (size, max(seconds - line.seconds(size), 0.0))
            for size, seconds in self.alone.get(direction, ())
            if size <= STAGED_BYTES
        ]
        return latency_line(late) if late else None

    def _through_file(
        self, direction: str, base: int, opened: Callable[[int], Any], size: int
    ) -> Mapping[str, float]:
        """Seconds of one copy among many, and of a single one.

        Several parts are on their way at once: what one more takes is the slope over runs of one,
        of as many as there are slabs (half of all at most), and of all; at least half of what each
        of all took, since one run or another may be disturbed for longer than that.
        """
        most = max(min(MOST_PARTS, self.file_bytes // size), 2)
        counts = np.array((1, min(SLABS, most // 2), most))
        measure = partial(self._seconds, direction, base, opened, size)
        singles = measure([1] * (SINGLES if size <= SLAB_BYTES else 1))
        alone = statistics.median(singles)
        seconds = [alone, *(measure([int(count)])[0] for count in counts[1:])]
        each = max(float(np.polyfit(counts, seconds, 1)[0]), seconds[-1] / most / 2)
        return {direction: each, "alone": alone}

    def _seconds(
        self,
        direction: str,
        base: int,
        opened: Callable[[int], Any],
        size: int,
        counts: Sequence[int],
    ) -> list[float]:
        """Seconds until so many copies are at rest, one run after the other on one file."""
        file = opened(sum(counts) * size)
        copy = self.bench.copy(direction, base, file, size // 4)
        # the mapping ends with this: what is mapped would stay in the page cache
        return [
            self.bench.seconds_to_rest(
                {direction: [copy(index) for index in range(count)]}, staged=True
            )
            for count in counts
        ]


def latency_line(samples: Sequence[tuple[int, float]]) -> Line:
    """The line through what the smallest and the largest copy are late by: (bytes, seconds).

    It does not fall: where the large one is late by less, both are by the mean.
    """
    (small, least), (large, most) = samples[0], samples[-1]
    if most <= least:
        return Line(0.0, float(f"{(least + most) / 2:.4g}"))
    alpha = (most - least) / (large - small)
    return Line(float(f"{alpha:.4g}"), float(f"{max(most - alpha * large, 0.0):.4g}"))


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
