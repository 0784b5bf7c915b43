"""The integer program: what is there in each stage, what is made again, what is copied.

Symbols as the paper has them, over stages t, maps j and k, algorithms a. [A] marks what keeps it
small.

- R(t, j, a): j is made again in stage t by algorithm a. [A] Only where t reads it, or what is made
  of it in a few steps: later costs the same seconds, and memory for less long.
- S(t, j): j stays beyond stage t. [A] One variable from each stage that may touch it to the next,
  for in between nothing is gained by letting it go.
- O(t, j), P(t, j): a copy out, or in, starts with stage t (`copies`).
- A(t, a): the stage itself runs by algorithm a.
- F(t, k, i), U(t, k): [A] in their place N(t, j, k) says that j is needed when k or a later map is
  made again in stage t, or beyond it. So what is held then is one row.
"""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ooc_cudnn.network.search.mo_sos.copies import Copies
from ooc_cudnn.network.search.mo_sos.problem import Choice, Problem
from ooc_cudnn.network.solver.highs import Solution
from ooc_cudnn.network.solver.model import LinearProgram, Sum

#: What is made again in one stage is made of what is there, in so many steps at most.
DEEP = 8
#: Units of memory that the budget has.
UNITS = 4096


class Freedom(NamedTuple):
    """Freedoms of a program: decisions that it may take."""

    offload: bool = True
    algorithms: bool = True


class RematMilp(LinearProgram):
    """The program of a problem for a budget of bytes.

    Bytes in its rows are whole units, of which the budget has about `UNITS`: whole numbers add up
    to exactly what they should.

    Attributes
    ----------
    again : list of list of int
        Of each stage the maps that may be made again in it.
    touched : list of list of int
        Of each map the stages that may touch it; the first makes it.
    remakes : dict
        (t, j) to the variables R(t, j, a).
    runs : list
        Of each stage the variables A(t, a); none where there is one algorithm.
    staying : dict
        (t, j) to S(t, j).
    """

    def __init__(self, problem: Problem, budget_bytes: int, allowed: Freedom) -> None:
        super().__init__()
        self.problem, self.allowed = problem, allowed
        self.unit = max(budget_bytes // UNITS, 1)
        self.budget = budget_bytes // self.unit
        self.again = [
            problem.ancestors(stage.reads, DEEP) if stage.is_backward else []
            for stage in problem.stages
        ]
        self.touched = [self._touched(j) for j in range(len(problem.maps))]
        self.remakes = {
            (t, k): [self.variable(1.0, c.seconds) for c in self.choices(problem.maps[k].choices)]
            for t, again in enumerate(self.again)
            for k in again
        }
        self.staying = {
            (t, j): self.variable(1.0)
            for j, touched in enumerate(self.touched)
            for t in touched[:-1]
        }
        self.runs = [self._run(self.choices(stage.choices)) for stage in problem.stages]
        #: What each stage holds of maps that it does not touch.
        self.held = [Sum() for _ in problem.stages]
        #: Of each map the variables N(t, j, k).
        self.needs: list[list[int]] = [[] for _ in problem.maps]
        self.copies: Copies | None = None
        if allowed.offload:
            sizes = [self.size(j) for j in range(len(problem.maps))]
            self.copies = Copies(problem, self, self.touched, self.staying, sizes)
            self.held = self.copies.holding
        for j, touched in enumerate(self.touched):
            self._flow(j, touched)
        for t in range(len(problem.stages)):
            self._memory(t)

    def choices(self, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Algorithms that it tells apart; or the fastest one, whatever workspace that takes."""
        if self.allowed.algorithms:
            return choices
        return (Choice(min(choice.seconds for choice in choices)),)

    def units(self, nbytes: int) -> int:
        """Bytes in units, rounded up."""
        return -(-nbytes // self.unit)

    def size(self, j: int) -> int:
        """A map in units."""
        return self.units(self.problem.maps[j].nbytes)

    def _touched(self, j: int) -> list[int]:
        maps = self.problem.maps
        return [
            t
            for t, stage in enumerate(self.problem.stages)
            if j in (*stage.makes, *stage.reads)
            or any(k == j or j in maps[k].parents for k in self.again[t])
        ]

    def _run(self, choices: tuple[Choice, ...]) -> list[int]:
        if len(choices) == 1:
            return []
        found = [self.variable(1.0, choice.seconds) for choice in choices]
        self.exactly(Sum.of(found), 1)
        return found

    # What is there ------------------------------------------------------------------------------

    def stays(self, t: int, j: int) -> Sum:
        """Return whether a map stays beyond a stage that touches it, as an expression."""
        return Sum.of([self.staying[t, j]] if (t, j) in self.staying else ())

    def remade(self, t: int, j: int) -> Sum:
        """Return whether a stage recomputes a map, as an expression."""
        return Sum.of(self.remakes.get((t, j), ()))

    def arrives(self, t: int, j: int) -> Sum:
        """Return whether a map is there when a stage begins that touches but does not make it."""
        before = max(place for place in self.touched[j] if place < t)
        found = self.stays(before, j)
        if self.copies is not None:
            found.add(Sum.of(self.copies.landing(j, before, t)))
        return found

    def _flow(self, j: int, touched: list[int]) -> None:
        """(4), (5): a map stays, is read and serves others only if it is there."""
        for before, after in pairwise(touched):
            for t in range(before + 1, after):
                self.held[t].add(self.stays(before, j), self.size(j))
        for t in touched[1:]:
            present = self.arrives(t, j) + self.remade(t, j)
            children = [k for k in self.again[t] if j in self.problem.maps[k].parents]
            self.at_most(present, 1)
            self.at_most(self.stays(t, j) - present, 0)
            for k in children:
                self.at_most(self.remade(t, k) - present, 0)
            if j in self.problem.stages[t].reads:
                self.at_least(present, 1)
            elif (t, j) in self.remakes:  # what nobody asks for is not made
                asked = self.stays(t, j)
                for k in children:
                    asked.add(self.remade(t, k))
                self.at_most(self.remade(t, j) - asked, 0)

    # Memory -------------------------------------------------------------------------------------

    def _memory(self, t: int) -> None:
        """(14) to (16): what is held while a stage runs, and while each map is made again."""
        stage, held = self.problem.stages[t], self.held[t]
        fixed = self.units(stage.fixed_bytes)
        passing = [j for j, touched in enumerate(self.touched) if t in touched]
        passing = [j for j in passing if j not in stage.makes and j not in stage.reads]
        used = sum(self.size(j) for j in (*stage.makes, *stage.reads))
        row = Sum(held)
        for j in passing:
            row.add(self.stays(t, j), self.size(j))
        self._room(row, self.runs[t], self.choices(stage.choices), fixed + used)
        needs = {j: self._needs(t, j) for j in passing}
        for k in self.again[t]:
            row, whole = Sum(held), fixed
            for j in stage.reads:
                if j <= k:
                    whole += self.size(j)
                else:
                    row.add(self.arrives(t, j), self.size(j))
            for j in passing:
                if j > k:
                    row.add(self.arrives(t, j), self.size(j))
                else:
                    term = next((need for child, need in needs[j] if child >= k), self.stays(t, j))
                    row.add(term, self.size(j))
            choices = self.choices(self.problem.maps[k].choices)
            self._room(row, self.remakes[t, k], choices, whole)

    def _needs(self, t: int, j: int) -> list[tuple[int, Sum]]:
        """N(t, j, k): up to which map that is made again it is needed, and whether it is."""
        needs, later = list[tuple[int, Sum]](), self.stays(t, j)
        for k in reversed(self.again[t]):
            if j not in self.problem.maps[k].parents:
                continue
            if later:
                self.needs[j].append(self.variable(1.0))
                need = Sum.of(self.needs[j][-1:])
                self.at_least(need - later, 0)
                self.at_least(need - self.remade(t, k), 0)
            else:
                need = self.remade(t, k)
            needs.append((k, need))
            later = need
        return needs[::-1]

    def _room(
        self, row: Sum, variables: list[int], choices: tuple[Choice, ...], whole: int
    ) -> None:
        """Constrain a sum, what is whole and the workspace to fit into the budget."""
        if len(choices) == 1 and not variables:
            whole += self.units(choices[0].workspace_bytes)
        for variable, choice in zip(variables, choices, strict=len(choices) > 1):
            row[variable] += self.units(choice.workspace_bytes)
        self.at_most(row, self.budget - whole)

    def solved(self, gap: float, most_nodes: int, most_seconds: float) -> Solution | None:
        """Solve it; at once where everything may stay, by the fastest algorithms.

        Within the gap maps leave that need not: what may as well stay does.
        """
        values = [0.0] * len(self.costs)
        for runs in self.runs:
            for fastest in runs[:1]:
                values[fastest] = 1.0
        for j in range(len(self.touched)):
            values = self._keeping(values, j)
        if self.are_met(values):
            return self._priced(values, None)
        solution = self.minimize_whole(gap, most_nodes, most_seconds)
        if solution is None:
            return None
        values = [float(round(value)) for value in solution.values.tolist()]
        for j in range(len(self.touched)):
            kept = self._keeping(values, j)
            if kept != values and self.are_met(kept):
                values = kept
        return self._priced(values, solution.bound)

    def _keeping(self, values: list[float], j: int) -> list[float]:
        """The same, but for a map that stays from first to last."""
        kept = list(values)
        for (_, number), variable in self.staying.items():
            if number == j:
                kept[variable] = 1.0
        for variable in self.needs[j]:
            kept[variable] = 1.0
        for (_, number), variables in self.remakes.items():
            if number == j:
                for variable in variables:
                    kept[variable] = 0.0
        for starts in () if self.copies is None else self.copies.all:
            for (_, number), variable in starts.items():
                if number == j:
                    kept[variable] = 0.0
        return kept

    def _priced(self, values: list[float], bound: float | None) -> Solution:
        seconds = sum(map(operator.mul, values, self.costs))
        return Solution(np.array(values), seconds, seconds if bound is None else bound)

    @property
    def constant_seconds(self) -> float:
        """Seconds of what there is one way to compute."""
        found = zip(self.problem.stages, self.runs, strict=True)
        return sum(stage.seconds for stage, runs in found if not runs)
