"""The memory limit, resolved to bytes."""

from __future__ import annotations

from ooc_cudnn.memory.source import Source
from ooc_cudnn.units import resolve_limit

_resolved: dict[tuple[str, float | int | None], int] = {}


def limit_bytes(device: Source, setting: float | int | None) -> int:
    """Return the memory limit of a device in bytes.

    A fraction (and None, 90 %) is of what was free when it was first used, so that plans stay the
    same from call to call; after the driver ran out of memory it is measured anew.
    """
    if isinstance(setting, int):
        return setting
    key = (device.name, setting)
    if key not in _resolved:
        _resolved[key] = resolve_limit(setting, device.free_bytes() + device.arena.held_bytes)
    return _resolved[key]


def forget_limits() -> None:
    """Measure what is free anew at the next call."""
    _resolved.clear()
