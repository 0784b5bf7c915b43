"""The rings of one split: the slots that each operand needs, and the copies that go through."""

from __future__ import annotations

from typing import NamedTuple

from ooc_cudnn.pipeline.request import Direction


class Need(NamedTuple):
    """What an operand needs: slots of some size, so many at most; a parameter may have all."""

    name: str
    slot_bytes: int
    most: int
    parameter: bool

    def slots(self, depth: int, whole_parameters: bool) -> int:
        """In rings of `depth` at most."""
        return self.most if self.parameter and whole_parameters else min(self.most, depth)


class Turn(NamedTuple):
    """A ring of a call: its copies, the bytes of one of them, and the seconds of all."""

    direction: Direction
    name: str
    slots: int
    copies: int
    copy_bytes: float
    seconds: float
