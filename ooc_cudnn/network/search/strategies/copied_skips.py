"""Copied skips: what the search finds where concatenations are not there before they are read."""

from __future__ import annotations

from ooc_cudnn.network.passes.copy_skip_connections import copy_skip_connections, skipped_over
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes
from ooc_cudnn.network.search.remat_plans import propose_remat_plans
from ooc_cudnn.network.search.remat_solutions import ALL, INPUTS
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: An incumbent that computes so many times what computing in one piece takes is compared.
SLOW = 1.1


class CopiedSkips(Strategy):
    """Skip connections are copied into concatenations: they live as long, the rest does not."""

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if the incumbent is slow, and there are concatenations that get copies."""
        return (
            request.is_whole_batch and incumbent.is_slow(SLOW) and bool(skipped_over(request.step))
        )

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose what the search finds."""
        copied = skipped_over(request.step)
        step = apply_passes(copy_skip_connections(request.step, copied), frozenset(), 1, 1)
        yield from propose_remat_plans(
            step, request.constraints, incumbent, (INPUTS, ALL), copied_skips=copied
        )
