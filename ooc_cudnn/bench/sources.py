"""The files that a record is of: named in one table, stored with a digest of what each held.

So a record that is older than what it measures is found without a history. An installed package has
no table, and its records name no files.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ooc_cudnn.bench.environment import ROOT, SOURCES

#: Of a folder, what counts.
_SUFFIXES = (".py", ".cu", ".cuh", ".json")
_DIGITS = 16
#: A kernel's comments say what a record measured of it: that is no change of the kernel.
_COMMENT = re.compile(rb"^//.*\n", re.MULTILINE)


def sources_of(record: str, table: Path = SOURCES) -> tuple[str, ...]:
    """Return the files and folders that a record is of, as paths in the repository.

    Parameters
    ----------
    record : str
        Its file below the folder of records, without the suffix. The first pattern of the table
        that it matches counts.
    table : Path
    """
    if not table.exists():
        return ()
    named: dict[str, list[str]] = json.loads(table.read_text(encoding="utf-8"))["of"]
    return next((tuple(of) for key, of in named.items() if fnmatch.fnmatch(record, key)), ())


def is_closed(record: str, table: Path = SOURCES) -> bool:
    """True if a record is of a closed study, which nothing measures any more."""
    closed: list[str] = json.loads(table.read_text(encoding="utf-8"))["closed"]
    return any(fnmatch.fnmatch(record, key) for key in closed)


def digests(paths: Iterable[str], root: Path = ROOT) -> dict[str, str | None]:
    """Return a digest of what each file, or each folder's sources, hold; None of what is gone."""
    return {path: _digest(root, root / path) for path in paths}


def changed_sources(
    files: Mapping[str, str | None], root: Path = ROOT, now: Mapping[str, str | None] | None = None
) -> list[str]:
    """Name what a record is of that holds something else now; None never agrees with anything.

    `now` are the digests of today, where they are at hand.
    """
    now = digests(files, root) if now is None else now
    return [path for path, before in files.items() if before is None or before != now[path]]


def _digest(root: Path, path: Path) -> str | None:
    if not path.exists():
        return None
    digest = hashlib.sha256()
    every = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in every:
        if file.is_file() and (path.is_file() or file.suffix in _SUFFIXES):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + _code(file))
    return digest.hexdigest()[:_DIGITS]


def _code(path: Path) -> bytes:
    found = path.read_bytes()
    return _COMMENT.sub(b"", found) if path.suffix in (".cu", ".cuh") else found
