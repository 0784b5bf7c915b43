"""Linear programs, of real or of whole numbers: variables, sums of them, rows, a solution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Self

import numpy as np

from ooc_cudnn.network.solver.highs import Rows, Solution, minimize

#: In sums, in place of a variable: the constant.
ONE = -1
#: Terms of a sum: the coefficient of each variable, and of `ONE` the constant.
Terms = Mapping[int, float]


class Sum(defaultdict[int, float]):
    """A sum of variables, by number, and of a constant.

    Examples
    --------
    >>> dict(Sum.of([1, 2]) - Sum.of([2]))
    {1: 1.0, 2: 0.0}
    """

    def __init__(self, constraints: Terms | Iterable[tuple[int, float]] = ()) -> None:
        super().__init__(float, constraints)

    @classmethod
    def of(cls, variables: Iterable[int], factor: float = 1.0) -> Self:
        """The sum of some variables, times a factor."""
        return cls(dict.fromkeys(variables, factor))

    def add(self, other: Terms, factor: float = 1.0) -> None:
        """Add another one, times a factor."""
        for variable, value in other.items():
            self[variable] += factor * value

    def plus(self, other: Terms, factor: float = 1.0) -> Sum:
        """The sum of both, the other one times a factor."""
        made = Sum(self)
        made.add(other, factor)
        return made

    def __add__(self, other: Terms) -> Sum:
        return self.plus(other)

    def __sub__(self, other: Terms) -> Sum:
        return self.plus(other, -1.0)


class LinearProgram:
    """Variables that are at least 0, what each costs, and rows of sums of them.

    The order of variables and rows decides which of several optima HiGHS returns.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.upper: list[float] = []
        #: Of each row its terms, and between what their sum lies.
        self.rows: list[tuple[Terms, float, float]] = []

    def variable(self, upper: float = np.inf, cost: float = 0.0) -> int:
        """Add a variable, from 0 to `upper`."""
        self.upper.append(upper)
        self.costs.append(cost)
        return len(self.costs) - 1

    def variables(self, count: int) -> list[int]:
        """Add so many variables without an upper end, that cost nothing."""
        return [self.variable() for _ in range(count)]

    def at_least(self, row: Terms, least: float = 0.0) -> None:
        """Add a row: the sum is at least so much."""
        self._add(row, least, np.inf)

    def at_most(self, row: Terms, most: float = 0.0) -> None:
        """Add a row: the sum is at most so much; none where it cannot be more."""
        if sum(value * self._most(at) for at, value in row.items() if value > 0) > most:
            self._add(row, -np.inf, most)

    def exactly(self, row: Terms, value: float = 0.0) -> None:
        """Add a row: the sum is so much."""
        self._add(row, value, value)

    def _most(self, variable: int) -> float:
        return 1.0 if variable == ONE else self.upper[variable]

    def _add(self, row: Terms, low: float, high: float) -> None:
        constant = row.get(ONE, 0.0)
        constraints = {at: value for at, value in row.items() if value and at != ONE}
        self.rows.append((constraints, low - constant, high - constant))

    def levels(self, sums: Iterable[Terms]) -> list[int]:
        """Variables that are so many sums, which differ little from one to the next."""
        variables, before = list[int](), Sum()
        for terms in sums:
            row = Sum(terms) - before
            before = Sum(terms)
            if variables:
                row[variables[-1]] = 1.0
            variables.append(self.variable())
            row[variables[-1]] = -1.0
            self.exactly(row)
        return variables

    def are_met(self, values: Sequence[float]) -> bool:
        """True if values of the variables keep to all rows."""
        return all(
            low <= sum(factor * values[at] for at, factor in constraints.items()) <= high
            for constraints, low, high in self.rows
        )

    def minimize(self, most_iterations: int) -> Solution | None:
        """Return the values that cost least; None if no values keep to all rows.

        Raises
        ------
        SolverError
            If the solver is not there, fails, or takes too many iterations.
        """
        return self._minimize(whole=False, maxiter=most_iterations)

    @property
    def entries(self) -> int:
        """Number of coefficients in all rows."""
        return sum(len(terms) for terms, _, _ in self.rows)

    def minimize_whole(
        self,
        gap: float,
        most_nodes: int,
        most_seconds: float = np.inf,
        fixed: Mapping[int, float] = MappingProxyType({}),
    ) -> Solution | None:
        """Return whole values that cost least, within so many nodes; None where none were found.

        All variables are whole, those too that could not be anything else in a solution: where they
        were not, HiGHS 1.12 presolved a tiny problem to an answer that is not the best.

        Parameters
        ----------
        gap : float
            How far the objective may be from the bound, as a share.
        fixed : mapping
            Values that some variables have.

        Raises
        ------
        SolverError
            If the solver is not there, or fails.
        """
        limits = {"mip_rel_gap": gap, "node_limit": most_nodes}
        if most_seconds < np.inf:
            limits["time_limit"] = most_seconds
        return self._minimize(whole=True, fixed=fixed, **limits)

    def _minimize(
        self, *, whole: bool, fixed: Mapping[int, float] = MappingProxyType({}), **options: float
    ) -> Solution | None:
        constraints = [each for each, _, _ in self.rows]
        rows = Rows(
            list(chain.from_iterable(each.values() for each in constraints)),
            list(chain.from_iterable(constraints)),
            np.array([0, *accumulate(map(len, constraints))]),
        )
        low, high = (np.array([row[side] for row in self.rows]) for side in (1, 2))
        costs, upper = np.array(self.costs), np.array(self.upper)
        lower = np.zeros(len(upper))
        for variable, value in fixed.items():
            lower[variable] = upper[variable] = value
        return minimize(costs, rows, low, high, lower, upper, whole=whole, **options)


def running(sums: Iterable[Terms]) -> Iterable[Sum]:
    """Yield each with all before it."""
    return accumulate(map(Sum, sums), Sum.plus)
