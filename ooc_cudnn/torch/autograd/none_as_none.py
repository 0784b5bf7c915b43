"""None for a gradient, handed on as None by functions that a user wrote the backward of.

PyTorch gives such a backward zeros in place of None, and so it makes gradients where there are
none. Without the library that is seldom: what a loss does not depend on is not run at all. But the
outputs of a step are made by one node of autograd's, and behind it lies all that any of them
depends on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def hand_on_none(results: Iterable[Any], given: Iterable[Any]) -> None:
    """Let nodes that made results of what was given hand on None where they are given no more.

    Examples
    --------
    >>> class Plus(torch.autograd.Function):
    ...     forward = staticmethod(lambda ctx, x: x + 1)
    ...     backward = staticmethod(lambda ctx, gradient: gradient + 1)
    >>> class Nothing(torch.autograd.Function):
    ...     forward = staticmethod(lambda ctx, x: x + 1)
    ...     backward = staticmethod(lambda ctx, gradient: None)
    >>> x = torch.zeros((), requires_grad=True)
    >>> Nothing.apply(Plus.apply(x)).backward()
    >>> x.grad
    tensor(1.)
    >>> x.grad, y = None, Plus.apply(x)
    >>> hand_on_none([y], [x])
    >>> Nothing.apply(y).backward()
    >>> x.grad is None
    True
    """
    past = {each.grad_fn for each in given if isinstance(each, torch.Tensor)}
    wanted = [each.grad_fn for each in results if isinstance(each, torch.Tensor)]
    while wanted:
        node = wanted.pop()
        if node is None or node in past or not node.next_functions:  # a parameter's own
            continue
        past.add(node)
        node.register_hook(_none_of_none)
        wanted.extend(each for each, _ in node.next_functions)


def _none_of_none(made: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[None, ...] | None:
    return (None,) * len(made) if all(each is None for each in given) else None
