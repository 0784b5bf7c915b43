"""Which rings the splits of a grid are worth trying with: `Counted.depths`, for all of them."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.operations.splittable import SWEEP
from ooc_cudnn.pipeline.counted import RING_DEPTHS
from ooc_cudnn.pipeline.grid import ONE, Grid, Mask, product
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.piece_model import Values
from perfmodel.cached import cached_property


class GridRings:
    """Rings that fit a memory limit."""

    def __init__(self, grid: Grid, limit_bytes: int) -> None:
        self.grid, self.call, self.limit_bytes = grid, grid.call, limit_bytes

    def slots(self, name: str, depth: Values | float, whole: Mask | bool) -> Values:
        """Slots of an operand in rings of some depth: `rings.Need`."""
        distinct, call = self.grid.distinct[name], self.call
        if name not in call.streamed:
            if whole is True:
                return distinct
            return np.where(whole, distinct, np.minimum(distinct, depth))
        if call.sweeps > 1 and call.sweeps_of(name) == 1:
            depth = np.minimum(depth, float(RING_DEPTHS[0]))
        return np.minimum(distinct, depth)

    def _fits(self, depth: Values | float, whole: bool) -> Mask:
        """Which splits fit with such rings."""
        memory = self._whole_bytes if whole else self.grid.scratch_bytes
        for name, each in self.grid.slot_bytes.items():
            if not whole or name in self.call.streamed:
                memory = memory + self.slots(name, depth, whole) * each
        fits: Mask = memory <= self.limit_bytes
        return fits

    @cached_property
    def _whole_bytes(self) -> Values:
        """Of scratch and of whole parameters."""
        grid, streamed = self.grid, self.call.streamed
        parameters = (name for name in self.call.operands if name not in streamed)
        held = (grid.slot_bytes[name] * grid.distinct[name] for name in parameters)
        return sum(held, grid.scratch_bytes)

    @cached_property
    def _parameters_matter(self) -> bool:
        """Whether it makes a difference if parameters are whole or in a ring."""
        parameters = set(self.call.operands) - set(self.call.streamed)
        return any(self.grid.distinct[name].max() > 1 for name in parameters)

    @cached_property
    def _deepest(self) -> tuple[Values, Mask | bool]:
        """The deepest rings that fit, with parameters whole and, if that matters, in a ring.

        No slots where none fit. More are never slower with one sweep.
        """
        ways = [self._deepest_of(whole=True)]
        if not self._parameters_matter:
            return ways[0], True
        ways.append(self._deepest_of(whole=False))
        if not (ways[1] > ways[0]).any():
            return ways[0], True
        return np.concatenate(ways), np.array([True, False]).reshape(-1, 1, 1, 1, 1)

    @property
    def some_fit(self) -> bool:
        """Whether any split fits; with two sweeps that is not known so soon."""
        return self.call.sweeps > 1 or bool(self._deepest[0].any())

    def _deepest_of(self, *, whole: bool) -> Values:
        """As many slots as fit: of rings of one slot, of two, and so on."""
        grid, streamed = self.grid, self.call.streamed
        memory, rings = self._whole_bytes if whole else grid.scratch_bytes, dict[str, Values]()
        for name, each in grid.slot_bytes.items():
            if whole and name not in streamed:
                continue
            memory = memory + each
            if grid.distinct[name] is not ONE:
                rings[name] = each
        found: Values = np.zeros((1, *grid.shape))
        found += memory <= self.limit_bytes
        for depth in range(2, max(RING_DEPTHS) + 1):
            for name, each in rings.items():
                memory = memory + each * (grid.distinct[name] >= depth)
            found += memory <= self.limit_bytes
        return found

    def of(self, order: LoopOrder) -> tuple[Values, Mask | bool]:
        """Slots to try, and whether parameters are whole; no slots where nothing fits."""
        if self.call.sweeps == 1:
            return self._deepest
        block = self.block(order)
        # Where all that a first sweep saw stays on the device, more slots are never slower; and
        # where it is loaded again, neither.
        ways = [block, block + 1, 2 * block], [np.full_like(block, at) for at in RING_DEPTHS]
        tried = np.concatenate([*ways[0], *ways[1]])
        fits = whole = self._fits(tried, True)
        if self._parameters_matter:
            fits = fits | self._fits(tried, False)
        depths, kept = [], []
        for part in (slice(0, len(ways[0])), slice(len(ways[0]), None)):
            depth = np.where(fits[part], tried[part], 0.0).max(axis=0, keepdims=True)
            depths.append(depth)
            kept.append((whole[part] & (tried[part] == depth)).any(axis=0, keepdims=True))
        return np.concatenate(depths), np.concatenate(kept) if self._parameters_matter else True

    def block(self, order: LoopOrder) -> Values:
        """Pieces of one sweep before the next: `PieceClasses.block_pieces`."""
        inside = order[order.index(SWEEP) + 1 :] if SWEEP in order else ()
        return product([self.grid.counts[axis] for axis in inside])
