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


class SecondDerivativeError(UnsupportedModelError, RuntimeError):
    """A gradient of a model under a limit that is differentiated itself (create_graph=True)."""


class LateChangeError(UnsupportedModelError, RuntimeError):
    """Error: what a hook, a function's backward or a checkpoint reads has changed before backward.

    Where autograd has saved it PyTorch raises a RuntimeError; else it reads what is there then.
    """


class HiddenGradientError(UnsupportedModelError, RuntimeError):
    """A gradient of an output that would leave out that of another one, made of it in forward.

    A hook on the output asks for it, `retain_grad()`, or `torch.autograd.grad(loss, output)`.
    """


def error_like(error: Exception, kind: type[Exception]) -> type[Exception]:
    """A class of errors that are of a kind, and of that of an error of PyTorch's or a user's.

    >>> made = error_like(RuntimeError("PyTorch's"), ValueError)
    >>> issubclass(made, ValueError), issubclass(made, RuntimeError), made.__name__
    (True, True, 'RuntimeError')
    """
    own = type(error)
    if issubclass(own, kind):
        return kind
    return type(own.__name__, (own, kind), {"__module__": own.__module__})


def _at(where: str) -> str:
    return f"\n  {where}" if where else ""
