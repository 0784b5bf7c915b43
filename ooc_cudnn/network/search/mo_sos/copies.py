"""Copies of the program: one out for each map that leaves, then as many in as serve.

They start with a stage, move one map at a time in one direction at a time, and end in a stage that
the link's rate and the fastest algorithms' seconds tell: so they never block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ooc_cudnn.network.search.mo_sos.problem import Problem
from ooc_cudnn.network.solver.model import LinearProgram, Sum

#: What copies cost, as a share of their seconds: of equal schedules that which copies least.
COPIES_COST = 1e-4


class Copies:
    """Variables and rows of copies.

    Parameters
    ----------
    touched, staying : sequence, mapping
        As in `program.Program`.
    sizes : sequence of int
        Of maps, in units.

    Attributes
    ----------
    out, back : dict
        (t, j) to O(t, j), and to P(t, j).
    out_ends, back_ends : dict
        To sf(t, j): the stage in which that copy ends.
    """

    def __init__(
        self,
        problem: Problem,
        rows: LinearProgram,
        touched: Sequence[Sequence[int]],
        staying: Mapping[tuple[int, int], int],
        sizes: Sequence[int],
    ) -> None:
        self.problem, self.rows, self.staying = problem, rows, staying
        #: What is held in each stage because of copies.
        self.holding = [Sum() for _ in problem.stages]
        self.out: dict[tuple[int, int], int] = {}
        self.back: dict[tuple[int, int], int] = {}
        self.out_ends: dict[tuple[int, int], int] = {}
        self.back_ends: dict[tuple[int, int], int] = {}
        #: Whether a map is held by its copy out alone, after stages that touch it.
        self.held: dict[tuple[int, int], int] = {}
        #: What the link is busy with in each stage.
        busy = [Sum() for _ in problem.stages]
        for j, places in enumerate(touched):
            self._add(j, places, sizes[j])
        for variables, ends in ((self.out, self.out_ends), (self.back, self.back_ends)):
            for (t, j), variable in variables.items():
                for stage in range(t, ends[t, j] + 1):
                    busy[stage][variable] = 1.0
        for load in busy:  # (10) to (13)
            rows.at_most(load, 1)

    @property
    def all(self) -> tuple[dict[tuple[int, int], int], ...]:
        """All variables, by a stage and their map."""
        return self.out, self.back, self.held

    def landing(self, j: int, before: int, t: int) -> list[int]:
        """Copies in that end in one stage that touches a map, or later, and before the next."""
        return [
            variable
            for (start, i), variable in self.back.items()
            if i == j and before <= self.back_ends[start, i] < t
        ]

    def _add(self, j: int, touched: Sequence[int], size: int) -> None:
        """[A] A copy out ends before backward touches its map, copies in start in backward."""
        problem, rows = self.problem, self.rows
        backward = [t for t in touched if problem.stages[t].is_backward]
        reading = [t for t in backward if j in problem.stages[t].reads]
        if not reading:
            return
        out, back = dict[int, int](), dict[int, int]()
        for t in range(problem.whole_after(j) + 1, backward[0]):
            end = problem.copy_ends(j, t, problem.bytes_out)
            if end is not None and end < backward[0]:
                out[t] = end
        for t in range(problem.forward_count, backward[-1]):
            end = problem.copy_ends(j, t, problem.bytes_in)
            if end is not None and end < backward[-1]:
                back[t] = end
        if not out or not back:
            return
        nbytes = problem.maps[j].nbytes
        for t, end in out.items():
            variable = rows.variable(1.0, COPIES_COST * nbytes / problem.bytes_out)
            self.out[t, j], self.out_ends[t, j] = variable, end
        for t, end in back.items():
            variable = rows.variable(1.0, COPIES_COST * nbytes / problem.bytes_in)
            self.back[t, j], self.back_ends[t, j] = variable, end
        gone = Sum.of(self.out[t, j] for t in out)
        rows.at_most(gone, 1)  # (6)
        rows.at_most(gone - Sum.of(self.back[t, j] for t in back), 0)  # (8)
        for t in back:  # (9)
            ended = Sum.of(self.out[u, j] for u, end in out.items() if end < t)
            rows.at_most(Sum.of([self.back[t, j]]) - ended, 0)
        for t, end in out.items():
            self._hold_out(j, touched, t, end, size)
        for t, end in back.items():  # (14), (15)
            until = next(place for place in touched if place > end)
            for stage in range(t, until):
                self.holding[stage][self.back[t, j]] += size

    def _hold_out(self, j: int, touched: Sequence[int], start: int, end: int, size: int) -> None:
        """(7): what leaves is there until it has left, whether it stays beyond that or not."""
        rows = self.rows
        leaves = Sum.of([self.out[start, j]])
        places = [t for t in touched if t <= end]
        for t in places[:-1]:
            if next(place for place in touched if place > t) >= start:
                rows.at_most(leaves - Sum.of([self.staying[t, j]]), 0)
        held = self.held[start, j] = rows.variable(1.0)
        rows.at_least(Sum.of([held]) - leaves + Sum.of([self.staying[places[-1], j]]), 0)
        for stage in range(places[-1] + 1, end + 1):
            self.holding[stage][held] += size
