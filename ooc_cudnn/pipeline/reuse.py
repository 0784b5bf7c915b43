"""How often the regions of one operand are copied in, and what the copies wait for.

A ring that holds all regions that an inner part of the loops goes through finds them there when
it goes through them again. But where no slot is left beside them, what the next part needs is not
copied in before a region was used for the last time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.cached import cached_property

#: The loops, outermost first: (times, whether an operand's region depends on it).
Loops = Sequence[tuple[int, bool]]


class Gate(NamedTuple):
    """Blocks of pieces that go through the same regions again and again.

    Attributes
    ----------
    blocks : int
        How many there are, each with regions of its own.
    block_pieces : int
        Pieces of each.
    regions, spare : int
        That each goes through, and slots beside them.
    pieces : int
        Those from the first that needs the last region of a block to the last that needs the
        first one: no region of the next block is copied into a slot of this one, meanwhile.
    """

    blocks: int
    block_pieces: int
    regions: int
    spare: int
    pieces: int


class Reuse:
    """The regions of one operand under some loops.

    Parameters
    ----------
    loops : sequence of (times, depends)
        Outermost first; `depends` where each time has a region of its own.

    Examples
    --------
    Two regions gone through three times, in each of five blocks:

    >>> found = Reuse([(5, True), (3, False), (2, True)])
    >>> found.distinct, found.loads(2), found.loads(1)
    (10, 10, 30)
    >>> found.gate(3)
    Gate(blocks=5, block_pieces=6, regions=2, spare=1, pieces=4)
    """

    def __init__(self, loops: Loops) -> None:
        self.loops = [loop for loop in loops if loop[0] > 1]

    @cached_property
    def distinct(self) -> int:
        """How many different regions there are."""
        return math.prod(times for times, depends in self.loops if depends)

    def loads(self, slots: int) -> int:
        """How many regions are copied in, with `slots` slots to find earlier ones in."""
        kept = self._kept(slots)
        inner = math.prod(times for times, depends in self.loops[kept:] if depends)
        return inner * math.prod(times for times, _ in self.loops[:kept])

    def _kept(self, slots: int) -> int:
        """The outermost loop whose regions all stay in the slots."""
        inner, at = self.distinct, 0
        while inner > slots:
            times, depends = self.loops[at]
            inner //= times if depends else 1
            at += 1
        while at and not self.loops[at - 1][1]:
            at -= 1
        return at

    def gate(self, slots: int) -> Gate | None:
        """What copies in wait for; None where no region is gone through again."""
        loops, at = self.loops, self._kept(slots)
        if not at:
            return None  # every region has a slot of its own
        while at < len(loops) and loops[at][1]:
            at += 1
        inside = loops[at + 1 :]
        regions = math.prod(times for times, depends in inside if depends)
        blocks = math.prod(times for times, _ in loops[:at])
        if regions == 1 or blocks == 1:
            return None
        again, once = loops[at][0], math.prod(times for times, _ in inside)
        # In the last round, the piece that needs the first region for the last time; as far from
        # the end of the first round is the one that needs the last region for the first time.
        last_use, pieces = 1, once
        for times, depends in inside:
            pieces //= times
            last_use += 0 if depends else (times - 1) * pieces
        return Gate(
            blocks, again * once, regions, slots - regions, (again - 2) * once + 2 * last_use
        )


__all__ = ["Gate", "Loops", "Reuse"]
