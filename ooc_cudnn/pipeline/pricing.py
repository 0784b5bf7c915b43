"""What a split costs: the search's view of a request.

The chain says which regions a piece needs and what is launched on it; the machine model says what
moving and computing them costs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ooc_cudnn.operations.splittable import AXES, SWEEP
from ooc_cudnn.pipeline.counted import Counted, Priced
from ooc_cudnn.pipeline.loop_orders import different_orders
from ooc_cudnn.pipeline.piece_model import Sizes
from ooc_cudnn.pipeline.promising import promising_splits
from ooc_cudnn.pipeline.request import LARGEST_BATCH, Request
from perfmodel import Price, Split, closed_form, default_candidates

__all__ = ["CANDIDATES", "Counted", "Priced", "Request", "SplitProblem"]

#: Piece sizes that are looked at on one axis, at most.
CANDIDATES = 24


class SplitProblem:
    """A request in one layout, as a `perfmodel.Problem`.

    Parameters
    ----------
    reserved_bytes : int
        Of the memory limit, what is not for pieces.
    at_most : int
        Piece sizes to look at on one axis.
    """

    def __init__(
        self, request: Request, layout: str, reserved_bytes: int, at_most: int = CANDIDATES
    ) -> None:
        self.request, self.chain, self.layout = request, request.chain, layout
        self.limit_bytes = request.memory_limit - reserved_bytes
        self.at_most = at_most
        self.priced: dict[Split, Priced] = {}
        self._promising: dict[int, tuple[tuple[float, Split], ...]] = {}

    @property
    def extents(self) -> Split:
        """Full sizes."""
        return self.chain.extents

    def candidates(self, axis: str) -> tuple[int, ...]:
        """Piece sizes worth trying on an axis."""
        extent = getattr(self.extents, axis)
        if not self.chain.may_cut(axis):
            return (extent,)
        largest = LARGEST_BATCH if axis == "n" else None
        return default_candidates(extent, self.at_most, largest)

    def price(self, split: Split) -> Price:
        """Seconds and memory of a split, in the best loop order and with the best rings that fit.

        Where nothing fits the limit, those of the order and the rings with the least memory.
        """
        if not self.chain.is_legal(split):
            return Price(0, 0.0, legal=False, reason="cX cannot be cut beside several groups")
        found = self.priced.get(split)
        if found is None:
            found = self.priced[split] = self._best(split)
        return found.price

    def promising(self, limit_bytes: int) -> tuple[tuple[float, Split], ...]:
        """The splits that are estimated to be fastest within a limit, best first."""
        if limit_bytes not in self._promising:
            found = promising_splits(self.request, self.layout, self.sizes, limit_bytes)
            self._promising[limit_bytes] = found
        return self._promising[limit_bytes]

    @property
    def sizes(self) -> Sizes:
        """The candidates of all axes."""
        return {axis: self.candidates(axis) for axis in AXES}

    def _best(self, split: Split) -> Priced:
        best: Priced | None = None
        for counted in self.counts(split):
            found = counted.best(self.limit_bytes)
            if best is None or self._rank(found) < self._rank(best):
                best = found
            if found.price.memory_bytes <= self.limit_bytes and counted.no_order_is_faster(found):
                break
        assert best is not None
        return best

    def counts(self, split: Split) -> Iterator[Counted]:
        """A split under every loop order that makes a difference; none where it is not legal."""
        if self.chain.is_legal(split):
            cuts = self.request.cuts
            counts = {axis: cuts.cut(axis, getattr(split, axis)).times for axis in AXES}
            counts[SWEEP] = self.chain.sweeps
            for order in different_orders(self.request.loop_orders, counts):
                yield self.counted(split, order)

    def _rank(self, priced: Priced) -> tuple[int, float]:
        """Bytes over the limit, then seconds; the last digits of sums say nothing."""
        over = max(priced.price.memory_bytes - self.limit_bytes, 0)
        return over, float(f"{priced.price.seconds:.9e}")

    def counted(self, split: Split, order: tuple[str, ...]) -> Counted:
        """A split under one loop order, counted once for all searches."""
        key = self.layout, split, order
        found = self.request.counted.get(key)
        if found is None:
            found = self.request.counted[key] = Counted(self.request, self.layout, split, order)
        return found

    def seconds(self, split: Split) -> float:
        """Predicted seconds of a split that was priced, its steps overlapped or one by one."""
        priced = self.priced[split]
        if self.request.overlap:
            return priced.price.seconds
        return closed_form(priced.cost, overlap=False)
