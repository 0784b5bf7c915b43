"""Plans by one policy: its first decision for a step that fits, or one of those after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.cost.compute_bound import LeastComputing
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import PlannedStep, lower_step, most_held
from ooc_cudnn.network.lowering.summarize import How, predicted
from ooc_cudnn.network.passes.fuse_gradient_sums import summed
from ooc_cudnn.network.passes.inplace_gradients import in_place
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.rematerialize import remade
from ooc_cudnn.network.policies.offload import leaving
from ooc_cudnn.network.policies.policy import POLICIES, Policy
from ooc_cudnn.network.search.incumbent import Incumbent

#: Where tasks find too little room, further decisions are tried in so many steps at most.
MOST_STEPS = 16
#: Where the last decision does not fit, others are looked at: of the list, so many eighths.
LAST_EIGHTHS = (7, 6, 4)
#: Where so many numbers of micro-batches in turn make no plan faster, more of them hardly will.
MOST_IN_VAIN = 2
#: Of memory, what tensors may hold where what is too large is streamed: pieces want the rest.
SHARES_HELD = (1.0, 0.75, 0.5)
#: A smaller share is tried where that before took no more than so many times the fastest plan.
WORTH_LESS = 1.5


class PolicyPlanner:
    """What a policy decides for a step, in so many micro-batches.

    Parameters
    ----------
    policy : str
        What plans say that they are by.
    parts : int
        Micro-batches.
    made : Policy, optional
        That of this name when left out.
    ready : Step, optional
        The step, summed and in place, where that was made before.

    Attributes
    ----------
    fits : bool
        False where a plan was asked for, and the step did not fit by any decision.
    """

    def __init__(
        self,
        step: Step,
        terms: PlanConstraints,
        policy: str,
        parts: int,
        made: Policy | None = None,
        ready: Step | None = None,
    ) -> None:
        self.policy, self.parts, self.made = policy, parts, made or POLICIES[policy]
        self.terms = replace(terms, synchronous=self.made.synchronous)
        self.decisions = self.made.decisions(step, terms.target.machine)
        self._step = in_place(summed(step)) if ready is None else ready
        self._known = dict[int, tuple[Step, LiveRanges]]()
        #: By what is remade: decisions on what leaves change nothing of it.
        self._rewritten = dict[frozenset[str], Step]()
        self._first = self._first_that_fits()
        self.fits = True

    def planned(self, name: str, fastest: Incumbent, *, share: float = 0.0) -> PlannedStep | None:
        """Plan the step; None where it does not fit as the policy has it.

        Returns None for decisions that were planned before or cannot beat the incumbent. With a
        share of memory that tensors may hold, what is too large for the last decision is streamed.
        """
        at, last = self._first, len(self.decisions) - 1
        room_bytes = self.terms.target.room_bytes
        may_stream, share = share > 0, share or 1.0
        while True:
            rewritten, stays = self._as_decided(at)
            if at < last and not fastest.has_room(rewritten):
                at = self._after(at)
                continue
            fits = most_held(rewritten, stays) <= share * room_bytes
            # what fits in a share of memory is placed as in all of it
            tried = self.parts, self.decisions[at], self.made.residing, 1.0 if fits else share
            if tried in fastest.tried or not fastest.can_beat_incumbent(rewritten, stays):
                return None
            placed = lower_step(
                name,
                rewritten,
                stays,
                self.terms,
                may_stream=may_stream and at == last,
                share=share,
                is_worth=fastest.can_beat_incumbent,
            )
            if placed is not None:
                fastest.tried.add(tried)
                how = How(self.parts, remade=tuple(sorted(self.decisions[at].remade)))
                figures = predicted(name, self.policy, rewritten, placed, how, self.terms)
                return PlannedStep(figures, rewritten, placed)
            if at == last:
                self.fits = may_stream  # with that there are only plans that are not worth it
                return None
            at = self._after(at)  # what tasks need beside the tensors was not counted

    def _after(self, at: int) -> int:
        """A later decision, which takes less memory."""
        return min(at + max(1, len(self.decisions) // MOST_STEPS), len(self.decisions) - 1)

    def _as_decided(self, at: int) -> tuple[Step, LiveRanges]:
        """The step, with what is remade; and where its tensors are."""
        if at not in self._known:
            decision = self.decisions[at]
            rewritten = self._rewritten.get(decision.remade)
            if rewritten is None:
                rewritten = split_into_microbatches(remade(self._step, decision.remade), self.parts)
                self._rewritten[decision.remade] = rewritten
            if decision.offloaded:
                stays = leaving(rewritten, decision.offloaded)
            else:
                stays = self.made.residing(rewritten)
            self._known[at] = rewritten, stays
        return self._known[at]

    def _first_that_fits(self) -> int:
        """The first decision whose tensors fit, by halving; the last one if none does.

        The last few may take more than those before: what all is made again from its beginning.
        """
        room_bytes = self.terms.target.room_bytes
        low, high = 0, len(self.decisions) - 1
        ends = dict.fromkeys((high, *(high * share // 8 for share in LAST_EIGHTHS)))
        fits = (at for at in ends if most_held(*self._as_decided(at)) <= room_bytes)
        last = next(fits, None)
        if last is None:
            return high
        high = last
        middle = 0  # where all fits, nothing else is looked at
        while low < high:
            if most_held(*self._as_decided(middle)) <= room_bytes:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low


class StandalonePolicy:
    """What a policy plans where it is asked for alone, but for what cannot be the fastest.

    So whoever compares these plans with others finds none that is slower than the policy.
    """

    def __init__(
        self, step: Step, ready: Step, terms: PlanConstraints, policy: str, least: LeastComputing
    ) -> None:
        self.policy, self._step, self._ready, self._terms = policy, step, ready, terms
        self._own = Incumbent(terms, step, least)
        self._in_vain, self._skipped = 0, False

    @property
    def has_ended(self) -> bool:
        """Whether it tries no more micro-batches: they make nothing faster, or not by enough."""
        return self._in_vain == MOST_IN_VAIN or self._own.is_enough()

    @property
    def fits_nowhere(self) -> bool:
        """Whether it streams what is too large, since it has no plan without that."""
        return self._own.best is None and not self._skipped

    def planned(self, name: str, parts: int, fastest: Incumbent) -> PlannedStep | None:
        """Plan in so many micro-batches, where that may be faster than others."""
        if self.has_ended:
            return None
        deciding = PolicyPlanner(self._step, self._terms, self.policy, parts, ready=self._ready)
        made = deciding.planned(name, fastest)
        is_skipped = made is None and deciding.fits
        self._skipped = self._skipped or is_skipped
        is_faster = self._own.compare(filter(None, [made])) or is_skipped  # as far as is known
        self._in_vain = 0 if self._own.best is None or is_faster else self._in_vain + 1
        return made

    def streamed(self, name: str, parts: int, fastest: Incumbent) -> Iterator[PlannedStep]:
        """Plans in which what is too large is streamed, call by call."""
        deciding = PolicyPlanner(self._step, self._terms, self.policy, parts, ready=self._ready)
        for share in SHARES_HELD:
            try:
                made = deciding.planned(name, fastest, share=share)
            except PlanInfeasibleError:
                if fastest.best is None and fastest.least is None:
                    raise
                continue
            if made is None:
                break  # with less memory it is worth it even less
            yield made
            self._own.take(made)
            if not self._own.is_near(made, WORTH_LESS):
                break
