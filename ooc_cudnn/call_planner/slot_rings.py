"""Rings of slots: which fit the memory, and how often regions are copied in through them.

A ring that holds all regions that an inner part of the loops goes through finds them there when it
goes through them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.call_planner.loop_orders import LoopOrder
from ooc_cudnn.call_planner.pieces import Pieces, Values, product
from ooc_cudnn.call_planner.plan import DEEPEST
from ooc_cudnn.operations.core.call import SWEEP

#: Slots of the rings of what flows by.
DEPTHS = (1, 2, DEEPEST)


class Rings(NamedTuple):
    """Rings of some splits: slots of what flows by, whether parameters are kept whole, bytes.

    No slots where nothing fits.
    """

    depth: Values
    whole: Any
    slots: dict[str, Values]
    memory_bytes: Values


def fill_rings(pieces: Pieces, depth: Any, whole: Any) -> Rings:
    """Give every operand its slots: so many at most, a parameter all if they are kept whole."""
    call, slots = pieces.request.chain, dict[str, Values]()
    memory = sum(pieces.scratch_bytes.values(), np.zeros(()))
    for name in call.operands:
        distinct, most = pieces.distinct[name], depth
        if name in call.streamed:
            # of what only one of two sweeps touches, no more than both copies and compute use
            if call.sweeps > 1 and call.sweeps_of(name) == 1:
                most = np.minimum(depth, float(DEPTHS[-1]))
        else:
            most = np.where(whole, distinct, depth)
        slots[name] = np.minimum(distinct, most) * pieces.moved[name]
        memory = memory + slots[name] * pieces.slot_bytes[name]
    return Rings(np.asarray(depth, float), whole, slots, memory)


def block_pieces(pieces: Pieces, order: LoopOrder) -> Any:
    """Pieces that the first sweep goes through before the second one starts; else 1."""
    inside = order[order.index(SWEEP) + 1 :] if SWEEP in order else ()
    return product(pieces.counts[axis] for axis in inside)


def candidate_rings(pieces: Pieces, order: LoopOrder, limit_bytes: int) -> Iterator[Rings]:
    """Rings that no others beat within a limit: the deepest that fit, of each kind.

    More slots are never slower, with parameters whole or in a ring. With two sweeps, rings that
    hold all that the first one saw are a kind of their own: results that all wait for the second
    sweep leave later than those that it makes from what it loads again.
    """
    call = pieces.request.chain
    kinds: list[tuple[Any, ...]] = [DEPTHS]
    if call.sweeps > 1:
        block = block_pieces(pieces, order)
        kinds.append((block, block + 1, 2 * block))
    parameters = set(call.operands) - set(call.streamed)
    matters = any(np.any(pieces.distinct[name] > 1) for name in parameters)
    for depths in kinds:
        for whole in (True, False)[: 1 + matters]:
            deepest: Any = 0.0
            for depth in depths:
                fits = fill_rings(pieces, depth, whole).memory_bytes <= limit_bytes
                deepest = np.where(fits, depth, deepest)
            yield fill_rings(pieces, deepest, whole)


class CopiesIn(NamedTuple):
    """Number of copies in of an operand's regions, and the waits of full rings.

    Attributes
    ----------
    number : array
        Copies in.
    passes : array
        How often the loops go through regions that stay in their slots meanwhile.
    waiting : array
        Share of those regions whose successors find no slot before the last of these passes.
    """

    number: Values
    passes: Values
    waiting: Values


def count_copies_in(pieces: Pieces, name: str, slots: Values, order: LoopOrder) -> CopiesIn:
    """Count the regions of an operand that are copied in.

    A loop that a region does not depend on loads again what does not fit the slots of all regions
    that the loops inside it need.
    """
    inner = number = pieces.distinct[name]
    passes, waiting = np.ones(()), np.zeros(())
    for axis in order:
        again = pieces.counts[axis] if axis != SWEEP else pieces.request.chain.sweeps_of(name)
        if axis in pieces.seen[name]:
            seen = pieces.seen[name][axis]
            inner, again = inner / seen, again / seen
        if np.max(again) <= 1:
            continue  # its ranges have regions of their own
        stays = inner <= slots
        number = number * np.where(stays, 1.0, again)
        outermost = stays & (again > 1) & (passes == 1)
        passes = np.where(outermost, again, passes)
        waiting = np.where(outermost, np.clip(2.0 - slots / inner, 0.0, 1.0), waiting)
    return CopiesIn(number, passes, waiting)
