"""Cost of a piece: the launches on it, their buffers and seconds, each computed once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.operations.core.call import Accumulation, Piece
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.tensor import ITEM_BYTES

#: Entries of `PieceCost.blocks` that are no blocks.
IMAGES, ELEMENTS, BYTES = "images", "largest elements", "largest bytes"


class PieceCost(NamedTuple):
    """One piece.

    Attributes
    ----------
    seconds : float
        Of computing it.
    even_seconds : float
        The same, if the last wave of a convolution's tiles took no longer than its tiles do: what
        grows evenly with the piece.
    launching : float
        Seconds of the host to launch what it takes.
    blocks : mapping
        Bytes of each block of memory, operands' slots among them; and how large it is: its images,
        and the elements and bytes of its largest buffer.
    """

    seconds: float
    even_seconds: float
    launching: float
    blocks: Mapping[str, int]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self.blocks.values()) - sum(
            self.blocks[name] for name in (IMAGES, ELEMENTS, BYTES)
        )


class PieceCosts:
    """Costs of the pieces of a request's call in one layout.

    Pieces of equal sizes, rows and place in a sum launch the same, under whatever split.
    """

    def __init__(self, request: Request, layout: str) -> None:
        self.call, self.layout = request.chain, layout
        self.orders, self.machine = dict(request.orders), request.machine
        self._known: dict[Hashable, PieceCost] = {}

    def of(self, piece: Piece, place: Accumulation) -> PieceCost:
        """The cost of a piece that stands there in the sum over the reduced axes."""
        key = piece.sizes, piece.sweep, self.call.row_key(piece), place
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._count(piece, place)
        return found

    def launches(
        self, piece: Piece, place: Accumulation
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        """Return the launches of a piece, and its buffers."""
        return launches_on(
            self.call, piece, layout=self.layout, orders=self.orders, accumulation=place
        )

    def _count(self, piece: Piece, place: Accumulation) -> PieceCost:
        launches, buffers = self.launches(piece, place)
        blocks = {IMAGES: piece.n[1] - piece.n[0], ELEMENTS: 0, BYTES: 0}
        for name, buffer in buffers.items():
            elements = math.prod(buffer.shape if buffer.rows is None else buffer.whole)
            count, block = elements * ITEM_BYTES[buffer.dtype], buffer.block or name
            blocks[block] = max(blocks.get(block, 0), count)
            blocks[ELEMENTS] = max(blocks[ELEMENTS], elements)
            blocks[BYTES] = max(blocks[BYTES], count)
        seconds = even = launching = 0.0
        compute, otherwise = self.machine.compute, self.machine.launch_seconds
        for launch in launches:
            work = launch.operation.work()
            seconds += compute.seconds(work)
            even += compute.seconds(work.in_full_waves)
            launching += compute.launching_seconds(work, otherwise)
        return PieceCost(seconds, even, launching, blocks)
