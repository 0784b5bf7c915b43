"""Writes and draws of the body of a function of functions: found on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ooc_cudnn.torch.tracing.autocast import without_autocast


@dataclass(frozen=True)
class BodyWrites:
    """Changes that a body makes to what it did not make.

    Attributes
    ----------
    given : tuple of int
        The tensors that it is given and that change as it runs, by number.
    follows : tuple of bool
        Of each of these whether autograd follows what it is then.
    shown : tuple of (int, int)
        Results that show memory of a given tensor: the number of either.
    alike : tuple of (int, int)
        Results that share memory.
    draws : bool
        Whether it draws random numbers.
    backward : bool
        Whether its backward changes tensors that are given, or its results.
    gradients : bool
        Whether its backward changes the gradients that it is given.
    kept, results_kept : tuple of int
        The tensors that its backward reads, of those that it is given, and of its results.
    """

    given: tuple[int, ...]
    follows: tuple[bool, ...]
    shown: tuple[tuple[int, int], ...]
    alike: tuple[tuple[int, int], ...]
    draws: bool
    backward: bool = False
    gradients: bool = False
    kept: tuple[int, ...] = ()
    results_kept: tuple[int, ...] = ()


def writes_of(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], *, with_backward: bool
) -> BodyWrites:
    """Run a function on fake tensors of its own, which it may change, and look at what it writes.

    Parameters
    ----------
    with_backward : bool
        Whether a backward of the user's is looked at, too.
    """
    with _Written() as forward:
        results = pytree.tree_leaves(function(*tensors))
    given = tuple(at for at, each in enumerate(tensors) if forward.has(each))
    follows = tuple(tensors[at].requires_grad for at in given)
    tensors_made = [(at, e) for at, e in enumerate(results) if isinstance(e, torch.Tensor)]
    shown = tuple(
        (at, index)
        for at, result in tensors_made
        for index, each in enumerate(tensors)
        if storage_key(result) == storage_key(each)
    )
    alike = tuple(
        (at, index)
        for (at, one), (index, two) in combinations(tensors_made, 2)
        if storage_key(one) == storage_key(two)
    )
    made = [each for _, each in tensors_made if _has_gradient(each)]
    read = [each for each in tensors if each.requires_grad]
    if not (with_backward and made and read):
        return BodyWrites(given, follows, shown, alike, forward.draws)
    gradients = [torch.empty_like(each, requires_grad=False) for each in made]
    with without_autocast(), _Written() as backward:
        torch.autograd.grad(made, read, gradients, allow_unused=True)
    others = [*tensors, *(each for _, each in tensors_made)]
    both = any(map(backward.has, others)), any(map(backward.has, gradients))
    kept = tuple(at for at, each in enumerate(tensors) if backward.reads(each))
    results_kept = tuple(at for at, each in tensors_made if backward.reads(each))
    return BodyWrites(given, follows, shown, alike, forward.draws, *both, kept, results_kept)


def _has_gradient(result: torch.Tensor) -> bool:
    """True if autograd follows what a function makes.

    One that it marks as without a gradient may be a view of another, as which it passes for
    followed: before 2.13 TorchDynamo has all results return that forward computes on the way.
    """
    return result.requires_grad and not (result._is_view() and result.grad_fn is None)


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key of the storage of a strided tensor, which views of it share."""
    return int(tensor.untyped_storage()._cdata)


class _Written(TorchDispatchMode):
    """Notes the memory that operations write to, of views and by way of `.data`, too.

    And the memory that they read; and whether one draws random numbers.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._places: set[int] = set()
        self._read: set[int] = set()
        self.draws = False

    def has(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's memory has been written to."""
        return storage_key(tensor) in self._places

    def reads(self, tensor: torch.Tensor) -> bool:
        """True if a tensor's memory has been read, or written to."""
        return storage_key(tensor) in self._read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.draws |= torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        tensors = (e for e in pytree.tree_leaves((args, kwargs)) if isinstance(e, torch.Tensor))
        self._read.update(map(storage_key, tensors))
        schema = getattr(func, "_schema", None)  # a function of functions has none
        for index, argument in enumerate(() if schema is None else schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = args[index] if index < len(args) else kwargs.get(argument.name)
            self._places.update(
                storage_key(each)
                for each in pytree.tree_leaves(written)
                if isinstance(each, torch.Tensor)
            )
        return func(*args, **kwargs)
