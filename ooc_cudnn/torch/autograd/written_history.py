"""The history of an argument that forward changes in place: there before its elements are.

Of the version that is left others are made, whose histories are to lead to it. Its elements are
written when the call has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ooc_cudnn.torch.autograd.hidden_gradients import HiddenGradient, shown


@dataclass(eq=False)
class Outcome:
    """Outcome of a write: whether the elements could not be written, too."""

    failed: bool = False


class _Written(torch.autograd.Function):
    """A tensor that has another's history; its elements stay."""

    @staticmethod
    def forward(
        ctx: Any, target: torch.Tensor, value: torch.Tensor, outcome: Outcome
    ) -> torch.Tensor:
        """The target itself."""
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(target)
        ctx.outcome, ctx.dtype, ctx.device = outcome, value.dtype, value.device
        return target

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        """The gradient for the value; for what was there, where nothing was written."""
        gradient = shown(gradient)
        if gradient is None or ctx.outcome.failed:
            return gradient, None, None
        return None, gradient.to(ctx.device, ctx.dtype), None


def _as_shown(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    """Hand on a view; who asks for its gradient has it before this.

    There is no way to hand on nothing: what is not known is zeros.
    """
    (gradient,) = gradients
    if not isinstance(gradient, HiddenGradient):
        return gradients
    known = shown(gradient)
    if known is None:
        known = torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    return (known,)


class _OfValue(torch.autograd.Function):
    """Function with the history of a value, and the elements of a target."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, target: torch.Tensor, outcome: Outcome
    ) -> torch.Tensor:
        """The memory of the target."""
        ctx.set_materialize_grads(False)
        ctx.outcome, ctx.dtype, ctx.device = outcome, value.dtype, value.device
        return target.detach()

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        """The gradient for the value.

        Raises
        ------
        RuntimeError
            If nothing was written: what was there has lost its history.
        """
        if ctx.outcome.failed:
            raise RuntimeError(
                "backward through a view that a model under a limit was to change in place, in a "
                "call that failed: make the view anew"
            )
        return None if gradient is None else gradient.to(ctx.device, ctx.dtype), None, None


def write_history(target: torch.Tensor, value: torch.Tensor, outcome: Outcome) -> None:
    """Let a tensor have the history of what will be written to it.

    >>> w = torch.ones(2, requires_grad=True)
    >>> x = torch.zeros(2)
    >>> write_history(x, w * 3, Outcome())
    >>> x, w.grad = x * 2, None
    >>> x.sum().backward()
    >>> w.grad
    tensor([6., 6.])
    """
    if target._is_view():  # PyTorch's own functions alone rebase the history of what it shows
        target.copy_(_OfValue.apply(value, target, outcome))
        assert target.grad_fn is not None
        target.grad_fn.register_prehook(_as_shown)
    else:
        _Written.apply(target, value, outcome)


@contextmanager
def outcome() -> Iterator[Outcome]:
    """Note whether what is within raises."""
    of = Outcome()
    try:
        yield of
    except BaseException:
        of.failed = True
        raise
