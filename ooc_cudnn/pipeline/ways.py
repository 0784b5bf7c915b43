"""The ways in which a grid is estimated all at once: loop orders, each with some rings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooc_cudnn.pipeline.piece_model import Values


class Way(NamedTuple):
    """What the splits of a grid are estimated in: loop orders, each with some rings, as first axis.

    `depths` are the slots of rings, `at_once` the pieces of a sweep before the next one; for each
    operand, the slots it has and how often it is loaded; and what copies in wait for slots.
    """

    depths: Values
    at_once: Values
    slots: dict[str, Values]
    loads: dict[str, Values]
    waiting: Values

    @classmethod
    def joined(cls, ways: list[Way]) -> Way:
        """Several as one."""
        if len(ways) == 1:
            return ways[0]
        rings = len(ways[0].depths)
        slots, loads = (
            {name: _stacked([each[name] for each in found], rings) for name in found[0]}
            for found in ([way.slots for way in ways], [way.loads for way in ways])
        )
        depths, at_once, waiting = (
            _stacked(found, rings)
            for found in (
                [way.depths for way in ways],
                [way.at_once for way in ways],
                [way.waiting for way in ways],
            )
        )
        return cls(depths, at_once, slots, loads, waiting)


def _stacked(parts: list[Values], rings: int) -> Values:
    """Arrays of so many rings one after the other; one that is the same in all stays itself."""
    if len(parts[0]) == 1 and all(part is parts[0] for part in parts):
        return parts[0]
    extents = zip(*(part.shape[1:] for part in parts), strict=True)
    found = np.empty((len(parts), rings, *map(max, extents)))
    for at, part in enumerate(parts):
        found[at] = part
    return found.reshape(-1, *found.shape[2:])
