"""Micro-batches of a step that pauses: forward of each once more, with its backward."""

from __future__ import annotations

from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of
from ooc_cudnn.network.passes.remat_for_backward import rematerializable
from ooc_cudnn.network.policies.policy import Decision, Policy, keep
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.micro_batch_counts import MICRO_BATCHES, has_room_for_shared
from ooc_cudnn.network.search.policy_planner import PolicyPlanner
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy


class TwoPartMicroBatches(Strategy):
    """All that can be is rematerialized, in more and more micro-batches, while that is faster."""

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True for steps that pause and whose micro-batches nobody asked for."""
        _, step, constraints, micro_batches = request
        return (
            super().is_worth_trying(request, incumbent)
            and step.pauses
            and micro_batches is None
            and has_room_for_shared(step, constraints)
        )

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose a plan for each count, until one is slower than one before it."""
        step, constraints = request.step, request.constraints
        policy = Policy(keep, lambda step, machine: (Decision(rematerializable(step)),))
        images, least = images_of(step), float("inf")
        try:
            for count in (count for count in MICRO_BATCHES if count <= images):
                planner = PolicyPlanner(
                    step, constraints, "remake", count, policy, budget=incumbent.budget
                )
                planned = yield from planner.candidates(incumbent)
                seconds = float("inf") if planned is None else planned.plan.seconds
                if seconds > least:
                    return
                least = min(least, seconds)
        except WholeBatchError:
            return
