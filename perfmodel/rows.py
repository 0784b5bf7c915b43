"""Layout of a copy on the host's side: in one piece, or in rows apart from each other."""

from __future__ import annotations

import math
from typing import NamedTuple

NARROWEST_ROW_BYTES = 128
"""Narrower rows of pinned memory are gathered by the host, as those of plain memory are."""

GATHERED_ALONE = 5.0
"""Pinned memory that has to be gathered is gathered in the caller's own time, without the threads
that stage plain memory: so many times slower (measured on an H200: 3 to 10 GB/s against 35)."""

NARROW_BYTES, GAP_BYTES = (2**12, 2**15), 2**16
"""Narrow rows of pinned memory that lie apart take longer (a line's "rows"): by as much less the
wider they are than the first of these, and by nothing from the second one on; still
narrower ones by a share of it, and so do those with a smaller gap from one to the next. Measured on
an H200, both ways (docs/closed-studies.md): 0.02 us for a row of 1 KiB, 0.03 to 0.1 for those of 4
to 18, hardly anything for one of 24; and nothing where the gap is 336 bytes (`model_accuracy`)."""


class Rows(NamedTuple):
    """Layout of the host's side of a copy: rows of so many bytes, so many bytes apart.

    `scattered` where they lie so unevenly that the host gathers them, whatever memory they are in.
    """

    width_bytes: float
    pitch_bytes: float
    scattered: bool = False


#: What lies in one piece.
WHOLE = Rows(math.inf, 0.0)


def narrow_rows(width_bytes: float, pitch_bytes: float) -> float:
    """Return the narrow rows of a byte: one a row of 4 KiB far from the next, less of others.

    Examples
    --------
    >>> [round(width * narrow_rows(width, 2**20), 2) for width in (2**10, 2**12, 2**14, 2**16)]
    [0.28, 1.0, 0.57, 0.0]
    >>> round(2**12 * narrow_rows(2**12, 2**12 + 2**14), 2)
    0.25
    """
    least, most = NARROW_BYTES
    gap = min(max(pitch_bytes - width_bytes, 0.0) / GAP_BYTES, 1.0)
    return gap * max(most - width_bytes, 0.0) / (most - least) / max(width_bytes, least)


def is_gathered(rows: Rows) -> bool:
    """Return whether the host gathers such rows, whatever memory they are in."""
    return rows.scattered or rows.width_bytes < NARROWEST_ROW_BYTES
