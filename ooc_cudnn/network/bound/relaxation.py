"""The linear program over fates and copies: what no plan of a step can beat, and what is worth it.

See docs/planning-networks.md. Of every thing (`coarse_step.py`), in every gap between two groups
of phases that use it, a share k is held; what comes back is fetched (f) or made again (m). Phases
of backward may make again what is only wanted for making others again: in a gap the share held (c)
changes from group to group. Bytes cross the link in prefix sums: D out and Q in, by the end of each
group. A group takes T seconds: what it computes, or copies.

    c(i, s) <= c(i, s-1) + f(i, s) + m(maker of i, s)          what is held was there, or came
    m(j, s) <= the same sum of each thing that phase j reads   parents are there when j runs again
    what is held + what is still to leave + what came early <= budget
    minimise the sum of T
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ooc_cudnn.network.bound.coarse_step import CoarseStep
from ooc_cudnn.network.bound.live_range_lp import LiveRangeLp
from ooc_cudnn.network.solver.highs import optional_solver
from ooc_cudnn.network.solver.model import Sum, running
from perfmodel import MachineModel


@dataclass(frozen=True)
class Link:
    """Seconds a byte each way, what both ways lose to each other, and computing to a copy."""

    in_seconds: float
    out_seconds: float
    in_factor: float = 1.0
    out_factor: float = 1.0
    loss: float = 0.0

    @classmethod
    def of(cls, machine: MachineModel) -> Link:
        """Pinned memory's: the fastest there is."""
        transfer = machine.transfer
        slower = transfer.slowdown("pinned", "pinned")
        return cls(
            transfer.copy_in["pinned"].alpha,
            transfer.copy_out["pinned"].alpha,
            slower.copy_in,
            slower.copy_out,
            machine.losses.get("copies", 0.0),
        )


@dataclass(frozen=True)
class Optimum:
    """A solution.

    Attributes
    ----------
    seconds : float
        The sum of T.
    kept : mapping
        Of each thing (by number) that backward reads, the share that is held all the time between
        forward and backward.
    offloaded : mapping
        And the share that comes from the host; the rest is made again.
    """

    seconds: float
    kept: Mapping[int, float]
    offloaded: Mapping[int, float]


def solve(
    coarse: CoarseStep,
    link: Link,
    budget_bytes: int,
    *,
    margin: Mapping[int, int] | None = None,
    issued: Sequence[float] = (),
    repeated: int = 1,
    most_iterations: int = 200_000,
) -> Optimum | None:
    """Solve the program of a step; None where no such step fits, or no optimum was found.

    Parameters
    ----------
    margin : mapping, optional
        Bytes that phases take beside all things; none in a bound.
    issued : tuple of float, optional
        When the host can have issued each phase.
    repeated : int
        How often the step follows itself: what it is given may be there from before, or come in
        while the one before runs. The seconds are those of one, in the mean.
    """
    if budget_bytes <= 0:
        return None
    program = BoundLp(coarse, budget_bytes, repeated)
    program.fits(margin or {})
    program.copies()
    program.lasts(link, issued)
    optimum = None
    with optional_solver():
        optimum = program.minimize(most_iterations)
    if optimum is None:
        return None
    kept, fetched = (
        {index: float(optimum.values[at]) for index, at in of.items()}
        for of in (program.kept, program.fetched)
    )
    return Optimum(float(optimum.values[program.E[-1]]) * program.unit, kept, fetched)


class BoundLp(LiveRangeLp):
    """The rows; bytes are shares of the budget, seconds shares of all computing.

    Attributes
    ----------
    E : list of int
        The variables of seconds by the end of each group: the last one is to be least.
    """

    def __init__(self, coarse: CoarseStep, budget_bytes: int, repeated: int = 1) -> None:
        super().__init__(coarse, budget_bytes, repeated)
        self.unit = sum(coarse.seconds) or 1.0
        #: By the end of each group: seconds, bytes out and bytes in. Another follows the last.
        self.E, self.D, self.Q = (self.variables(self.count + 1) for _ in range(3))
        self.costs[self.E[-1]] = 1.0
        #: In each group: what is gone and still to leave, and what came early.
        self.P, self.U = (self.variables(self.count) for _ in range(2))
        self._parents()

    def _parents(self) -> None:
        """Constrain what a phase reads to be there when it runs again."""
        for maker, runs in self.m.items():
            for parent in self.coarse.parents[maker]:
                for at, variable in runs.items():
                    if (parent, at) not in self.used:
                        self.at_least(self.there[parent, at] - Sum.of([variable]))

    def fits(self, margin: Mapping[int, int]) -> None:
        """Constrain bytes held in each phase; of a group, in the phases that use most."""
        touched = defaultdict[int, set[int]](set)
        for index, thing in enumerate(self.coarse.things):
            for use in thing.uses:
                touched[use.phase].add(index)
        kept = self.levels(self.held)
        for group, (start, settled, stop) in enumerate(self.coarse.groups):
            held = self.variable()
            self.at_least(Sum({held: 1, kept[group]: -1}) - self.moving[group])
            indices = sorted({index for phase in range(start, stop) for index in touched[phase]})
            spans = {
                index: [
                    use.phase for use in self.coarse.things[index].uses if start <= use.phase < stop
                ]
                for index in indices
            }
            # before, what is made again in the group need not be there
            forward = group < self.coarse.forward_groups
            rows_of = range(start if forward else settled, stop)
            rows = set[tuple[frozenset[int], int]]()
            for phase in rows_of:
                if any(touched[phase] < touched[other] for other in rows_of):
                    continue
                if (key := (frozenset(touched[phase]), margin.get(phase, 0))) in rows:
                    continue
                rows.add(key)
                row = Sum.of((self.P[group], self.U[group], held), -1.0)
                for index in indices:
                    before, used, after = self.used[index, group]
                    size = self.coarse.things[index].nbytes / self.budget
                    if spans[index][0] <= phase <= spans[index][-1]:
                        if index in touched[phase]:
                            row[used] -= size
                    elif phase > spans[index][-1]:
                        row.add(after, -size)
                    elif group not in self.asked[index]:  # else it may be gone once it served
                        row.add(before, -size)
                self.at_least(row, margin.get(phase, 0) / self.budget - 1)

    def copies(self) -> None:
        """Prefix sums of copies: nothing leaves before it is made, all comes before it is read."""
        wanted, made = self.levels(running(self.wanted)), self.levels(running(self.made))
        gone = self.levels(self.gone)
        for group in range(self.count + 1):
            self.at_least({self.Q[group]: 1, wanted[group]: -1})
            self.at_least({made[group]: 1, self.D[group]: -1})
            if group < self.count:
                self.at_least({self.P[group]: 1, self.D[group]: 1, gone[group]: -1})
            if 0 < group < self.count:
                self.at_least({self.U[group]: 1, self.Q[group - 1]: -1, wanted[group]: 1})
        self.at_least({self.D[-1]: 1, made[-1]: -1})

    def lasts(self, link: Link, issued: Sequence[float] = ()) -> None:
        """A group lasts as long as what it computes, or copies."""
        each_in = link.in_seconds * self.budget / self.unit
        each_out = link.out_seconds * self.budget / self.unit
        beside_in = link.in_factor * (1 - 1 / link.out_factor)
        beside_out = link.out_factor * (1 - 1 / link.in_factor)
        for group in range(self.count + 1):
            lasts, out, fetch = (Sum.of([each[group]]) for each in (self.E, self.D, self.Q))
            if group:
                lasts[self.E[group - 1]] = out[self.D[group - 1]] = fetch[self.Q[group - 1]] = -1.0
                self.at_least(out)
                self.at_least(fetch)
            self.at_least(lasts.plus(fetch, -each_in).plus(out, -each_out * beside_out))
            self.at_least(lasts.plus(out, -each_out).plus(fetch, -each_in * beside_in))
            start, _, stop = self.coarse.groups[group] if group < self.count else (0, 0, 0)
            for maker, runs in self.m.items():
                if group in runs:
                    lasts[runs[group]] = -self.coarse.seconds[maker] / self.unit
            lasts = lasts.plus(fetch, -each_in * link.loss).plus(out, -each_out * link.loss)
            self.at_least(lasts, sum(self.coarse.seconds[start:stop]) / self.unit)
            if issued and 0 < group < self.count:
                self.at_least({self.E[group - 1]: 1.0}, issued[start] / self.unit)
