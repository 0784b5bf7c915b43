"""How often regions are copied in, and what copies wait for: `Reuse`, for all splits of a grid."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooc_cudnn.operations.splittable import SWEEP
from ooc_cudnn.pipeline.grid import ONE, Grid, Mask, product
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.piece_model import Values


class Gates(NamedTuple):
    """Where there is a `Gate`: its pieces, those of its block, and the regions of that."""

    here: Mask
    pieces: Values
    block_pieces: Values
    regions: Values


def loads(grid: Grid, name: str, slots: Values, order: LoopOrder) -> Values:
    """How many regions are copied in: `Reuse.loads`.

    A loop that a region does not depend on loads again what does not fit the slots of all
    regions that the loops inside it need.
    """
    inner = found = grid.distinct[name]
    for axis in order:
        if axis == SWEEP:
            again = grid.call.sweeps_of(name)
            if again > 1:
                found = found * np.where(inner > slots, float(again), 1.0)
            continue
        times, seen = grid.counts[axis], grid.seen[name][axis]
        if times is ONE:
            continue
        if seen is ONE:
            found = found * np.where(inner > slots, times, 1.0)
            continue
        inner = inner / seen
        if name in grid.partly_seen:
            found = found * np.where(inner > slots, times / seen, 1.0)
    return found


def gate(grid: Grid, name: str, slots: Values, order: LoopOrder) -> Gates | None:
    """`Reuse.gate` of every split; None where there is none."""
    seen = grid.seen[name]
    cut = [axis for axis in order if axis == SWEEP or grid.counts[axis] is not ONE]
    depends = [axis != SWEEP and seen[axis] is not ONE for axis in cut]
    if True not in depends:
        return None
    found: Gates | None = None
    for at in range(depends.index(True) + 1, len(cut)):
        inside = [axis for axis, needed in zip(cut[at:], depends[at:], strict=True) if needed]
        if depends[at] or not inside:
            continue
        regions = product(seen[axis] for axis in inside)
        times = _times(grid, name, cut[at])
        here = (regions > 1) & (regions <= slots) & (slots < grid.distinct[name]) & (times > 1)
        if not here.any():
            continue
        once = product(_times(grid, name, axis) for axis in cut[at + 1 :])
        last_use, left = ONE, once
        for axis, needed in zip(cut[at + 1 :], depends[at + 1 :], strict=True):
            left = left / _times(grid, name, axis)
            if not needed:
                last_use = last_use + (_times(grid, name, axis) - 1) * left
        values = (times - 2) * once + 2 * last_use, times * once, regions
        if found is None:
            found = Gates(here, *values)
        else:
            outer = zip(found[1:], values, strict=True)
            found = Gates(found.here | here, *(np.where(found.here, *pair) for pair in outer))
    return found


def _times(grid: Grid, name: str, axis: str) -> Values:
    """How often a loop goes round."""
    return ONE * grid.call.sweeps_of(name) if axis == SWEEP else grid.counts[axis]
