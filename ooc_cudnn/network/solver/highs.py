"""The one call of HiGHS, which comes with SciPy, and what is said where it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.errors import SolverError
from ooc_cudnn.warnings_once import warn_once

#: The dual simplex: the same input gives the same solution, and a bound wherever it stops.
METHOD = "highs-ds"
#: States of what SciPy's `linprog` and `milp` return: a limit was reached; all that went wrong.
_STOPPED, _FAILED = 1, 4


class Rows(NamedTuple):
    """A matrix by rows: values, the variable of each, and where each row starts among them."""

    values: list[float]
    variables: list[int]
    starts: np.ndarray[Any, Any]


class Solution(NamedTuple):
    """Solution of a linear program.

    Attributes
    ----------
    values : array of float64
        Of each variable.
    objective, bound : float
        What they cost, and what no others can go below.
    """

    values: np.ndarray[Any, Any]
    objective: float
    bound: float


def minimize(
    costs: np.ndarray[Any, Any],
    rows: Rows,
    low: np.ndarray[Any, Any],
    high: np.ndarray[Any, Any],
    lower: np.ndarray[Any, Any],
    upper: np.ndarray[Any, Any],
    *,
    whole: bool,
    **options: float,
) -> Solution | None:
    """Return where the costs of variables are least within bounds; None where none was found.

    Parameters
    ----------
    low, high : array
        Between which each row lies; one of them is infinite, or both are the same.
    lower, upper : array
        Between which each variable lies.
    whole : bool
        Whether variables are whole numbers. Such a search may end at a limit with a solution, or
        without any; that of real numbers fails there.
    options
        SciPy's, for `milp` or for `linprog`.

    Raises
    ------
    SolverError
        If SciPy is not there, or HiGHS fails.
    """
    try:  # SciPy takes a while to import, so that waits until somebody asks
        from scipy import optimize
        from scipy.sparse import csr_array
    except ImportError as error:
        raise SolverError(
            f"SciPy, whose HiGHS solves the planner's programs, cannot be imported ({error})",
            remedy="Run `pip install scipy`.",
        ) from error
    matrix = csr_array(rows, (len(low), len(costs)))
    try:
        if whole:
            reply = optimize.milp(
                costs,
                constraints=optimize.LinearConstraint(matrix, low, high),
                integrality=np.ones(len(costs)),
                bounds=optimize.Bounds(lower, upper),
                options=options,
            )
        else:
            equal, is_above = low == high, np.isinf(high)
            sides = np.where(is_above, -1.0, 1.0)[~equal]
            reply = optimize.linprog(
                costs,
                A_ub=matrix[~equal].multiply(sides[:, None]),
                b_ub=np.where(is_above, -low, high)[~equal],
                A_eq=matrix[equal],
                b_eq=low[equal],
                bounds=np.column_stack([lower, upper]),
                method=METHOD,
                options=options,
            )
    except RuntimeError as error:
        raise SolverError(f"HiGHS failed on one of the planner's programs: {error}") from error
    if _has_failed(reply, whole=whole):
        raise SolverError(f"HiGHS failed on one of the planner's programs: {reply.message}")
    if reply.x is None or not (whole or reply.status == 0):
        return None
    return Solution(reply.x, float(reply.fun), float(reply.mip_dual_bound if whole else reply.fun))


def _has_failed(found: Any, *, whole: bool) -> bool:
    """True if HiGHS failed; a search of whole numbers that ended at a limit did not.

    SciPy (1.17) has one state for both where there is no solution so far.
    """
    if not whole:
        return found.status in (_STOPPED, _FAILED)
    return found.status == _FAILED and found.x is None and "limit" not in found.message.lower()


@contextmanager
def optional_solver() -> Iterator[None]:
    """Say, once, that plans do without the solver where it is not there, or fails within."""
    try:
        yield
    except SolverError as error:
        warn_once(
            f"{error} Plans of networks are made without its programs here: by the policies that "
            "need none, whose plans may be slower, and perhaps without a bound."
        )
