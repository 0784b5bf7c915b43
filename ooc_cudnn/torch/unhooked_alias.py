"""An alias that is no autograd view, so that its hooks are its own."""

from __future__ import annotations

from typing import Any

import torch


class _UnhookedAlias(torch.autograd.Function):
    """Shares memory, and is no view: hooks on a view are lost where that is changed in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory."""
        ctx.set_materialize_grads(False)  # a gradient that is not there is not zeros
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient, where there is one."""
        return gradient


def unhooked_alias(tensor: torch.Tensor, *, of_ours: bool = False) -> torch.Tensor:
    """The tensor as one that nobody else has; as it is where it has no history.

    A view of what a user holds stays one: what is written to it reaches the other. What it shows is
    nobody's where it is `of_ours`.

    >>> w = torch.ones(2, requires_grad=True)
    >>> y = unhooked_alias(w * 3)
    >>> _ = y.register_hook(torch.neg)
    >>> y *= 2
    >>> y.sum().backward()
    >>> w.grad
    tensor([-6., -6.])
    """
    if tensor.grad_fn is None:
        return tensor
    if tensor._is_view() and not of_ours:
        return tensor.view_as(tensor)
    result: torch.Tensor = _UnhookedAlias.apply(tensor)
    return result
