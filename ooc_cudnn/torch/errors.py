"""What the door to PyTorch refuses, and what to do then."""

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
    """

    def __init__(self, operation: str, where: str, why: str) -> None:
        self.operation, self.where = operation, where
        super().__init__(f"{operation}: {why}{_at(where)}")


def _at(where: str) -> str:
    return f"\n  {where}" if where else ""
