"""A digest of what a plan depends on: the same in every process, and on every machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import perfmodel

#: What solves the planner's programs: another version may find another optimum.
SOLVER = "scipy"
#: Their text is that of `repr`.
PLAIN = {str, int, float, bool}


def digest_of(*values: object) -> str:
    """Return the SHA-256 of values, as hexadecimal digits.

    Parameters
    ----------
    *values
        Numbers, text, None, dataclasses, and tuples, lists, sets and mappings of such. All fields
        of dataclasses count, and the order of mappings: in it, equals are taken.

    Raises
    ------
    TypeError
        If a value is of another kind: its text might not be the same in another process.

    Examples
    --------
    >>> digest_of({"conv": (8, 3)}, 0.5)[:8] == digest_of({"conv": (8, 3)}, 0.5)[:8]
    True
    >>> digest_of(1) == digest_of(1.0), digest_of({2, 1}) == digest_of({1, 2})
    (False, True)
    """
    return hashlib.sha256(_Text()(values).encode()).hexdigest()


@cache
def library_digest() -> str:
    """Return a digest of the library's sources, and of the version of what solves its programs.

    A version number would not do: between two of them the planner changes.
    """
    digest = hashlib.sha256(_version_of(SOLVER).encode())
    for folder in (Path(__file__).parents[1], Path(perfmodel.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


class _Text:
    """Values as text; dataclasses that come again are written once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # with the value, so that its id stays its own

    def __call__(self, value: Any) -> str:
        if id(value) in self._known:
            return self._known[id(value)][1]
        if value is None or type(value) in PLAIN:
            return repr(value)
        if type(value) is tuple:  # most are, and whether one is a mapping takes long to say
            return f"({','.join(map(self, value))})"
        if isinstance(value, str):
            return repr(value)
        if isinstance(value, Integral):
            return repr(int(value))
        if isinstance(value, Real):
            return repr(float(value))
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{self(key)}:{self(held)}' for key, held in value.items())}}}"
        if isinstance(value, tuple | list):
            return f"({','.join(map(self, value))})"
        if isinstance(value, Set):
            return f"<{','.join(sorted(map(self, value)))}>"
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        raise TypeError(f"{value!r} has no digest")

    def _dataclass(self, value: Any) -> str:
        held = ",".join(self(getattr(value, each.name)) for each in fields(value))
        digest = hashlib.sha256(f"{type(value).__qualname__}({held})".encode()).hexdigest()
        self._known[id(value)] = value, digest
        return digest
