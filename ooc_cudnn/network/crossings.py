"""When copies over the link begin and end, beside the phases of a step: one way each, in turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ooc_cudnn.network.repeating import Again
from perfmodel import MachineModel


class Copy(NamedTuple):
    """Seconds that a tensor's copies take; from the host, and to it where it is not there."""

    back: float
    out: float


def copy_of(nbytes: int, machine: MachineModel, *, leaves: bool) -> Copy:
    """The copies of so many bytes in pinned memory, if both ways are in use."""
    slower = machine.transfer.slowdown("pinned", "pinned")
    back = slower.copy_in * machine.transfer.copy_seconds("copy_in", "pinned", nbytes)
    out = slower.copy_out * machine.transfer.copy_seconds("copy_out", "pinned", nbytes)
    return Copy(back, out if leaves else 0.0)


def left_by(copies: Mapping[str, tuple[int, float]], ends: Sequence[float]) -> dict[str, int]:
    """The phases by which tensors have left.

    Parameters
    ----------
    copies : mapping
        Of each the phase after which it may leave, and the seconds that this takes.
    ends : sequence of float
        Seconds by the end of each phase.
    """
    found, free = dict[str, int](), 0.0
    for made in sorted({made for made, _ in copies.values()}):
        # those that leave after one phase do in any order
        leave = {name: seconds for name, (at, seconds) in copies.items() if at == made}
        free = max(free, ends[made]) + sum(leave.values())
        found |= dict.fromkeys(leave, min(bisect_left(ends, free), len(ends) - 1))
    return found


def begun_by(copies: Mapping[Again, tuple[int, float]], ends: Sequence[float]) -> dict[Again, int]:
    """The phases at which copies from the host begin, so that each has ended in time.

    Parameters
    ----------
    copies : mapping
        Of each the phase before which it must have ended, and the seconds that it takes.
    """
    found, free = dict[Again, int](), float("inf")
    for key in sorted(copies, key=lambda each: (copies[each], each), reverse=True):
        before, seconds = copies[key]
        free = min(free, ends[before - 1] if before else 0.0) - seconds
        found[key] = min(bisect_right(ends, free), before)
    return found
