"""Copies of files: reading ones that nothing has cached, writing new ones.

A copy is over when all is at rest: results wait in slabs until they are written, and the system
sets the pages of a file aside one by one, so that one thread writes it many times slower than all.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_cudnn.calibration.session import DIRECTIONS, Session
from ooc_cudnn.devices.machines import cache_directory
from ooc_cudnn.devices.measuring import Bench, HostMemory
from ooc_cudnn.memory.files import reserve_file
from perfmodel.files import ABANDONED_SECONDS, open_file, try_lock
from perfmodel.staging import SLAB_BYTES, SLABS

MIB = 2**20
#: Bytes of pieces, and how often each is measured at least, since nothing is disturbed as often as
#: files are; for a quick calibration, the second of each.
GPU_SIZES = tuple(MIB * n for n in (1, 4, 16, 32, 64)), tuple(MIB * n for n in (1, 4, 8))
HOST_SIZES = tuple(MIB * n for n in (1, 4, 8)), tuple(MIB * n for n in (1, 2, 4))
GPU_TURNS, HOST_TURNS = (5, 2), (3, 2)
#: Copies of one measurement: parts of a file, each touched once.
MOST_PARTS = 16
FILE_BYTES = 192 * MIB
#: Single copies in a row: the first one finds a file that nobody has used yet.
SINGLES = 3
#: What the names of its folders begin with, and the file in them that is locked.
PREFIX, LOCK = "calibrate-", "lock"


def sizes_of(session: Session) -> tuple[int, ...]:
    """Bytes of the pieces."""
    return (HOST_SIZES if session.on_host else GPU_SIZES)[session.quick]


def file_copies(session: Session) -> None:
    """Copies both ways: of pieces after each other, and ("alone/...") of single ones.

    Writing is as fast as the page cache takes it, as it is until that is full.
    """
    bench, sizes = session.bench, sizes_of(session)
    count = min(FILE_BYTES, 6 * sizes[-1])
    turns = (HOST_TURNS if session.on_host else GPU_TURNS)[session.quick]
    with _scratch_directory() as directory:
        paths = {way: Path(directory, way) for way in DIRECTIONS}
        np.ones(count // 4, np.float32).tofile(paths["copy_in"])
        wanted = [(way, size) for way in paths for size in sizes if bench.fits(2 * size)]
        base = bench.reserve(max((size for _, size in wanted), default=MIB))
        one = partial(_of_file, bench, base, count)
        measures = [partial(one, way, paths[way], size) for way, size in wanted]
        for (way, size), times in zip(wanted, bench.in_turns(measures, fewest=turns), strict=True):
            if times[way].seconds > 0:  # no time at all is the disturbance of a run, not a file's
                session.record(f"{way}/disk", times[way], size)
                session.record(f"alone/{way}/disk", times["alone"], size)


def _of_file(
    bench: Bench, base: int, file_bytes: int, way: str, path: Path, size: int
) -> Mapping[str, float]:
    """Seconds of one copy among many, and of a single one.

    Several parts are on their way at once: what one more takes is the slope over runs of one, of as
    many as there are slabs (half of all at most), and of all; at least half of what each of all
    took, since one run or another may be disturbed for longer than that.
    """

    def seconds(counts: Sequence[int]) -> list[float]:
        """Seconds until so many copies are at rest, one run after the other on one file."""
        opened = _cold(path) if way == "copy_in" else _fresh(path, sum(counts) * size)
        copy = bench.copies(base, 0, {way: partial(HostMemory(opened).next, size)})[way]
        # the mapping ends with this: what is mapped would stay in the page cache
        runs = ({way: [copy() for _ in range(count)]} for count in counts)
        return [bench.seconds_to_rest(run, staged=True) for run in runs]

    most = max(min(MOST_PARTS, file_bytes // size), 2)
    counts = (1, min(SLABS, most // 2), most)
    alone = statistics.median(seconds([1] * (SINGLES if size <= SLAB_BYTES else 1)))
    totals = [alone, *(seconds([count])[0] for count in counts[1:])]
    per_copy = max(float(np.polyfit(counts, totals, 1)[0]), totals[-1] / most / 2)
    return {way: per_copy, "alone": alone}


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    """Make a folder for a while: in the cache directory, else where temporary files go.

    There it removes those of calibrations that were killed: each has a file that is locked as long
    as its process lives.
    """
    directory, cache = None, cache_directory()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache)
        directory = tempfile.TemporaryDirectory(prefix=PREFIX, dir=cache)
    directory = directory or tempfile.TemporaryDirectory(prefix=f"ooc_cudnn-{PREFIX}")
    with directory as folder, open(Path(folder, LOCK), "xb") as held:
        try_lock(held)
        yield Path(folder)


def _remove_abandoned(cache: Path) -> None:
    for folder in cache.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process may remove it, too
            if time.time() - folder.stat().st_mtime < ABANDONED_SECONDS:
                continue
            try:
                with open_file(folder / LOCK, "r+b") as held:
                    is_abandoned = try_lock(held)
            except FileNotFoundError:
                is_abandoned = True
            if is_abandoned:
                shutil.rmtree(folder)


def _cold(path: Path) -> np.memmap[Any, Any]:
    """Map a file, with nothing of it in the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.memmap(path, np.float32, "r")


def _fresh(path: Path, nbytes: int) -> np.memmap[Any, Any]:
    """Map a new file, set aside on the disk as an output is."""
    path.unlink(missing_ok=True)
    file: np.memmap[Any, Any] = np.memmap(path, np.float32, "w+", shape=(nbytes // 4,))
    reserve_file(file)
    return file
