"""Staging of copies that the device cannot make alone: through slabs of pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np

STAGED_BYTES = 2**22
"""Bytes of a copy that one thread stages before it starts, at most: several stage the rest beside.
(Of twelve pieces and ways on an H200, parts twice as large were faster in one, of large pieces both
ways, and half as large ones in two, of small pieces: docs/closed-studies.md.)"""

AT_ONCE_BYTES = 2**16
"""Smaller copies are staged on the caller's time: before another thread is awake they are done."""

SLAB_BYTES, SLABS = 2**24, 8
"""Staged copies go through so many pieces of pinned memory each way, of so many bytes."""


def slabs_of(copy_bytes: Any) -> Any:
    """Return how many slabs a staged copy goes through.

    Examples
    --------
    >>> [int(slabs_of(mib * 2**20)) for mib in (1, 16, 17)]
    [1, 1, 2]
    """
    return np.maximum(np.ceil(copy_bytes / SLAB_BYTES), 1.0)


def staging_slots(direction: str, copy_bytes: Any, slots: Any) -> Any:
    """Return how many staged copies can be under way at once, with a ring of `slots`.

    A result leaves its slot as soon as it is in slabs: of small ones more are under way than the
    ring has slots.

    Examples
    --------
    >>> [int(staging_slots("copy_out", mib * 2**20, 2)) for mib in (10, 20, 100)]
    [8, 4, 2]
    >>> staging_slots("copy_in", 10 * 2**20, 2)
    2
    """
    if direction == "copy_in":
        return slots
    return np.maximum(slots, SLABS // slabs_of(copy_bytes))
