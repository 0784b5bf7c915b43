"""Errors of models under a limit: what cannot be captured or computed, and ranks that fail."""

from __future__ import annotations

from ooc_cudnn.errors import OocError


class UnsupportedModelError(OocError, TypeError):
    """A model that cannot be captured, or not run as its user means it."""


class UnsupportedOperationError(UnsupportedModelError, NotImplementedError):
    """An operation that the library has not, in this form.

    Attributes
    ----------
    operation : str
        As PyTorch calls it: "aten.cumsum.default".
    where : str
        The line of the user's model.
    why : str
        What stands in the way.
    """

    def __init__(self, operation: str, where: str, why: str) -> None:
        self.operation, self.where, self.why = operation, where, why
        super().__init__(f"{operation}: {why}{_at(where)}")


class RanksError(OocError, RuntimeError):
    """Statistics over all ranks that cannot be had: another rank has failed, or has not come.

    Attributes
    ----------
    node : str
        The batch normalization.
    """

    def __init__(self, node: str, world: int, why: str) -> None:
        self.node = node
        super().__init__(
            f"{node}: the statistics of its batch are those of all {world} ranks, and not all of "
            f"them came. Another rank has failed, or runs another model or other steps: {why}"
        )


def _at(where: str) -> str:
    return f"\n  {where}" if where else ""
