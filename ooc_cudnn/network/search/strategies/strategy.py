"""The protocol of strategies: when one is worth a try, and which candidates it proposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent

#: An incumbent that takes so many times the unlimited compute time waits, or recomputes: strategies
#: are tried.
WAITING = 1.25


class PlanRequest(NamedTuple):
    """A step to plan, and under what.

    Attributes
    ----------
    name : str
        The name of the plan.
    step : Step
        As the policy takes it.
    constraints : PlanConstraints
    micro_batches : int, optional
        How many are asked for; the planner's choice when None.
    """

    name: str
    step: Step
    constraints: PlanConstraints
    micro_batches: int | None = None

    @property
    def is_whole_batch(self) -> bool:
        """True if the batch may go through the step in one piece."""
        return self.micro_batches in (None, 1)


class Strategy(ABC):
    """Proposes candidates that may be faster than the incumbent."""

    def is_worth_trying(self, request: PlanRequest, incumbent: Incumbent) -> bool:
        """Return True where it applies and may help: by default if the incumbent is slow."""
        return incumbent.is_slow(WAITING)

    @abstractmethod
    def candidates(self, request: PlanRequest, incumbent: Incumbent) -> Candidates[None]:
        """Propose candidates in turn.

        A generator: it is sent the plan of each candidate, or None where that has none, before it
        proposes the next. `PlanInfeasibleError` is thrown into it where no plan is possible.
        """
