"""Resources of a recorded run: kept as long as it may be launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_needs: ContextVar[list[Any] | None] = ContextVar("needs", default=None)


@contextmanager
def collect_needs() -> Iterator[list[Any]]:
    """List what a run needs, while it is recorded."""
    needs: list[Any] = []
    token = _needs.set(needs)
    try:
        yield needs
    finally:
        _needs.reset(token)


def needs_of_recording() -> list[Any] | None:
    """Return the list of the run that is being recorded; None where none is."""
    return _needs.get()
