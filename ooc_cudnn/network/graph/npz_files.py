"""``.npz`` files, one array at a time: written under any name, read within bounds.

NumPy's own functions take the names of arrays for their own arguments, and read what a file says:
an array that is larger than any memory, a pickled object, Python to be parsed. Here nothing is read
whose size and type were not asked for.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from typing import IO, Any, Self

import numpy as np

#: Names of arrays that are names of entries, too: NumPy finds them by the same name.
_PLAIN = re.compile(r"[\w.-]{1,200}")
_SUFFIX = ".npy"
#: What NumPy writes in front of an array of numbers.
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    r"\{'descr': '(?P<dtype>[<>|][fiu][0-9]{1,2})', 'fortran_order': (?P<order>True|False), "
    r"'shape': \((?P<shape>[0-9, ]*)\), \} *\n",
    re.ASCII,
)
_CHUNK_BYTES = 2**20

#: What reading a file raises that is damaged, or was written to do harm.
BROKEN = (
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,  # encrypted, of a later version, or nested too deeply
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def is_plain(name: str) -> bool:
    """True if an array of this name may have an entry of the same name.

    >>> is_plain("convolution_1.w"), is_plain("a/b"), is_plain("w.npy")
    (True, False, False)
    """
    return bool(_PLAIN.fullmatch(name)) and not name.endswith(_SUFFIX)


class NpzWriter:
    """Writes arrays to a stream, one by one; a context manager, which completes the file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(stream, "w")

    def add(self, entry: str, array: np.ndarray[Any, Any]) -> None:
        """Write an array under a name that `is_plain`, or has a blank in the place of others."""
        with self._zip.open(entry + _SUFFIX, "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._zip.close()


class NpzReader:
    """Reads arrays of which shape and dtype are known; what it raises on others is `BROKEN`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(stream)

    def array(
        self, entry: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> np.ndarray[Any, Any]:
        """Return an array, in native byte order whichever it was written in."""
        with self._open(entry) as stream:
            extents, stored, order = _header(stream)
            if stored.newbyteorder("=") != dtype or extents != shape:
                raise ValueError(f"{entry} is {stored} {_said(extents)}, not {dtype} {shape}")
            values = np.empty(math.prod(shape), stored)
            _fill(values, stream)
        return np.ascontiguousarray(values.astype(dtype, copy=False).reshape(shape, order=order))

    def octets(self, entry: str, most: int) -> bytes:
        """Return an array of bytes, of which there may be so many."""
        with self._open(entry) as stream:
            shape, dtype, _ = _header(stream)
            if dtype != np.uint8 or len(shape) != 1:
                raise ValueError(f"{entry} is {dtype} {_said(shape)}, and no bytes")
            if shape[0] > most:
                raise ValueError(f"{entry} has {shape[0]} bytes, more than {most}")
            values = np.empty(shape, np.uint8)
            _fill(values, stream)
        return values.tobytes()

    def _open(self, entry: str) -> IO[bytes]:
        found = self._zip.getinfo(entry + _SUFFIX)
        if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{entry} is compressed by method {found.compress_type}")
        return self._zip.open(found)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], Any]:
    """Shape, dtype and order of an array, as NumPy writes them."""
    magic, length = stream.read(len(_MAGIC)), stream.read(2)
    if magic != _MAGIC or len(length) != 2:
        raise ValueError("an entry is no array of numbers")
    content = stream.read(struct.unpack("<H", length)[0])
    match = _HEADER.fullmatch(content.decode("latin-1"))
    if match is None:
        raise ValueError(f"an array begins with {content[:100]!r}")
    try:
        dtype = np.dtype(match["dtype"])
    except TypeError as error:
        raise ValueError(f"there is no dtype {match['dtype']!r}") from error
    shape = tuple(int(each) for each in match["shape"].split(",") if each.strip())
    return shape, dtype, "F" if match["order"] == "True" else "C"


def _fill(array: np.ndarray[Any, Any], stream: IO[bytes]) -> None:
    """Read the elements of a flat array."""
    into = array.view(np.uint8)
    start = 0
    while start < len(into):
        content = stream.read(min(_CHUNK_BYTES, len(into) - start))
        if not content:
            raise EOFError("an array is cut off")
        into[start : start + len(content)] = np.frombuffer(content, np.uint8)
        start += len(content)
    if stream.read(1):
        raise ValueError("an array is longer than it says")


def _said(shape: tuple[int, ...]) -> str:
    return f"{shape!s:.100}"
