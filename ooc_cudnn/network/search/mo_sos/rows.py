"""Variables that are 0 or 1, rows of them, and their solution by HiGHS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from ooc_cudnn.network.solver.highs import check, highs

#: More than any row has.
_FREE = np.inf


class Sum(defaultdict[int, float]):
    """A sum of variables, by number.

    Examples
    --------
    >>> dict(Sum.of([1, 2]) - Sum.of([2]))
    {1: 1.0, 2: 0.0}
    """

    def __init__(self, terms: Iterable[tuple[int, float]] = ()) -> None:
        super().__init__(float, terms)

    @classmethod
    def of(cls, variables: Iterable[int], factor: float = 1.0) -> Self:
        """The sum of some variables, times a factor."""
        return cls((each, factor) for each in variables)

    def add(self, other: Sum, factor: float = 1.0) -> None:
        """Add another one, times a factor."""
        for variable, value in other.items():
            self[variable] += factor * value

    def __add__(self, other: Sum) -> Sum:
        made = Sum(self.items())
        made.add(other)
        return made

    def __sub__(self, other: Sum) -> Sum:
        made = Sum(self.items())
        made.add(other, -1.0)
        return made


class Solved(NamedTuple):
    """What was found.

    Attributes
    ----------
    values : list of float
        Of each variable.
    objective, bound : float
        What they cost, and what no others can go below.
    """

    values: list[float]
    objective: float
    bound: float


class Rows:
    """An integer program in the making: minimise the costs.

    All variables are declared whole, those too that could not be anything else in a solution: where
    they were not, HiGHS 1.12 presolved a tiny problem to an answer that is not the best.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.rows: list[tuple[Sum, float, float]] = []

    def variable(self, cost: float = 0.0) -> int:
        """Add a variable: 0 or 1."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def at_most(self, terms: Sum, most: float) -> None:
        """Add a row."""
        if sum(max(value, 0.0) for value in terms.values()) > most:
            self.rows.append((terms, -_FREE, most))

    def at_least(self, terms: Sum, least: float) -> None:
        """Add a row."""
        self.rows.append((terms, least, _FREE))

    def exactly(self, terms: Sum, value: float) -> None:
        """Add a row."""
        self.rows.append((terms, value, value))

    def are_met(self, values: Sequence[float]) -> bool:
        """Whether values of the variables keep to all rows."""
        return all(
            least <= sum(factor * values[variable] for variable, factor in terms.items()) <= most
            for terms, least, most in self.rows
        )

    def solved(self, gap: float, most_nodes: int, most_seconds: float) -> Solved | None:
        """Return the best solution within so many nodes of the search; None where none was found.

        Parameters
        ----------
        gap : float
            How far the objective may be from the bound, as a share.

        Raises
        ------
        SolverError
            If the solver is not there, or fails.
        """
        places = [
            (at, variable) for at, (terms, _, _) in enumerate(self.rows) for variable in terms
        ]
        values = [value for terms, _, _ in self.rows for value in terms.values()]
        shape = len(self.rows), len(self.costs)
        least, most = (np.array([row[side] for row in self.rows]) for side in (1, 2))
        limits = {"mip_rel_gap": gap, "node_limit": most_nodes, "time_limit": most_seconds}
        with highs() as (optimize, csr_array):
            matrix = csr_array((values, tuple(zip(*places, strict=True))), shape)
            found = optimize.milp(
                self.costs,
                constraints=optimize.LinearConstraint(matrix, least, most),
                integrality=np.ones(shape[1]),
                bounds=optimize.Bounds(0, 1),
                options=limits,
            )
        check(found)
        if found.x is None:
            return None
        return Solved(found.x.tolist(), float(found.fun), float(found.mip_dual_bound))
