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
from torch.autograd.function import BackwardCFunction

#: In the metadata of a node that hands on None.
_HOOKED = "ooc_cudnn_none"


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
    _hand_on((each.grad_fn for each in results if isinstance(each, torch.Tensor)), past)


def hand_on_none_behind(gradients: Iterable[Any], nodes: Iterable[Any]) -> None:
    """Let functions behind a node do so, from where it hands on None, while it runs.

    Parameters
    ----------
    gradients : iterable of (Tensor or None)
    nodes : iterable
        To which of autograd's nodes each of them goes.
    """
    pairs = zip(gradients, nodes, strict=False)
    _hand_on((node for gradient, node in pairs if gradient is None), set())


def _hand_on(nodes: Iterable[Any], past: set[Any]) -> None:
    wanted = list(nodes)
    while wanted:
        node = wanted.pop()
        if node is None or node in past or not node.next_functions:  # a parameter's own
            continue
        past.add(node)
        if isinstance(node, BackwardCFunction) and _HOOKED not in node.metadata:
            node.metadata[_HOOKED] = node.register_hook(_none_of_none)
        wanted.extend(each for each, _ in node.next_functions)


def _none_of_none(made: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[None, ...] | None:
    return (None,) * len(made) if all(each is None for each in given) else None
