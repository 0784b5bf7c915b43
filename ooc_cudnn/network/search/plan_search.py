"""Plan search: policies, then strategies, against one incumbent."""

from __future__ import annotations

from contextlib import suppress

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import max_touched_bytes
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.search.incumbent import ALL_PLANS, Candidates, Incumbent
from ooc_cudnn.network.search.micro_batch_counts import micro_batches_of
from ooc_cudnn.network.search.policy_planner import MAX_FAILED_TRIES, StandalonePolicy
from ooc_cudnn.network.search.refine_prefetch import refine_prefetch
from ooc_cudnn.network.search.remat_plans import propose_remat_plans
from ooc_cudnn.network.search.remat_solutions import ALL, INPUTS
from ooc_cudnn.network.search.search_budget import REWRITTEN, SearchBudget
from ooc_cudnn.network.search.strategies import FIRST, STRATEGIES
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy

#: What `best` chooses from, in the order in which equals are taken; and beside them plans whose
#: events a search found (`SEARCHED`), which tell early what cannot be the fastest.
BEST_OF = ("keep", "remake", "checkpoint", "offload", "mixed")
#: And of other steps than those.
VDNN = ("vdnn_all", "vdnn_conv", "vdnn_dyn")
#: Where the fastest plan takes less than so many times its computing, nothing is streamed call by
#: call to compare with it: that only copies more.
WAITING_A_LITTLE = 1.05


class PlanSearch:
    """Plans of a step by one policy, or by all that `best` has; `incumbent` holds the fastest.

    Each method tries some more, in the order in which they stand here, while the budget is not
    spent. What has no plan then is streamed, so there is one in any case.

    Parameters
    ----------
    request : PlanRequest
        The step as the policy takes it.
    policy : str
    budget : SearchBudget
    """

    def __init__(self, request: PlanRequest, policy: str, budget: SearchBudget) -> None:
        self._request, self._is_best = request, policy == "best"
        self.incumbent = Incumbent(request.constraints, request.step, budget=budget)
        self.incumbent.skips = self._is_best and request.is_whole_batch  # as `HostMemory` does
        self._ready = share_gradient_memory(fuse_gradient_sums(request.step))
        policies = BEST_OF if self._is_best else (policy,)
        self._alone = [
            self._standalone(name, request.step, self._ready, request.constraints)
            for name in policies
        ]
        #: Micro-batches of what is streamed.
        self._parts = request.micro_batches or 1
        self._strategies = [*STRATEGIES]

    def _standalone(
        self, policy: str, step: Step, ready: Step, constraints: PlanConstraints
    ) -> StandalonePolicy:
        computing, budget = self.incumbent.computing, self.incumbent.budget
        return StandalonePolicy(step, ready, constraints, policy, computing, budget)

    def by_policies(self) -> None:
        """Try each policy, and for `best` the rematerialization search, in more micro-batches."""
        _, step, constraints, asked = self._request
        in_vain = 0
        for parts in micro_batches_of(step, asked, constraints):
            if self.incumbent.is_over:
                break
            taken = split_into_microbatches(self._ready, parts)
            self.incumbent.budget.lower(REWRITTEN * len(taken.phases))
            if not self.incumbent.can_beat_incumbent(taken):
                break  # nor may more micro-batches, which compute longer still
            if (
                self._is_best
                and max_touched_bytes(taken, constraints) > constraints.target.room_bytes
            ):
                continue  # no policy has what a phase touches there
            searches = self._is_best and in_vain < MAX_FAILED_TRIES
            if not searches and all(policy.has_ended for policy in self._alone):
                break
            is_faster = self._in_parts(parts, searches=searches)
            in_vain = 0 if self.incumbent.best is None or is_faster else in_vain + 1

    def _in_parts(self, parts: int, *, searches: bool) -> bool:
        """Try policies in so many micro-batches; return whether a plan was the fastest then."""
        is_faster = False
        for policy in self._alone:
            if self.incumbent.is_over:
                break
            candidates = policy.candidates(parts, self.incumbent)
            is_faster = self._explore_all(candidates) or is_faster
            if not policy.has_plan and policy.policy == "keep" and searches:
                is_faster = self._by_search(parts) or is_faster
                if parts == 1 and self.incumbent.best is None:
                    # they are hardly beaten, and tell early what is not worth a plan
                    for each in FIRST:
                        is_faster = self._try(each) or is_faster
        return is_faster

    def _by_search(self, parts: int) -> bool:
        name, _, constraints, _ = self._request
        kinds = (INPUTS, ALL) if parts == 1 else (INPUTS,)
        candidates = propose_remat_plans(
            self._ready, constraints, self.incumbent, kinds, parts=parts
        )
        is_faster = self.incumbent.explore(name, candidates)
        if parts == 1:  # the faster it is, the fewer others may be
            self._refine_prefetch()
        return is_faster

    def try_strategies(self) -> None:
        """Try the strategies in turn, each where it may beat the incumbent."""
        self._refine_prefetch()
        self._stream_first()
        for strategy in [*self._strategies]:
            self._try(strategy)

    def _stream_first(self) -> None:
        """Stream by policy "offload" where there is no plan yet.

        It leaves least to drop from the device, so it is soon planned, and then tells of others
        early that they are not worth a plan.
        """
        for policy in self._alone:
            if policy.policy == "offload" and self.incumbent.best is None:
                candidates = policy.streaming(self._parts, self.incumbent)
                # no plan is an error where nothing else has one, either
                with suppress(StopIteration, PlanInfeasibleError):
                    planned = self.incumbent.offer(self._request.name, next(candidates))
                    candidates.send(planned)  # `by_streaming` goes on behind it

    def _try(self, strategy: Strategy) -> bool:
        """Try a strategy, once; return whether a plan was the fastest then."""
        if strategy not in self._strategies or not strategy.is_worth_trying(
            self._request, self.incumbent
        ):
            return False
        self._strategies.remove(strategy)
        candidates = strategy.candidates(self._request, self.incumbent)
        return self.incumbent.explore(self._request.name, candidates)

    def by_vdnn(self, step: Step, constraints: PlanConstraints) -> None:
        """Try vDNN's policies, which take another step."""
        if self.incumbent.is_over:
            return
        ready = share_gradient_memory(fuse_gradient_sums(step))
        copying = [self._standalone(name, step, ready, constraints) for name in VDNN]
        for policy in copying:
            self._explore_all(policy.candidates(self._parts, self.incumbent))
        self._alone += copying

    def by_streaming(self) -> None:
        """Stream what is too large, call by call: for policies that have no plan without that."""
        incumbent = self.incumbent
        # "offload" leaves least to drop from the device, one tensor after the other; and it may be
        # faster than what a search found that was ended
        is_late = incumbent.budget.is_spent
        for policy in sorted(self._alone, key=lambda each: is_late and each.policy != "offload"):
            if policy.fits_nowhere and (policy.policy == "offload" or not incumbent.ends):
                self._explore_all(policy.streaming(self._parts, incumbent))
        if incumbent.best is None and incumbent.least is None and incumbent.skips:
            incumbent.skips = False  # all was passed over: what is streamed says what it wants
            for policy in self._alone:
                self._explore_all(policy.streaming(self._parts, incumbent))

    def by_streaming_for_comparison(self) -> None:
        """Stream by every policy, where the incumbent waits for the link."""
        incumbent = self.incumbent
        if incumbent.best is not None and incumbent.waits(WAITING_A_LITTLE):
            for policy in self._alone:
                candidates = policy.streaming(self._parts, incumbent)
                incumbent.explore(self._request.name, candidates)
        self._refine_prefetch()

    def _explore_all(self, candidates: Candidates[None]) -> bool:
        """Offer all candidates, whatever work they are; return whether one was the fastest then."""
        return self.incumbent.explore(self._request.name, candidates, free_plans=ALL_PLANS)

    def _refine_prefetch(self) -> None:
        refine_prefetch(self._request.name, self._request.constraints, self.incumbent)
