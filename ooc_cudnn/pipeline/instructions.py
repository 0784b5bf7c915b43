"""Instructions of a schedule: one copy or one computation of one piece each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.launch import Buffer, Launch

NO_BUFFERS: Mapping[str, Buffer] = MappingProxyType({})


class Place(NamedTuple):
    """Place of a piece of an operand: a region of the whole operand, and a slot of its ring.

    Slot -1 means in place: the operand lives on the device and is computed on where it lies, or is
    moved from or to there.
    """

    operand: str
    region: Region
    slot: int


class Instruction(NamedTuple):
    """One copy-in, compute or copy-out of one piece.

    Attributes
    ----------
    stream : str
        "copy_in", "compute" or "copy_out": on which it runs. Copies inside the card run on
        "compute".
    piece : int
        Index of the piece it belongs to, in loop order.
    places : tuple of Place
        The operand copied, or every operand computed on.
    launches : tuple of Launch
        What a compute step runs.
    waits : tuple of int
        Indices of earlier steps that must have finished: on other streams, and of a copy out the
        one that wrote the same bytes of the host before.
    buffers : mapping
        Where its launches read and write, by name: shared by all steps that launch the same.
    signals : bool
        Whether a later step waits on this one.
    item : int
        Index of the item of the program that it belongs to.
    copies : str
        Which way, "copy_in" or "copy_out", it copies to or from the memory of its item; nothing
        where it computes.
    """

    stream: str
    piece: int
    places: tuple[Place, ...]
    launches: tuple[Launch, ...] = ()
    waits: tuple[int, ...] = ()
    buffers: Mapping[str, Buffer] = NO_BUFFERS
    signals: bool = False
    item: int = 0
    copies: str = ""

    def __str__(self) -> str:
        what = ", ".join(f"{p.operand}[{p.slot}]" for p in self.places)
        waits = f" after {', '.join(map(str, self.waits))}" if self.waits else ""
        return f"{self.copies or self.stream} of piece {self.piece}: {what}{waits}"
