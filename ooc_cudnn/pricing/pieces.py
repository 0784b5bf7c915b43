"""The pieces of many splits, as a table of arrays: what they are, whatever the loops around them.

Two builders fill such a table: `lines` for a whole grid, from a few pieces, and `classes` for a few
splits, exactly. All that is derived from it is derived in one way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ooc_cudnn.memory.alignment import ALIGNMENT
from ooc_cudnn.operations.splittable import AXES, SWEEP
from ooc_cudnn.pricing.axes import Axes
from ooc_cudnn.pricing.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Direction,
    Request,
)
from perfmodel.cached import cached_property

Values = NDArray[np.float64]
#: Entries of `Pieces.blocks` that are no blocks.
ELEMENTS, BYTES = "largest elements", "largest bytes"


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
        Bytes of each block of memory of the largest piece, slots of operands among them; and the
        elements and bytes of the largest buffer.
    legal : array
        Whether the call can be cut so, into pieces that are not too large.
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
    legal: NDArray[np.bool_]

    @cached_property
    def number(self) -> Values:
        """Pieces of all sweeps."""
        found: Values = product(self.counts.values())
        return found

    @cached_property
    def distinct(self) -> dict[str, Values]:
        """How many different regions of each operand the pieces need."""
        return {name: product(seen.values()) for name, seen in self.seen.items()}

    @cached_property
    def moved(self) -> dict[str, Any]:
        """Where an operand is brought to a slot, since it is not computed on where it lies.

        Only whole images are: cuDNN is slow, and beyond 2**31 elements wrong, on pieces whose rows
        or channels are strided, so those are brought to a slot by a copy on the device.
        """
        operands = self.request.chain.operands
        found: dict[str, Any] = dict.fromkeys(operands, True)
        for name, may_cut_n in self.request.computed_on_in_place.items():
            axes = operands[name].axes - ({"n"} if may_cut_n else set())
            found[name] = product(self.counts[axis] for axis in axes) > 1
        return found

    @cached_property
    def slot_bytes(self) -> dict[str, Values]:
        """Of each operand, as slots lie in the arena; nothing where it needs none."""
        operands = self.request.chain.operands
        return {name: self._aligned(self.blocks[name]) * self.moved[name] for name in operands}

    @cached_property
    def scratch_bytes(self) -> dict[str, Values]:
        """Of each block that is no operand's."""
        beside = set(self.request.chain.operands) | {ELEMENTS, BYTES}
        return {n: self._aligned(each) for n, each in self.blocks.items() if n not in beside}

    @staticmethod
    def _aligned(count: Values) -> Values:
        found: Values = np.ceil(count / ALIGNMENT) * ALIGNMENT
        return found


def along_axes(axes: Axes, sizes: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """The part of a table that is known of each axis by itself: counts and regions seen.

    Parameters
    ----------
    sizes : mapping from axis to array of int
        Piece sizes, in arrays that are broadcast against each other.
    """
    call = axes.call

    def each(axis: str, of: Any) -> Values:
        return np.array([of(int(size)) for size in sizes[axis].flat], float).reshape(
            sizes[axis].shape
        )

    counts = {axis: each(axis, lambda size, axis=axis: axes.times(axis, size)) for axis in AXES}
    counts[SWEEP] = np.ones_like(counts["n"]) * call.sweeps
    seen = {
        name: {
            axis: each(axis, lambda size, name=name, axis=axis: axes.seen(name, axis, size))
            for axis in operand.axes
        }
        for name, operand in call.operands.items()
    }
    return {"request": axes.request, "counts": counts, "seen": seen}


def small_enough(axes: Axes, images: Any, blocks: Mapping[str, Values]) -> NDArray[np.bool_]:
    """Whether no piece is too large to be computed reliably, whatever the memory."""
    batch = np.minimum(images, axes.call.extents.n) <= LARGEST_BATCH
    found: NDArray[np.bool_] = batch & (blocks[ELEMENTS] <= LARGEST_PIECE_ELEMENTS)
    return found & (blocks[BYTES] <= LARGEST_PIECE_BYTES)


def product(values: Iterable[Any]) -> Any:
    """The product of arrays."""
    return math.prod(values, start=np.ones(()))
