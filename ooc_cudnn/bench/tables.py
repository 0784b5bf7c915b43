"""Rows laid out in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


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
