"""The incumbent: the fastest plan so far of those that host memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from typing import TypeVar

from ooc_cudnn.activity import say
from ooc_cudnn.errors import HostOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.network.cost.compute_bound import ComputeBound
from ooc_cudnn.network.cost.overlap_bound import least_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.search.candidate import Candidate, lower_and_replay
from ooc_cudnn.network.search.host_budget import least_on_host
from ooc_cudnn.network.search.search_budget import BOUNDED, REWRITTEN, UNLIMITED, SearchBudget

#: Plans that take no more than so many times the fastest are made again with time to copy: with
#: memory set aside, so that copies begin earlier. One of them may be the fastest then.
NEAR = 1.05
#: A plan is made with time to copy where the least that it takes is by this share below the
#: fastest: replays take some thousandths longer than that.
WORTH_TIME = 0.003
#: So many phases of plans that are compared are worth each second that a faster plan may save, for
#: a step is run often.
WORK_A_SECOND = 1_000_000
#: A plan that takes so many times the unlimited compute time is slow.
SLOW = 1.5
#: As many plans as a strategy has, whatever work they are.
ALL_PLANS = float("inf")

R = TypeVar("R")
#: A generator of candidates: it is sent the plan of each, or None where that has none.
Candidates = Generator[Candidate, LoweredStep | None, R]


class Incumbent:
    """The fastest plan so far of those that fit.

    Attributes
    ----------
    room : Room, optional
        Pinned memory that may be had; None for any.
    tried : set
        Keys of candidates that were lowered, so that none is lowered twice.
    in_one_piece : float
        Seconds of computing the step in one piece, which no plan is below; 0 without a step.
    best : LoweredStep, optional
    least : NetworkPlan, optional
        Of those that did not fit, the one that wants least.
    near : list
        Plans that were not made with time to copy so far, and take little longer than the fastest
        of these.
    untimed : float
        Seconds of that fastest one.
    work : int
        Phases of all plans that were compared.
    budget : SearchBudget
        What all that was tried took; unlimited when left out.
    skips : bool
        Whether steps are passed over that host memory surely has no room for. Else their plans
        are made, and say how much they would take there.
    is_short : bool
        Whether host memory had no room for some step.
    tells : bool
        Whether the line of what goes on has the fastest plan so far.
    """

    def __init__(
        self,
        constraints: PlanConstraints,
        step: Step | None = None,
        least: ComputeBound | None = None,
        budget: SearchBudget | None = None,
    ) -> None:
        self.room, self._constraints = constraints.host, constraints
        self.skips = self.is_short = False
        self._asked: tuple[Step, bool] | None = None
        self.on_device = constraints.on_device
        #: It may be shared by several, for it knows what it was asked before.
        self.computing = ComputeBound(constraints) if least is None else least
        #: Plans have their maps in one of these, that of the constraints most likely.
        self._orders = tuple(dict.fromkeys((constraints.order, *constraints.target.layouts)))
        self.in_one_piece = (
            min(self.computing.seconds(step, order) for order in self._orders) if step else 0.0
        )
        self.best: LoweredStep | None = None
        self.least: NetworkPlan | None = None
        self.tried = set[Hashable]()
        self.near, self.untimed = list[LoweredStep](), float("inf")
        self.tells = True
        self.work, self.budget = 0, budget or UNLIMITED

    @property
    def ends(self) -> bool:
        """True if there is a plan, and the budget is spent: overdrawn where the plan is slow."""
        if self.best is None:
            return False
        return self.budget.is_overdrawn if self.is_slow(SLOW) else self.budget.is_spent

    @property
    def is_over(self) -> bool:
        """True if no more is tried but to stream: the search ends, or gave up without a plan."""
        return self.ends or (self.best is None and self.budget.gives_up)

    def is_enough(self) -> bool:
        """True if planning took as much work as a faster plan may be worth.

        That is what the fastest so far waits, or computes longer than in one piece. Never more than
        the budget; it may be overdrawn for a first plan.
        """
        if self.best is None:
            return self.budget.gives_up
        saved = max(self.best.plan.seconds - self.in_one_piece, 0.0)
        return self.ends or self.work >= saved * WORK_A_SECOND

    def waits(self, times: float) -> bool:
        """True if there is no incumbent or it takes `times` its own computing."""
        return self.best is None or self.best.plan.seconds > times * self.best.plan.compute_seconds

    def is_slow(self, times: float) -> bool:
        """True if there is no incumbent or it takes `times` the unlimited compute time."""
        return self.best is None or self.best.plan.seconds > times * self.in_one_piece

    def can_beat_incumbent(self, step: Step, live_ranges: LiveRanges | None = None) -> bool:
        """True if a step may beat the incumbent by a lower bound, with these live ranges if given.

        No replay takes less than computing in one piece, nor less than that with these copies
        beside it. But with time to copy it may wait for fewer of them. None may where all ends.
        """
        if self.ends:
            return False
        self.budget.lower(BOUNDED * len(step.phases))
        if live_ranges is not None and self.skips and not self.has_room(step):
            return False
        if self.best is None:
            return True
        most = self.best.plan.seconds
        return any(
            self.computing.seconds(step, order) < most
            and (live_ranges is None or self._may_be_in(order, step, live_ranges))
            for order in self._orders
        )

    def _may_be_in(self, order: str, step: Step, live_ranges: LiveRanges) -> bool:
        assert self.best is not None
        machine, most = self._constraints.target.machine, self.best.plan.seconds
        seconds = self.computing.of_phases(step, order)
        least = least_seconds(step, live_ranges, machine, seconds, self.on_device)
        return least.seconds < most or self.is_worth_time(least.unwaited)

    def is_worth_time(self, least: float) -> bool:
        """True if a plan that takes so many seconds at the least is worth time to copy."""
        return self.best is None or least < (1 - WORTH_TIME) * self.best.plan.seconds

    def has_room(self, step: Step) -> bool:
        """True if host memory may have room for what a step keeps there."""
        if self.room is None:
            return True
        if self._asked is None or self._asked[0] is not step:
            fits = least_on_host(step, self._constraints) <= self.room.available_bytes
            self._asked, self.is_short = (step, fits), self.is_short or not fits
        return self._asked[1]

    def fits(self, plan: NetworkPlan) -> bool:
        """True if host memory has room for what a plan keeps there."""
        return self.room is None or plan.host_bytes <= self.room.available_bytes

    def take(self, planned: LoweredStep | None) -> bool:
        """Keep a plan if it is the fastest so far, whatever work it was; return whether it is."""
        if planned is None:
            return False
        if not self.fits(planned.plan):
            self.is_short = True
            if self.least is None or planned.plan.host_bytes < self.least.host_bytes:
                self.least = planned.plan
            return False
        seconds = planned.plan.seconds
        self.untimed = min(self.untimed, seconds)
        if seconds <= NEAR * self.untimed:
            self.near.append(planned)
        if self.best is not None and seconds >= self.best.plan.seconds:
            return False
        self.best = planned
        if self.tells and self.in_one_piece:
            say(f"best so far {seconds / self.in_one_piece:.2f} times all kept")
        return True

    def take_counted(self, planned: LoweredStep | None) -> bool:
        """Take a plan, and count its work."""
        self.work += 0 if planned is None else len(planned.step.phases)
        return self.take(planned)

    def offer(self, name: str, candidate: Candidate) -> LoweredStep | None:
        """Lower a candidate, replay its program, keep the plan if it is the fastest so far.

        Returns
        -------
        LoweredStep or None
            None where the candidate has no room, or cannot beat the incumbent.

        Raises
        ------
        PlanInfeasibleError
            If some phase does not fit by itself.
        """
        planned = lower_and_replay(name, candidate, self.can_beat_incumbent, self.budget.lower)
        if planned is not None:
            if candidate.key is not None:
                self.tried.add(candidate.key)
            self.take(planned)
        return planned

    def explore(self, name: str, candidates: Candidates[object], *, free_plans: float = 0) -> bool:
        """Offer candidates while that is worth the work; return whether one was the fastest then.

        Parameters
        ----------
        name : str
            The name of the plans.
        candidates : generator of Candidate
            Sent the plan of each; `PlanInfeasibleError` is thrown into it.
        free_plans : float
            How many plans are made whatever was compared before, and count as no work.
        """
        is_faster = False
        proceed: Callable[[], Candidate] = partial(next, candidates)
        while free_plans > 0 or not self.is_enough():
            try:
                candidate = proceed()
            except StopIteration:
                break
            self.budget.lower(REWRITTEN * len(candidate.step.phases))
            try:
                planned = self.offer(name, candidate)
            except PlanInfeasibleError as error:
                proceed = partial(candidates.throw, error)
                continue
            proceed = partial(candidates.send, planned)
            if planned is None:
                continue
            is_faster = is_faster or planned is self.best
            if free_plans > 0:
                free_plans -= 1
            else:
                self.work += len(planned.step.phases)
        return is_faster

    def is_near(self, planned: LoweredStep | None, times: float) -> bool:
        """True if `planned` exists and is within `times` of the incumbent."""
        if planned is None or self.best is None:
            return planned is not None
        return planned.plan.seconds <= times * self.best.plan.seconds

    def found(self) -> LoweredStep:
        """Return the fastest plan.

        Raises
        ------
        HostOutOfMemoryError
            If host memory has room for none, with what the least of them wants.
        """
        if self.best is not None:
            return self.best
        assert self.room is not None
        assert self.least is not None
        raise HostOutOfMemoryError(
            requested_bytes=self.least.host_bytes,
            available_bytes=self.room.available_bytes,
            limit_bytes=self.room.limit_bytes,
            held_bytes=self.room.held_bytes,
            purpose=f"what {self.least.name} keeps on the host (less with a larger memory_limit)",
        )
