"""The work that the planner may take for a step: counted, so that plans do not hang on a clock.

All is counted in phases, whatever it is spent in: what takes as long as to lower and replay one
phase is one. Nothing that an earlier plan may have left in memory makes work less.
"""

from __future__ import annotations

#: Of phases that are lowered and replayed a core makes so many a second, where nothing is cut.
PHASES_A_SECOND = 2_600
#: The rematerialization search counts bytes of tensors so often in the time of one phase.
COUNTED_A_PHASE = 400
#: As shares of lowering a phase: to plan what it works in, with all memory; to rewrite it; to price
#: it and the copies beside it; to begin a rematerialization search of it.
WORKING, REWRITTEN, BOUNDED, BEGUN = 1.0, 0.1, 0.02, 0.2
#: While there is no plan, or a slow one, so many times the budget may be spent.
OVERDRAWN = 2


class SearchBudget:
    """Work that a search may take, in phases, and what it took so far.

    Parameters
    ----------
    seconds : float
        What it may take on a core that lowers `PHASES_A_SECOND`. On each host the search ends
        after the same work, whatever time that took there: so plans are the same.
    needs_plan : bool
        Whether more may be taken until there is a plan, however much that is.

    Attributes
    ----------
    spent : float
        Phases so far.

    Examples
    --------
    >>> budget = SearchBudget(seconds=1.0)
    >>> budget.lower(2300)
    >>> budget.count(times=100, tensors=1200)
    >>> budget.spent, budget.is_spent
    (2600.0, True)
    """

    def __init__(self, seconds: float, *, needs_plan: bool = False) -> None:
        self._most, self.spent = seconds * PHASES_A_SECOND, 0.0
        self._needs_plan = needs_plan

    def lower(self, phases: float) -> None:
        """Take account of so many phases that are lowered, or of work that is as much."""
        self.spent += phases

    def count(self, times: int, tensors: int) -> None:
        """Take account of the bytes of so many tensors, counted so many times."""
        self.spent += times * tensors / COUNTED_A_PHASE

    @property
    def is_spent(self) -> bool:
        """True if no more may be taken."""
        return self.spent >= self._most

    @property
    def is_overdrawn(self) -> bool:
        """True if no more may be taken where there is a slow plan, or none so far."""
        return self.spent >= OVERDRAWN * self._most

    @property
    def gives_up(self) -> bool:
        """True if no more may be taken, though there is no plan so far."""
        return self.is_overdrawn and not self._needs_plan


#: For searches that end by themselves.
UNLIMITED = SearchBudget(float("inf"))
