"""Drivers that refuse memory, and count what they are asked for."""

from __future__ import annotations

import math


def driver_with(monkeypatch, device, most_bytes=math.inf, failures=math.inf):
    """Let a device's driver have no more than `most_bytes` for the first so many asks.

    Returns the sizes that it is asked for, a list that grows.
    """
    real, asked = device.arena._allocate, []

    def allocate(nbytes):
        asked.append(nbytes)
        if nbytes > most_bytes and len(asked) <= failures:
            raise MemoryError
        return real(nbytes)

    monkeypatch.setattr(device.arena, "_allocate", allocate)
    return asked


class Refusing:
    """Counts allocations by functions, each an owner and a name, and refuses some of them.

    The message of what it raises is the name.
    """

    def __init__(self, monkeypatch, *functions):
        self.asked, self.refused = 0, range(0)
        for owner, name in functions:
            given = getattr(owner, name)
            monkeypatch.setattr(
                owner, name, lambda *a, n=name, given=given, **k: self._allocate(n, given, *a, **k)
            )

    def _allocate(self, name, given, *arguments, **named):
        at = self.asked
        self.asked += 1
        if at in self.refused:
            raise MemoryError(name)
        return given(*arguments, **named)

    def begin(self, refused):
        self.asked, self.refused = 0, refused
