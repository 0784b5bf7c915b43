"""A picture carries the digest of what it was drawn from, so that a stale one is found out.

The digest stands in a text chunk of the PNG file (specification, 11.3.4.3). Comparing it needs no
matplotlib, and other versions of that, which draw other bytes, do not matter.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"drawn from"
_HEADER_END = len(SIGNATURE) + 25  # the first chunk, IHDR, is 25 bytes


def digest_of(drawn: Any) -> str:
    """Return the SHA-256 of plain values.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def stamp(path: Path, drawn: Any) -> None:
    """Write the digest of what was drawn into a picture that has none yet."""
    image = path.read_bytes()
    if not image.startswith(SIGNATURE):
        raise ValueError(f"{path} is no PNG file")
    body = b"tEXt" + KEYWORD + b"\0" + digest_of(drawn).encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(image[:_HEADER_END] + chunk + image[_HEADER_END:])


def stamped(path: Path) -> str | None:
    """Return the digest that a picture carries; None without a picture, or without one in it."""
    if not path.exists():
        return None
    for kind, data in _chunks(path.read_bytes()):
        keyword, _, text = data.partition(b"\0")
        if kind == b"tEXt" and keyword == KEYWORD:
            return text.decode("latin-1")
    return None


def is_current(path: Path, drawn: Any) -> bool:
    """Whether a picture is there and was drawn from these values."""
    return stamped(path) == digest_of(drawn)


def _chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at + 8 <= len(image):
        length, kind = struct.unpack(">I4s", image[at : at + 8])
        yield kind, image[at + 8 : at + 8 + length]
        at += 12 + length
