"""The contract of what is timed: the library itself, and every baseline beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooc_cudnn.bench.case import Case
from ooc_cudnn.errors import OocError


class Unavailable(OocError):
    """A contender that cannot run here; the message says why. The others run."""


class Contender(ABC):
    """One way to compute a case's result.

    `run` begins with operands at rest where the case puts them and ends with the result readable
    there. `prepare`, `rest`, `check` and `release` are not timed. Only what `prepare` took is held
    between `prepare` and `release`: contenders that need much memory are never prepared together.

    Attributes
    ----------
    name, about : str
        The key in results and on the command line; a line for tables.
    bounds : bool
        Whether this is a bound (raw copies, in core) and not another way to the same result: where
        a bound has no contents to check, `check` returns None.
    ours : bool
        Whether the library computes the result: wrong contents are then a failure of the suite's,
        and not a finding about a baseline. `OURS` is so without saying it.
    """

    name: str
    about: str
    bounds: bool = False
    ours: bool = False

    @abstractmethod
    def prepare(self) -> None:
        """Take what is needed. Raises `Unavailable` with the reason where that cannot be had."""

    def rest(self) -> None:  # noqa: B027  (most have nothing to put back)
        """Put operands back where the case has them, before each `run`."""

    @abstractmethod
    def run(self) -> None:
        """Compute the result once."""

    @abstractmethod
    def check(self) -> Mapping[str, Any] | None:
        """Run once on a poisoned result and compare with an independent one: numbers and "ok"."""

    def details(self) -> dict[str, Any]:
        """Return what else is worth keeping: plan, stages, peak memory. Called after `check`."""
        return {}

    @abstractmethod
    def release(self) -> None:
        """Give everything back."""


class Workload(ABC):
    """The operands of a case, and the contenders that share them.

    Attributes
    ----------
    contenders : dict of str to callable
        Name -> what makes that contender. Importing PyTorch or CuPy waits for `prepare`.
    in_turns : bool
        Whether contenders may be prepared together and timed in turns, so that a drift of the
        machine meets all of them alike; else one after the other, the library first and last.
    operations : float
        Floating-point operations of one run, of which tables make GFLOPS.
    notes : sequence of str
        What a reader of the results has to know.
    """

    contenders: Mapping[str, Callable[[], Contender]]
    in_turns: bool
    operations: float
    notes: Sequence[str] = ()

    @abstractmethod
    def __init__(self, case: Case, *, cuda: bool, tiny: bool) -> None:
        """Allocate and fill the operands. Raises `Unavailable` where the machine is too small."""

    @abstractmethod
    def release(self) -> None:
        """Give the operands back."""
