"""A picture carries the digest of what it was drawn from, so that a stale one is found out.

The digest stands in a text chunk of the PNG file (specification, 11.3.4.3). So a picture is
compared by what it shows; other versions of matplotlib, which draw other bytes, do not matter.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

KEYWORD = "drawn from"


def digest_of(drawn: Any) -> str:
    """Return the SHA-256 of plain values.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def stamp(path: Path, drawn: Any) -> None:
    """Write the digest of what was drawn into a picture."""
    from PIL import Image, PngImagePlugin

    digest = PngImagePlugin.PngInfo()
    digest.add_text(KEYWORD, digest_of(drawn))
    with Image.open(path) as image:
        image.load()
        image.save(path, format="PNG", optimize=True, pnginfo=digest)


def stamped(path: Path) -> str | None:
    """Return the digest that a picture carries; None without a picture, or without one in it."""
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as image:
        return image.info.get(KEYWORD)


def is_current(path: Path, drawn: Any) -> bool:
    """Whether a picture is there and was drawn from these values."""
    return stamped(path) == digest_of(drawn)
