"""Plan candidates of one policy: its first decision that fits, or one of those after it."""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.cost.compute_bound import ComputeBound
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep, peak_live_bytes
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.remat_for_backward import rematerialize
from ooc_cudnn.network.policies.offload import offload_just_in_time
from ooc_cudnn.network.policies.policy import POLICIES, Policy
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.search_budget import REWRITTEN, UNLIMITED, SearchBudget

#: Where tasks find too little room, further decisions are tried in so many steps at most.
MOST_STEPS = 16
#: Where the last decision does not fit, others are looked at: of the list, so many eighths.
FINAL_EIGHTHS = (7, 6, 4)
#: Where so many numbers of micro-batches in turn make no plan faster, more of them hardly will.
MAX_FAILED_TRIES = 2
#: Of memory, what tensors may hold where what is too large is streamed: pieces want the rest.
SHARES_HELD = (1.0, 0.75, 0.5)
#: A smaller share is tried where that before took no more than so many times the fastest plan.
MAX_RATIO_TO_INCUMBENT = 1.5


class PolicyPlanner:
    """The decisions of a policy for a step, in so many micro-batches.

    Parameters
    ----------
    policy : str
        What plans say that they are by.
    parts : int
        Micro-batches.
    rule : Policy, optional
        That of this name when left out.
    ready : Step, optional
        The step, summed and in place, where that was made before.
    budget : SearchBudget, optional
        Takes account of what is rewritten.

    Attributes
    ----------
    fits : bool
        False where a plan was asked for, and the step did not fit by any decision.
    """

    def __init__(
        self,
        step: Step,
        constraints: PlanConstraints,
        policy: str,
        parts: int,
        rule: Policy | None = None,
        ready: Step | None = None,
        budget: SearchBudget = UNLIMITED,
    ) -> None:
        self._budget = budget
        self.policy, self.parts, self.rule = policy, parts, rule or POLICIES[policy]
        self.constraints = replace(constraints, synchronous=self.rule.synchronous)
        self.decisions = self.rule.decisions(step, constraints.target.machine)
        self._step = share_gradient_memory(fuse_gradient_sums(step)) if ready is None else ready
        self._known = dict[int, tuple[Step, LiveRanges]]()
        #: By what is rematerialized: decisions on what leaves change nothing of it.
        self._rewritten = dict[frozenset[str], Step]()
        self._first = self._first_that_fits()
        self.fits = True

    def candidates(
        self, incumbent: Incumbent, *, share: float = 0.0
    ) -> Candidates[LoweredStep | None]:
        """Propose decisions until one has a plan; return it.

        Nothing is proposed that was lowered before, or cannot beat the incumbent. With a share of
        memory that tensors may hold, what is too large for the last decision is streamed.
        """
        index, last = self._first, len(self.decisions) - 1
        room_bytes = self.constraints.target.room_bytes
        may_stream, share = share > 0, share or 1.0
        while True:
            rewritten, live_ranges = self._as_decided(index)
            if index < last and not incumbent.has_room(rewritten):
                index = self._after(index)
                continue
            fits = peak_live_bytes(rewritten, live_ranges) <= share * room_bytes
            # what fits in a share of memory is lowered as in all of it
            key = (
                self.parts,
                self.decisions[index],
                self.rule.live_ranges_of,
                1.0 if fits else share,
            )
            if key in incumbent.tried or not incumbent.can_beat_incumbent(rewritten, live_ranges):
                return None
            planned = yield Candidate(
                rewritten,
                live_ranges,
                self.constraints,
                self.policy,
                RewriteSpec(
                    self.parts, rematerialized=tuple(sorted(self.decisions[index].rematerialized))
                ),
                may_stream=may_stream and index == last,
                share=share,
                key=key,
            )
            if planned is not None:
                return planned
            if index == last:
                self.fits = may_stream  # with that there are only plans that are not worth it
                return None
            index = self._after(index)  # what tasks need beside the tensors was not counted

    def _after(self, index: int) -> int:
        """A later decision, which takes less memory."""
        return min(index + max(1, len(self.decisions) // MOST_STEPS), len(self.decisions) - 1)

    def _as_decided(self, index: int) -> tuple[Step, LiveRanges]:
        """The step as a decision rewrites it, and its live ranges."""
        if index not in self._known:
            decision = self.decisions[index]
            rewritten = self._rewritten.get(decision.rematerialized)
            if rewritten is None:
                rewritten = split_into_microbatches(
                    rematerialize(self._step, decision.rematerialized), self.parts
                )
                self._budget.lower(REWRITTEN * len(rewritten.phases))
                self._rewritten[decision.rematerialized] = rewritten
            if decision.offloaded:
                live_ranges = offload_just_in_time(rewritten, decision.offloaded)
            else:
                live_ranges = self.rule.live_ranges_of(rewritten)
            self._known[index] = rewritten, live_ranges
        return self._known[index]

    def _first_that_fits(self) -> int:
        """The first decision whose tensors fit, by halving; the last one if none does.

        The last few may take more than those before: what all is made again from its beginning.
        """
        room_bytes = self.constraints.target.room_bytes
        low, high = 0, len(self.decisions) - 1
        ends = dict.fromkeys((high, *(high * share // 8 for share in FINAL_EIGHTHS)))
        fits = (index for index in ends if peak_live_bytes(*self._as_decided(index)) <= room_bytes)
        last = next(fits, None)
        if last is None:
            return high
        high = last
        middle = 0  # where all fits, nothing else is looked at
        while low < high:
            if peak_live_bytes(*self._as_decided(middle)) <= room_bytes:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low


class StandalonePolicy:
    """The plans of a policy asked for alone, but for those that cannot be the fastest.

    So whoever compares these plans with others finds none that is slower than the policy.

    Attributes
    ----------
    has_plan : bool
        Whether the number of micro-batches that was tried last has a plan.
    """

    def __init__(
        self,
        step: Step,
        ready: Step,
        constraints: PlanConstraints,
        policy: str,
        least: ComputeBound,
        budget: SearchBudget,
    ) -> None:
        self.policy, self._step, self._ready = policy, step, ready
        self._constraints, self.has_plan, self._budget = constraints, False, budget
        self._own = Incumbent(constraints, step, least, budget)
        self._own.tells = False
        self._in_vain, self._skipped = 0, False
        #: Of `SHARES_HELD`, so many were tried: streaming is gone on with behind them.
        self._shares_tried = 0

    @property
    def has_ended(self) -> bool:
        """True if more micro-batches are not tried: they make nothing faster, or not by enough."""
        return self._in_vain == MAX_FAILED_TRIES or self._own.is_enough()

    @property
    def fits_nowhere(self) -> bool:
        """True if it streams what is too large, since it has no plan without that."""
        return self._shares_tried > 0 or (self._own.best is None and not self._skipped)

    def candidates(self, parts: int, incumbent: Incumbent) -> Candidates[None]:
        """Propose plans in so many micro-batches, where they can beat the incumbent."""
        self.has_plan = False
        if self.has_ended:
            return
        planner = self._planner(parts)
        planned = yield from planner.candidates(incumbent)
        self.has_plan = planned is not None
        is_skipped = planned is None and planner.fits
        self._skipped = self._skipped or is_skipped
        is_faster = self._own.take_counted(planned) or is_skipped  # as far as is known
        self._in_vain = 0 if self._own.best is None or is_faster else self._in_vain + 1

    def streaming(self, parts: int, incumbent: Incumbent) -> Candidates[None]:
        """Propose plans in which what is too large is streamed, call by call."""
        planner = self._planner(parts)
        for share in SHARES_HELD[self._shares_tried :]:
            try:
                planned = yield from planner.candidates(incumbent, share=share)
            except PlanInfeasibleError:
                if incumbent.best is None and incumbent.least is None:
                    raise
                self._shares_tried += 1
                continue
            if planned is None:
                break  # with less memory it is worth it even less
            self._shares_tried += 1
            self._own.take(planned)
            if not self._own.is_near(planned, MAX_RATIO_TO_INCUMBENT):
                break

    def _planner(self, parts: int) -> PolicyPlanner:
        return PolicyPlanner(
            self._step,
            self._constraints,
            self.policy,
            parts,
            ready=self._ready,
            budget=self._budget,
        )
