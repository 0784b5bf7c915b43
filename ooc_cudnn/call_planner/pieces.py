"""The pieces of many splits, as a table of arrays: what they are, whatever the loops around them.

Two builders fill such a table: `grid_table` for a whole grid, from a few pieces, and `exact_table`
for a few splits, exactly. All that is derived from it is derived in one way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.call_planner.piece_costs import BYTES, ELEMENTS, IMAGES
from ooc_cudnn.call_planner.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Direction,
    Request,
)
from ooc_cudnn.memory.alignment import ALIGNMENT
from perfmodel.cached import cached_property

Values = NDArray[np.float64]
#: How large a piece may be.
LARGEST = {
    IMAGES: LARGEST_BATCH, ELEMENTS: LARGEST_PIECE_ELEMENTS, BYTES: LARGEST_PIECE_BYTES
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of splits: a row each, in arrays that are broadcast against each other.

    Attributes
    ----------
    request : Request
    counts : mapping from axis to array
        Ranges of each axis; and the sweeps.
    seen : mapping from operand to mapping from axis to array
        Regions of the operand that the ranges of an axis make.
    read_bytes : mapping from operand to array
        Of all its regions once: halo rows count in each piece they go to.
    apart : mapping from (way, operand) to array
        Seconds that a byte takes longer since pieces lie in rows apart.
    seconds, first_seconds, last_seconds : array
        Of computing all pieces, the first and the last one.
    launching : array
        Seconds of the host to launch all of them.
    blocks : mapping from name to array
        Of the largest piece: `PieceCost.blocks`.
    allowed : array
        Whether the call can be cut so.
    """

    request: Request
    counts: Mapping[str, Values]
    seen: Mapping[str, Mapping[str, Values]]
    read_bytes: Mapping[str, Values]
    apart: Mapping[tuple[Direction, str], Values]
    seconds: Values
    first_seconds: Values
    last_seconds: Values
    launching: Values
    blocks: Mapping[str, Values]
    allowed: Any = True

    def at(self, places: Sequence[NDArray[np.intp]]) -> Pieces:
        """The rows at some places of a grid: an index along each axis, for each row."""
        # many arrays are as long along an axis
        along = cache(lambda axis, extent: np.minimum(places[axis], extent - 1))

        def chosen(values: Any) -> Any:
            if isinstance(values, Mapping):
                return {name: chosen(each) for name, each in values.items()}
            held = np.asarray(values)
            own = enumerate(held.shape, len(places) - held.ndim)
            return held[tuple([along(axis, extent) for axis, extent in own])]

        columns = (each.name for each in fields(self) if each.name != "request")
        return replace(self, **{name: chosen(getattr(self, name)) for name in columns})

    @cached_property
    def legal(self) -> NDArray[np.bool_]:
        """Legality of the cut: the call can be cut so, into pieces that are computed reliably."""
        found: NDArray[np.bool_] = np.asarray(self.allowed)
        for name, most in LARGEST.items():
            found = found & (self.blocks[name] <= most)
        return found

    @cached_property
    def number(self) -> Values:
        """Pieces of all sweeps."""
        found: Values = product(self.counts.values())
        return found

    @cached_property
    def distinct(self) -> dict[str, Values]:
        """Number of different regions of each operand that the pieces need."""
        return {name: product(seen.values()) for name, seen in self.seen.items()}

    @cached_property
    def moved(self) -> dict[str, Any]:
        """True where an operand is brought to a slot, since it is not computed on where it lies.

        For cuDNN only what is packed is: it is slow, and beyond 2**31 elements wrong, on pieces
        whose rows or channels are strided. Those are brought to a slot by a copy on the device.
        """
        operands = self.request.chain.operands
        found: dict[str, Any] = dict.fromkeys(operands, True)
        for name, packed in self.request.computed_on_in_place.items():
            found[name] = product(self.counts[axis] for axis in operands[name].axes - packed) > 1
        return found

    @cached_property
    def slot_bytes(self) -> dict[str, Values]:
        """Bytes of a slot of each operand in the arena; nothing where it needs none."""
        operands = self.request.chain.operands
        return {name: self._aligned(self.blocks[name]) * self.moved[name] for name in operands}

    @cached_property
    def scratch_bytes(self) -> dict[str, Values]:
        """Bytes of each block that is no operand's."""
        beside = {*self.request.chain.operands, *LARGEST}
        return {n: self._aligned(each) for n, each in self.blocks.items() if n not in beside}

    @staticmethod
    def _aligned(count: Values) -> Values:
        found: Values = np.ceil(count / ALIGNMENT) * ALIGNMENT
        return found


def product(values: Iterable[Any]) -> Any:
    """The product of arrays."""
    return math.prod(values, start=np.ones(()))
