"""Rematerialize a share of what can be; of the rest offload what must leave."""

from __future__ import annotations

from functools import partial

from ooc_cudnn.network.policies.policy import Policy, keep, mixed
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.policy_planner import PolicyPlanner
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: Shares of the bytes that can be rematerialized, beside all and none.
SHARES_REMADE = (0.25, 0.5, 0.75, 0.9)


class RematerializeShares(Strategy):
    """Policy "mixed" with less rematerialized than it would take."""

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose the first decision that fits, share by share."""
        _, step, constraints, micro_batches = request
        for share in SHARES_REMADE:
            policy = Policy(keep, partial(mixed, share=share))
            planner = PolicyPlanner(
                step,
                constraints,
                "mixed",
                micro_batches or 1,
                policy,
                budget=incumbent.budget,
            )
            yield from planner.candidates(incumbent)
