"""Reading and writing of records: JSON, with a line for each claim or call.

And rows of them, laid out in columns for a terminal or a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ooc_cudnn.bench.environment import SOURCES, plain

#: Where a checkout keeps the records of its benchmarks.
RESULTS = SOURCES.parent / "results"

#: Down to this depth whatever is longer than a line is laid open; below, what is very long.
OPEN_DEPTH, LINE, LONG_LINE = 2, 120, 4000


def dump_record(value: Any, depth: int = 0) -> str:
    """Return a record as JSON.

    Examples
    --------
    >>> record = {"samples": list(range(60)), "what": "a" * 60, "seconds": {"median": 1.5}}
    >>> print(dump_record(record))
    {
     "samples": [0, 1, 2, ..., 59],
     "what": "aa...a",
     "seconds": {"median": 1.5}
    }
    """
    line = json.dumps(value, default=plain)
    if len(line) <= (LINE if depth < OPEN_DEPTH else LONG_LINE):
        return line
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key)}: {dump_record(each, depth + 1)}" for key, each in value.items()
        ]
    elif isinstance(value, list | tuple) and not all(
        isinstance(each, int | float) for each in value
    ):
        parts = [dump_record(each, depth + 1) for each in value]
    else:
        return line
    indent = "\n" + " " * depth
    return f"{line[0]}{indent} {f',{indent} '.join(parts)}{indent}{line[-1]}"


def load_record(name: str, folder: Path = RESULTS) -> Any:
    """Return a stored record.

    Raises
    ------
    FileNotFoundError
        If nothing of that name was recorded.
    """
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def claims(name: str, folder: Path = RESULTS) -> dict[str, float]:
    """Return the values of a record's claims, by what they are called."""
    return {each["name"]: float(each["value"]) for each in load_record(name, folder)["claims"]}


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Lay rows out in columns.

    Examples
    --------
    >>> print(table(("case", "ms"), [("fig9-c64", "12")]))
    case      ms
    --------  --
    fig9-c64  12
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, tuple("-" * width for width in widths), *rows]
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "lr") -> str:
    """Lay out a table; `align` has "l" or "r" for each column, its last letter for all others.

    Examples
    --------
    >>> print(markdown(("case", "ms"), [("a", "12")]))
    | case | ms |
    |---|---:|
    | a | 12 |
    """
    kinds = align.ljust(len(head), align[-1])[: len(head)]
    rule = "|".join({"l": "---", "r": "---:"}[kind] for kind in kinds)
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def join_paragraphs(parts: Iterable[str]) -> str:
    """Join paragraphs; those without text are left out."""
    return "\n\n".join(part for part in parts if part)
