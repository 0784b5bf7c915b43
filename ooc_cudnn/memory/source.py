"""The source of memory: a device, as far as this room sees it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ooc_cudnn.memory.arena import Arena

HostArray = np.ndarray[Any, Any]


class Source(Protocol):
    """A source of device memory and page-locked host memory."""

    name: str
    arena: Arena

    def free_bytes(self) -> int:
        """Device memory that is free, whoever uses the rest."""

    def keep(self, memory: Any) -> None:
        """Keep memory of the host that runs which nobody waits for still read or write."""

    def drop_kept(self) -> None:
        """Wait for those runs, and keep their memory no longer."""

    def allocate_pinned(self, nbytes: int) -> HostArray:
        """Page-locked host memory of exactly `nbytes`, as bytes; freed with the array."""
