"""Files that processes share: read whole and within bounds, written whole or not at all.

What lies where a file is looked for may be anything: a folder, a pipe that nobody writes to, a link
to a device that never ends. What was being written when its process was killed lies beside its
target until the next one is written there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

ABANDONED_SECONDS = 60.0
"""Younger files may be about to be locked by who made them, or about to be put in their place."""

_LONGEST_NAME = 200
"""Bytes of a name that has room for more behind it: file systems have names of 255."""

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_file(path: str | os.PathLike[str], mode: str = "rb") -> IO[bytes]:
    """Open the bytes of a file that is there; a regular one, so that nothing waits for a writer.

    Parameters
    ----------
    path : str or path
    mode : {"rb", "r+b"}

    Raises
    ------
    OSError
        If there is none or it cannot be opened; `IsADirectoryError` for a folder.
    """
    with ExitStack() as unless_it_is_a_file:
        stream: IO[bytes] = unless_it_is_a_file.enter_context(open(path, mode, opener=at_once))
        kind = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(kind):
            noun = next((name for is_one, name in _KINDS if is_one(kind)), "something else")
            raise OSError(errno.EINVAL, f"this is {noun}, not a file", os.fspath(path))
        unless_it_is_a_file.pop_all()
    return stream


def at_once(path: str, flags: int) -> int:
    """Open, as `open` asks its `opener`, without waiting for the other end of a pipe."""
    for name in ("O_NONBLOCK", "O_NOCTTY"):  # not on every system
        flags |= getattr(os, name, 0)
    return os.open(path, flags)


def read_file(path: str | os.PathLike[str], largest_bytes: int) -> bytes:
    """Return what a regular file holds.

    Raises
    ------
    OSError
        As `open_file`, or if it cannot be read.
    ValueError
        If it has more than `largest_bytes`; no more than that is read.
    """
    with open_file(path) as stream:
        # what has grown since, or never said its size, is not read to its end either
        too_large = os.fstat(stream.fileno()).st_size > largest_bytes
        content = b"" if too_large else stream.read(largest_bytes + 1)
    if too_large or len(content) > largest_bytes:
        raise ValueError(f"it has more than {largest_bytes} bytes")
    return content


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file whole; whoever reads it sees the old content or the new one, whatever happens.

    What is written lies beside the target, hidden, until it is complete and on the disk. What other
    processes left there that were killed meanwhile is removed.

    Raises
    ------
    OSError
        If it cannot be written; then the target is as it was.
    """
    path = Path(target)
    remove_abandoned(path.parent, path.name)
    unfinished = path.with_name(f".{_kept_name(path.name)}.{uuid.uuid4().hex}")
    try:
        with open(unfinished, "xb") as stream:  # as readable as other new files
            try_lock(stream)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.utime(unfinished)  # closed, it is unlocked: it is not to look abandoned
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def replace_file(target: str | os.PathLike[str], content: str) -> None:
    """Write a text as `replacing` does."""
    with replacing(target) as stream:
        stream.write(content.encode())


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what `replacing` left in a folder where its process was killed.

    Parameters
    ----------
    folder : Path
    name : str, optional
        Of the file that was to be replaced; left out, of all files of a folder of the library's
        own.

    Notes
    -----
    Who writes holds a lock that ends with its process. Where files cannot be locked nothing is
    removed.
    """
    kept = ".+" if name is None else re.escape(_kept_name(name))
    pattern = re.compile(rf"\.{kept}\.[0-9a-f]{{32}}", re.DOTALL)
    # a folder that cannot be listed has nothing that could be removed
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                _remove_if_abandoned(entry.path)


def _kept_name(name: str) -> str:
    """Part for a file's name in that of an unfinished one: itself where that has room."""
    raw = os.fsencode(name)
    return name if len(raw) <= _LONGEST_NAME else hashlib.sha256(raw).hexdigest()


def _remove_if_abandoned(path: str) -> None:
    # another process may remove it, or finish it, at any moment; it may belong to another user
    with suppress(OSError):
        if time.time() - os.lstat(path).st_mtime < ABANDONED_SECONDS:
            return
        with open_file(path, "r+b") as stream:  # some file systems lock what may be written alone
            if try_lock(stream):
                os.unlink(path)


def try_lock(stream: IO[bytes]) -> bool:
    """Lock a file until it is closed; False if another process has, or files cannot be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
