"""Spilling within host memory: so much is rematerialized that it has room for what is left."""

from __future__ import annotations

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.lowering.lower import LoweredProgram, accept_any
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.host_budget import amounts, remat_to_fit, remat_to_least
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes, take_concatenations_apart
from ooc_cudnn.network.search.remat_plans import SEARCHED
from ooc_cudnn.network.search.strategies.strategy import PlanRequest, Strategy


class HostMemory(Strategy):
    """Less and less may live at once, on the device and the host together, until a plan fits.

    Where none does, and there is no incumbent, the plan that wants least.
    """

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True if host memory was too small for some step before."""
        return (
            super().is_worth_trying(request, incumbent)
            and request.is_whole_batch
            and incumbent.is_short
        )

    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose what the search finds for each amount that may live at once."""
        constraints = request.constraints
        step = apply_passes(take_concatenations_apart(request.step), frozenset(), 1, 1)
        assert constraints.host is not None
        available = constraints.host.available_bytes
        living_bytes = float(constraints.target.room_bytes + available)
        try:
            for nbytes in amounts(step, constraints):
                if nbytes > living_bytes:
                    continue
                events = remat_to_fit(step, constraints, nbytes, incumbent.budget)
                if events is None:
                    continue
                budget = _HostBudget(available)
                if (yield _spilling(step, events, constraints, budget)) is not None:
                    return
                living_bytes = nbytes - budget.beyond_bytes
            if incumbent.best is None:
                yield _spilling(step, remat_to_least(step, constraints), constraints)
        except PlanInfeasibleError:
            return  # an addition to what another part made takes more than all at once


class _HostBudget:
    """Accepts programs that keep no more on the host than is available.

    Attributes
    ----------
    beyond_bytes : int
        What the program kept beyond that; 0 if there was no program.
    """

    def __init__(self, available_bytes: int) -> None:
        self._available_bytes, self.beyond_bytes = available_bytes, 0

    def __call__(self, lowered: LoweredProgram) -> bool:
        self.beyond_bytes = max(lowered.program.host_bytes - self._available_bytes, 0)
        return self.beyond_bytes == 0


def _spilling(
    step: Step,
    events: tuple[RematEvent, ...],
    constraints: PlanConstraints,
    budget: _HostBudget | None = None,
) -> Candidate:
    """A candidate that spills; made in any case without a budget."""
    rewritten = fuse_chains(insert_remat_events(step, events))
    return Candidate(
        rewritten,
        POLICIES["keep"].live_ranges_of(rewritten),
        constraints,
        SEARCHED,
        RewriteSpec(apart=True, again=events),
        spill=True,
        is_worth=None if budget else accept_any,
        is_accepted=budget,
    )
