"""HiGHS, which comes with SciPy: called so that all say alike what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ooc_cudnn.errors import SolverError
from ooc_cudnn.telling import warn_once

#: States of what SciPy's `linprog` and `milp` return: a limit was reached; all that went wrong.
STOPPED, FAILED = 1, 4


class Solver(NamedTuple):
    """SciPy's module of optimization, and its class of sparse matrices."""

    optimize: Any
    csr_array: Any


@contextmanager
def highs() -> Iterator[Solver]:
    """Give the solver; SciPy takes a while to import, so that waits until somebody asks.

    Raises
    ------
    SolverError
        If it is not there, or fails within.
    """
    try:
        from scipy import optimize
        from scipy.sparse import csr_array
    except ImportError as error:
        raise SolverError(
            f"SciPy, whose HiGHS solves the planner's programs, cannot be imported ({error})",
            remedy="Run `pip install scipy`.",
        ) from error
    try:
        yield Solver(optimize, csr_array)
    except RuntimeError as error:
        raise SolverError(f"HiGHS failed on one of the planner's programs: {error}") from error


def check(found: Any, *failures: int) -> None:
    """Raise SolverError where a solver returned one of these states, or failed with no solution.

    A search that ended at a limit did not fail, though SciPy (1.17) has one state for both: there
    is none so far.
    """
    at_limit = "limit" in found.message.lower()
    if found.status in failures or (found.status == FAILED and found.x is None and not at_limit):
        raise SolverError(f"HiGHS failed on one of the planner's programs: {found.message}")


def tell(error: SolverError) -> None:
    """Say, once, that plans do without the solver."""
    warn_once(
        f"{error} Plans of networks are made without its programs here: by the policies that need "
        "none, whose plans may be slower, and perhaps without a bound."
    )
