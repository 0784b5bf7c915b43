"""Autocast: the casts that PyTorch would make, as operations of the captured model.

A capture above autocast shows none of them: they are found by running autocast's kernel, or an
operation without one, on tensors without data. The graph says them all, so nothing runs under
autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: Behind the name of an operation that casts within itself: no rule is of that.
AUTOCAST = "_under_autocast"
_CASTS_ITSELF = frozenset({"aten::_to_copy", "aten::to.dtype", "aten::to.device", "aten::to.other"})
#: What a CPU's autocast widens before, and CUDA's within: there log-probabilities are rounded to
#: the dtype of the scores, and summed in float32. Here scores are widened on both.
_WIDENED = frozenset({"aten::cross_entropy_loss"})
_HALVES = (torch.float16, torch.bfloat16)
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
    """Find what an operation casts, which runs in this block on tensors without data.

    Parameters
    ----------
    read : callable
        Of a tensor that it reads the value.
    """
    casts, in_force = Casts(target), state()
    if not in_force or _name(target) in _CASTS_ITSELF:
        yield casts
        return
    kernels = [
        key
        for key in (f"Autocast{kind.upper()}" for kind, _ in in_force)
        if torch._C._dispatch_has_kernel_for_dispatch_key(_name(target), key)
    ]
    for key in kernels:
        casts.inputs |= _casts_by_kernel(key, target, args, kwargs, read)
    if kernels:
        yield casts
        return
    leaves = pytree.tree_leaves((args, kwargs))
    if _name(target) in _WIDENED:
        halves = (each for each in leaves if getattr(each, "dtype", None) in _HALVES)
        casts.inputs |= {read(each): torch.float32 for each in halves}
        yield casts
        return
    with _as_eager_composes(target), _CastsWithin(target) as within:
        yield casts
    given = {id(each): read(each) for each in leaves if isinstance(each, torch.Tensor)}
    if within.are_first and all(id(tensor) in given for tensor, _ in within.casts):
        # as of `interpolate`, which hands on to what has a kernel of autocast
        casts.inputs |= {given[id(tensor)]: dtype for tensor, dtype in within.casts}
    elif within.casts:
        casts.function = UnderAutocast(target, in_force)


def _as_eager_composes(target: Any) -> AbstractContextManager[Any]:
    """Have an operation that calls others do so as in eager PyTorch.

    The form for tensors without data that some have in Python, as `interpolate`, calls others,
    which autocast does not cast for.
    """
    has_other = torch._C.DispatchKey.CompositeImplicitAutograd in getattr(target, "py_kernels", ())
    return torch._C._DisablePythonDispatcher() if has_other else nullcontext()


def _casts_by_kernel(
    key: str, target: Any, args: Any, kwargs: Any, read: Callable[[torch.Tensor], Any]
) -> dict[Any, torch.dtype]:
    """Cast the tensors that an operation reads as its kernel of autocast does, and no more.

    What the operation itself casts, as attention casts halves to float32, is not among them.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    noted = _NotedCasts({id(each): read(each) for each in tensors})
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with noted, suppress(_Reached):
        target.redispatch(keys, *args, **kwargs)
    for dtype in noted.dtypes.difference(leaves):  # as a sum, which is told to cast
        noted.casts |= {read(each): dtype for each in tensors if each.dtype != dtype}
    return noted.casts


def _name(target: Any) -> str:
    """Name an operation as the dispatcher does."""
    schema = target._schema
    return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")


@dataclass(frozen=True)
class UnderAutocast:
    """An operation under what is in force now."""

    target: Callable[..., Any]
    entered: tuple[tuple[str, torch.dtype], ...]
    tags = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
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


class _CastsWithin(TorchDispatchMode):
    """Notes the casts within an operation, and those that it tells a dtype, which is as a cast."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = target
        #: What is cast, and to which dtype; None for what is computed in another one.
        self.casts: list[tuple[Any, torch.dtype]] = []
        #: Whether nothing is computed before the last of them.
        self.are_first, self._computes = True, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        is_told = func is not self.target and kwargs.get("dtype") is not None
        from_tensor = is_told and args and isinstance(args[0], torch.Tensor)
        is_copy = func is torch.ops.aten._to_copy.default
        if from_tensor and result.dtype != args[0].dtype:
            self.casts.append((args[0] if is_copy else None, result.dtype))
            self.are_first &= is_copy and not self._computes
        self._computes |= not is_copy and isinstance(result, torch.Tensor)
        return result


class _Reached(Exception):
    """Autocast has done its casts, and calls the operation."""


class _NotedCasts(ProxyTorchDispatchMode):
    """Notes which of some tensors are cast, until an operation is called, and with which dtypes.

    It is above autograd, where an operation that consists of others is seen before them.
    """

    def __init__(self, values: Mapping[int, Any]) -> None:
        key = torch._C.DispatchKey.PreDispatch
        TorchDispatchMode.__init__(self, key)
        self._dispatch_key, self.pre_dispatch = key, True
        self.enter_stack: list[Any] = []
        self.values, self.casts = values, dict[Any, torch.dtype]()
        self.dtypes: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.to.dtype:
            self.dtypes = {
                e for e in pytree.tree_leaves((args, kwargs)) if isinstance(e, torch.dtype)
            }
            raise _Reached
        result = func(*args, **(kwargs or {}))
        if id(args[0]) in self.values:
            self.casts[self.values[id(args[0])]] = result.dtype
        return result
