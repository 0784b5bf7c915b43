"""Timeline of copies over the link, beside the phases of a step: one way each, in turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

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


def offload_ends(copies: Sequence[tuple[int, float]], ends: Sequence[float]) -> list[int]:
    """The phases by which copies to the host have ended.

    Parameters
    ----------
    copies : sequence of (int, float)
        Of each the phase after which it may begin, and the seconds that it takes.
    ends : sequence of float
        Seconds by the end of each phase.
    """
    by_phase, free = dict[int, int](), 0.0
    for phase in sorted({phase for phase, _ in copies}):
        # those that begin after one phase do in any order
        free = max(free, ends[phase]) + sum(seconds for at, seconds in copies if at == phase)
        by_phase[phase] = min(bisect_left(ends, free), len(ends) - 1)
    return [by_phase[phase] for phase, _ in copies]


def prefetch_starts(copies: Sequence[tuple[int, float]], ends: Sequence[float]) -> list[int]:
    """The phases before which copies from the host begin, so that each has ended in time.

    Parameters
    ----------
    copies : sequence of (int, float)
        Of each the phase before which it must have ended, and the seconds that it takes.
    """
    starts, free = [0] * len(copies), float("inf")
    for index in sorted(range(len(copies)), key=copies.__getitem__, reverse=True):
        before, seconds = copies[index]
        free = min(free, ends[before - 1] if before else 0.0) - seconds
        starts[index] = min(bisect_right(ends, free), before)
    return starts
