"""The memory limit, resolved to bytes."""

from __future__ import annotations

from ooc_cudnn.memory.source import Source
from ooc_cudnn.units import MOST_BYTES, resolve_limit

_resolved: dict[tuple[str, float | int | None], int] = {}


def limit_bytes(device: Source, setting: float | int | None) -> int:
    """Return the memory limit of a device in bytes.

    A fraction (and None, 90 %) is of what was free when it was first used, so that plans stay the
    same from call to call; after the driver ran out of memory it is measured anew.
    """
    if isinstance(setting, int):
        return min(setting, MOST_BYTES)
    key = (device.name, setting)
    limit = _resolved.get(key)
    if limit is None:  # two threads are given the same, and none what another forgets meanwhile
        measured = resolve_limit(setting, device.free_bytes() + device.arena.held_bytes)
        limit = _resolved.setdefault(key, measured)
    return limit


def forget_limits() -> None:
    """Measure what is free anew at the next call."""
    _resolved.clear()
