"""Autocast: the casts that PyTorch would make, as operations of the captured model.

A capture above autocast shows none of them: they are found by looking at what an operation casts
while it runs on tensors without data. The graph says them all, so nothing runs under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree

#: Behind the name of an operation that casts within itself: no rule is of that.
AUTOCAST = "_under_autocast"
_CASTS_ITSELF = frozenset({"aten::_to_copy", "aten::to.dtype", "aten::to.device", "aten::to.other"})
#: Kinds of devices that have a rule for each operation.
KINDS = ("cpu", "cuda")


def state() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the autocast in force: a kind of device and a dtype, each."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in KINDS if torch.is_autocast_enabled(kind)
    )


@contextmanager
def without_autocast() -> Iterator[None]:
    """Leave autocast, where it is in force."""
    with ExitStack() as stack:
        for kind in KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class Casts:
    """Casts of an operation under autocast: what runs it, and what it reads in another dtype.

    Attributes
    ----------
    function : callable
        What casts within itself, as Einstein's sums do, runs under autocast.
    inputs : mapping
        Value to the dtype that it is cast to before.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.inputs: dict[Any, torch.dtype] = {}


@contextmanager
def casts_of(
    target: Any, args: Any, kwargs: Any, read: Callable[[torch.Tensor], Any]
) -> Iterator[Casts]:
    """Look at what an operation casts while it runs in this block, on tensors without data.

    Parameters
    ----------
    read : callable
        Of a tensor that it reads the value.
    """
    casts, in_force = Casts(target), state()
    if not in_force or _name(target) in _CASTS_ITSELF:
        yield casts
        return
    tensors = [e for e in pytree.tree_leaves((args, kwargs)) if isinstance(e, torch.Tensor)]
    looking = _Looking({id(each): read(each) for each in tensors})
    with looking:
        yield casts
    if any(
        torch._C._dispatch_has_kernel_for_dispatch_key(_name(target), f"Autocast{kind.upper()}")
        for kind, _ in in_force
    ):
        casts.inputs = looking.found
    elif looking.casts:
        casts.function = _Under(target, in_force)


def _name(target: Any) -> str:
    """As the dispatcher calls an operation."""
    schema = target._schema
    return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")


@dataclass(frozen=True)
class _Under:
    """An operation under what is in force now."""

    target: Callable[..., Any]
    entered: tuple[tuple[str, torch.dtype], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with enter_autocast(self.entered):
            return self.target(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.target}{AUTOCAST} of {self.entered}"


@contextmanager
def enter_autocast(kinds: Iterable[tuple[str, torch.dtype]]) -> Iterator[None]:
    """Autocast of these, which remembers no casts."""
    with ExitStack() as stack:
        for kind, dtype in kinds:
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield


class _Looking(_python_dispatch.TorchDispatchMode):
    """Notes which of some tensors are cast, and how many casts there are."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        super().__init__()
        self.values, self.found, self.casts = values, dict[Any, torch.dtype](), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype != args[0].dtype:
            self.casts += 1
            if id(args[0]) in self.values:
                self.found.setdefault(self.values[id(args[0])], result.dtype)
        return result
