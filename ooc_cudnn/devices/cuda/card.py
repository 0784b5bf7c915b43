"""A GPU, as its runs and its copies see it."""

from __future__ import annotations

import threading
from typing import Any, Protocol

#: A stream, and its thread where that tells it apart. It keeps the stream: while it is kept, no
#: other one can be given its number.
Identity = tuple[Any, threading.Thread | None]


class Card(Protocol):
    """State that `CudaDevice` keeps for all runs."""

    index: int
    runtime: Any
    copy_streams: tuple[Any, ...]
    #: Events for reuse: without timing, and with.
    events: tuple[list[int], list[int]]
    #: Stream and event of the last run.
    last_compute: tuple[Identity, int] | None

    @property
    def staging(self) -> Any:
        """The slabs and threads for pageable memory."""

    def use(self) -> None:
        """Make the GPU current on the calling thread."""

    def is_pinned(self, pointer: int, nbytes: int) -> bool:
        """True if host memory is page-locked from its first byte to its last."""
