"""Of plans that are compared, the fastest that host memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.network.placing import Placed
from ooc_cudnn.network.plan import NetworkPlan


class PlannedStep(NamedTuple):
    """A plan, and what it runs: the rewritten step and its program."""

    plan: NetworkPlan
    step: Step
    placed: Placed


class Fastest:
    """The fastest plan so far of those that fit.

    Attributes
    ----------
    room : Room, optional
        Pinned memory that may be had; None for any.
    tried : set
        What was placed, so that nothing is twice.
    best : PlannedStep, optional
    least : NetworkPlan, optional
        Of those that did not fit, the one that wants least.
    """

    def __init__(
        self, room: Room | None, seconds_of: Callable[[Phase], float] | None = None
    ) -> None:
        self.room, self._seconds_of = room, seconds_of
        self.best: PlannedStep | None = None
        self.least: NetworkPlan | None = None
        self.tried = set[Hashable]()

    def may_be(self, step: Step) -> bool:
        """Whether a step may be the fastest: no replay takes less than computing in one piece."""
        if self.best is None or self._seconds_of is None:
            return True
        return sum(map(self._seconds_of, step.phases)) < self.best.plan.seconds

    def take(self, made: PlannedStep | None) -> bool:
        """Keep a plan if it is the fastest so far; return whether it is."""
        if made is None:
            return False
        if self.room is not None and made.plan.host_bytes > self.room.available_bytes:
            if self.least is None or made.plan.host_bytes < self.least.host_bytes:
                self.least = made.plan
            return False
        if self.best is not None and made.plan.seconds >= self.best.plan.seconds:
            return False
        self.best = made
        return True

    def found(self) -> PlannedStep:
        """The fastest.

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
            purpose=f"what {self.least.name} keeps on the host (a larger memory_limit leaves less)",
        )
