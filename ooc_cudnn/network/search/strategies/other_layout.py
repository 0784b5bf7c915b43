"""The other memory order, where slices of channels lie so narrow that the link crawls."""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.strategies.row_tiles import RowTiles
from ooc_cudnn.network.search.strategies.spill import Spill
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: The link crawls where copies take so many times as long as their bytes in one piece.
CRAWLING = 2.0
#: What streams, and may therefore copy slices of maps.
STREAMING: tuple[Strategy, ...] = (RowTiles(), Spill())


class OtherLayout(Strategy):
    """Row tiles and spilling once more, with maps in the order that computes more slowly.

    A step's memory order is the one in which computing takes least: channels-last, mostly. A part
    of a concatenation is a slice of channels, and one that is copied to or from the host is there
    as many rows as there are positions, of a few bytes each. Channels-first it is one row an image.
    """

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if the incumbent waits, for copies of narrow rows."""
        best = incumbent.best
        return (
            best is not None
            and super().is_worth_trying(request, incumbent)
            and crawls(best.plan, request.constraints)
        )

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose what the strategies that stream do, in each other order."""
        constraints = request.constraints
        for order in constraints.target.layouts:
            if order != constraints.order:
                other = request._replace(constraints=replace(constraints, order=order))
                for strategy in STREAMING:
                    yield from strategy.candidates(other, incumbent)


def crawls(plan: NetworkPlan, constraints: PlanConstraints) -> bool:
    """Return True if a plan's copies take much longer than their bytes do in one piece."""
    link = constraints.target.machine.transfer
    whole = link.copy_seconds("copy_in", "pinned", plan.bytes_in)
    whole += link.copy_seconds("copy_out", "pinned", plan.bytes_out)
    return plan.copy_in_seconds + plan.copy_out_seconds > CRAWLING * whole
