"""Python's search for garbage, kept out of what makes many objects and no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Plan without looking for cycles: of ResNet-152 that takes a third of all planning.

    What nobody holds goes as always. Threads that plan side by side share Python's one switch:
    where one ends first, the other is searched as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
