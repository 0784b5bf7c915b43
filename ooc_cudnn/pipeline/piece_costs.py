"""What one piece costs: the launches on it, their buffers and their seconds, each made once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ooc_cudnn.operations.splittable import Accumulation, Buffer, Launch, Piece, Splittable
from perfmodel import ComputeModel


@dataclass(frozen=True, slots=True)
class PieceCost:
    """One piece of a class.

    Attributes
    ----------
    seconds : float
        Of computing it.
    sizes : mapping
        Bytes of each block of memory, operands' slots among them.
    largest_elements, largest_bytes : int
        Of its buffers.
    launches, buffers
        As from `Splittable.launches`.
    """

    seconds: float
    sizes: Mapping[str, int]
    largest_elements: int
    largest_bytes: int
    launches: tuple[Launch, ...]
    buffers: Mapping[str, Buffer]


class PieceCosts:
    """Costs of the pieces of a call in one layout.

    Pieces of equal sizes, rows and place in a sum launch the same, under whatever split.
    """

    def __init__(
        self, call: Splittable, layout: str, orders: Mapping[str, str], compute: ComputeModel
    ) -> None:
        self.call, self.layout, self.orders, self.compute = call, layout, orders, compute
        self._known: dict[Hashable, PieceCost] = {}

    def of(self, piece: Piece, accumulation: Accumulation) -> PieceCost:
        """The cost of a piece that stands there in the sum over the reduced axes."""
        key = (piece.sizes, piece.sweep, self.call.row_key(piece), accumulation)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._measure(piece, accumulation)
        return found

    def _measure(self, piece: Piece, accumulation: Accumulation) -> PieceCost:
        launches, buffers = self.call.launches(
            piece, layout=self.layout, orders=self.orders, accumulation=accumulation
        )
        sizes: dict[str, int] = {}
        largest_elements = largest_bytes = 0
        for name, buffer in buffers.items():
            count = buffer.nbytes
            block = buffer.block or name
            if count > sizes.get(block, -1):
                sizes[block] = count
            if count > largest_bytes:
                largest_bytes = count
            elements = math.prod(buffer.whole)
            if elements > largest_elements:
                largest_elements = elements
        seconds = sum(self.compute.seconds(launch.operation.work()) for launch in launches)
        return PieceCost(seconds, sizes, largest_elements, largest_bytes, launches, buffers)
