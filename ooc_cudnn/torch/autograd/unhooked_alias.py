"""An alias that is no autograd view, so that its hooks are its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ooc_cudnn.torch.autograd.hidden_gradients import (
    MOVING_NODES,
    HiddenGradient,
    check_not_asked_for,
    shown,
)


class _UnhookedAlias(torch.autograd.Function):
    """Shares memory, and is no view: hooks on a view are lost where that is changed in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
        """The same memory. The others are results that it was made of, in the model."""
        ctx.set_materialize_grads(False)  # a gradient that is not there is not zeros
        ctx.read = [(each.shape, each.dtype, each.device) for each in read]
        return tensor.detach()

    @staticmethod
    @torch._disable_dynamo  # a compiled function that calls backward traces what that calls
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        """The gradient, where there is one; those of the others are not to be seen."""
        gradient = shown(gradient)
        if gradient is None:
            return (None,) * (1 + len(ctx.read))
        check_not_asked_for(each for each, _ in ctx.next_functions[1:])
        return gradient, *(HiddenGradient(*each) for each in ctx.read)


def takes_hidden_gradients(tensor: Any) -> bool:
    """True if a tensor is what `unhooked_alias` has made, or shows it, moved alone."""
    kind: Any = _UnhookedAlias
    node = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
    while node is not None and node.name() in MOVING_NODES:
        ((node, _),) = node.next_functions
    return isinstance(node, kind._backward_cls)


def unhooked_alias(
    tensor: torch.Tensor, read: Sequence[torch.Tensor] = (), *, of_ours: bool = False
) -> torch.Tensor:
    """The tensor as one that nobody else has; as it is where it has no history.

    A view of what a user holds stays one: what is written to it reaches the other. What it shows is
    nobody's where it is `of_ours`. What is `read` are results that the model has made it of: their
    gradients are not to be seen, for they lack what comes by way of it.

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
    result: torch.Tensor = _UnhookedAlias.apply(tensor, *read)
    return result
