"""NumPy arrays over memory-mapped files: their bytes of a file, and room for those on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc_cudnn.units import format_bytes


def bases(array: Any) -> Iterator[np.ndarray[Any, Any]]:
    """An array, the one that it is a view of, and so on."""
    while isinstance(array, np.ndarray):
        yield array
        array = array.base


def array_span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Lowest byte address of a NumPy array, and one past the highest."""
    pointer = array.__array_interface__["data"][0]
    reach = [(e - 1) * s for e, s in zip(array.shape, array.strides, strict=True)]
    low = pointer + sum(min(r, 0) for r in reach)
    return low, pointer + sum(max(r, 0) for r in reach) + array.itemsize


def file_range(array: Any) -> tuple[str, int, int] | None:
    """Return (path, first byte, one past the last) of the file behind a memory-mapped array."""
    opened = [b for b in bases(array) if isinstance(b, np.memmap) and b.filename is not None]
    if not opened:
        return None
    memmap = opened[-1]  # the outermost memmap is the one that was opened
    # Address of the file's first byte: the mapping's address less the offset of its data.
    start = memmap.offset
    root = memmap.__array_interface__["data"][0]
    low, high = array_span(array)
    return str(memmap.filename), start + low - root, start + high - root


def share_bytes(one: Any, other: Any) -> bool:
    """True if two memory-mapped arrays have bytes of one file in common."""
    a, b = file_range(one), file_range(other)
    if a is None or b is None or not (a[1] < b[2] and b[1] < a[2]):
        return False
    try:
        return os.path.samefile(a[0], b[0])
    except OSError:
        return False


def reserve_file(array: Any, *, name: str = "out") -> None:
    """Make the file system set aside every byte that an output memmap will be written to.

    A sparse file on a full disk would kill the process with a bus error in mid-run; this turns it
    into an error before the first copy.

    Raises
    ------
    OSError
        If the disk is full, saying how many bytes were asked for.
    """
    span = file_range(array)
    if span is None or getattr(array, "mode", None) == "c":  # copy on write: no file is written
        return
    path, low, high = span
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return  # mapped and unlinked: nothing to reserve by name
    try:
        os.posix_fallocate(descriptor, low, high - low)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"{name} needs {format_bytes(high - low)} on disk, and the disk is full; "
                "free space or choose another place",
                path,
            ) from None
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)
