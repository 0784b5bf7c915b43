"""Linear programs: variables, rows of sums, and a solution by HiGHS (SciPy's)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.errors import SolverError
from ooc_cudnn.network.solver.highs import FAILED, STOPPED, check, highs, tell

#: Terms of a sum: the coefficient of each variable, and of `ONE` the constant.
Sum = dict[int, float]
ONE = -1
#: The dual simplex: the same input gives the same solution, and a bound wherever it stops.
METHOD = "highs-ds"


def add(to: dict[int, float], other: Mapping[int, float], times: float = 1.0) -> None:
    """Add so many times a sum to another one."""
    for variable, value in other.items():
        to[variable] += times * value


def total(one: Mapping[int, float], other: Mapping[int, float], times: float = 1.0) -> Sum:
    """One sum and so many times another one."""
    found = defaultdict[int, float](float, one)
    add(found, other, times)
    return found


def running(sums: Sequence[Mapping[int, float]]) -> list[Sum]:
    """Each with all before it."""
    found, total = list[Sum](), defaultdict[int, float](float)
    for each in sums:
        add(total, each)
        found.append(dict(total))
    return found


class LinearProgram:
    """Variables that are at least 0, and rows of sums of them."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.low: list[float] = []
        self._rows: list[tuple[list[int], list[float]]] = []
        self._equal: set[int] = set()  # the other rows are at least that

    def variable(self, upper: float = np.inf) -> int:
        """Another variable, from 0 to `upper`."""
        self.upper.append(upper)
        return len(self.upper) - 1

    def variables(self, count: int) -> list[int]:
        """So many variables."""
        return [self.variable() for _ in range(count)]

    def at_least(self, row: Mapping[int, float], least: float = 0.0) -> None:
        """Another row: the sum is at least so much."""
        at = [variable for variable in row if variable != ONE and row[variable]]
        self._rows.append((at, [row[variable] for variable in at]))
        self.low.append(least - row.get(ONE, 0.0))

    def levels(self, sums: Sequence[Mapping[int, float]]) -> list[int]:
        """Variables that are so many sums, which differ little from one to the next."""
        found, before = list[int](), dict[int, float]()
        for each in sums:
            row = total(each, before, -1)
            before = dict(each)
            if found:
                row[found[-1]] = 1.0
            found.append(self.variable())
            row[found[-1]] = -1.0
            self.at_least(row)
            self._equal.add(len(self.low) - 1)
        return found

    def minimised(self, variable: int, most_iterations: int) -> Any | None:
        """The values of all variables where one is least; None where none was found.

        A solver that is missing, fails, or takes too many iterations is said once.
        """
        try:
            return self._minimised(variable, most_iterations)
        except SolverError as error:
            tell(error)
            return None

    def _minimised(self, variable: int, most_iterations: int) -> Any | None:
        costs = np.zeros(len(self.upper))
        costs[variable] = 1.0
        at = [each for variables, _ in self._rows for each in variables]
        values = [value for _, found in self._rows for value in found]
        starts = np.cumsum([0, *(len(variables) for variables, _ in self._rows)])
        low, equal = np.array(self.low), np.zeros(len(self.low), bool)
        equal[list(self._equal)] = True
        with highs() as (optimize, csr_array):
            matrix = csr_array((values, at, starts), (len(self._rows), len(self.upper)))
            found = optimize.linprog(
                costs,
                A_ub=-matrix[~equal],
                b_ub=-low[~equal],
                A_eq=matrix[equal],
                b_eq=low[equal],
                bounds=np.column_stack([np.zeros(len(self.upper)), self.upper]),
                method=METHOD,
                options={"maxiter": most_iterations},
            )
        check(found, STOPPED, FAILED)
        return found.x if found.status == 0 else None
