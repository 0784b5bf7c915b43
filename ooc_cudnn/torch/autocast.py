"""Autocast: the casts that PyTorch would make, as operations of the captured model.

torch.export shows none of them: they are found by running each operation once more, on tensors
without data, and looking at what it casts. The graph says them all, so nothing runs under autocast.
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
    """What is in force: a kind of device and a dtype, each."""
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
    """What autocast does to the operations of a model that is being read."""

    @contextmanager
    def under(
        self, kind: str, dtype: torch.dtype | None, enabled: bool, cached: bool | None
    ) -> Iterator[None]:
        """A block of the model with an autocast of its own."""
        with torch.autocast(kind, dtype, enabled, cached):
            yield

    def of(self, node: Any) -> tuple[Callable[..., Any], Mapping[str, torch.dtype]]:
        """What runs an operation, and which of the nodes that it reads are cast before.

        What casts within itself, as Einstein's sums do, is run under autocast.
        """
        target = node.target
        if not state() or _name(target) in _CASTS_ITSELF:
            return target, {}
        looking = _seen(node)
        if any(
            torch._C._dispatch_has_kernel_for_dispatch_key(_name(target), f"Autocast{kind.upper()}")
            for kind, _ in state()
        ):
            return target, looking.found
        return (_Under(target, state()) if looking.casts else target), {}


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
        with entered(self.entered):
            return self.target(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.target}{AUTOCAST} of {self.entered}"


@contextmanager
def entered(kinds: Iterable[tuple[str, torch.dtype]]) -> Iterator[None]:
    """Autocast of these, which remembers no casts."""
    with ExitStack() as stack:
        for kind, dtype in kinds:
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield


def _seen(node: Any) -> _Looking:
    """What an operation casts, on tensors without data."""
    looking = _Looking({id(each.meta.get("val")): each.name for each in node.all_input_nodes})
    args, kwargs = pytree.tree_map(
        lambda each: each.meta["val"] if isinstance(each, torch.fx.Node) else each,
        (tuple(node.args), dict(node.kwargs)),
    )
    with entered(state()), looking:
        node.target(*args, **kwargs)
    return looking


class _Looking(_python_dispatch.TorchDispatchMode):
    """Notes which of some tensors are cast, and how many casts there are."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.found, self.casts = names, dict[str, torch.dtype](), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.dtype != args[0].dtype:
            self.casts += 1
            if id(args[0]) in self.names:
                self.found.setdefault(self.names[id(args[0])], made.dtype)
        return made
