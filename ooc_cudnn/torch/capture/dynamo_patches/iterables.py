"""Ranges spread over arguments, `map`, `filter`, and `max` by a key, as Python has them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import BuiltinVariable, ConstantVariable, TupleVariable
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker
from torch._dynamo.variables.iter import FilterVariable, MapVariable
from torch._dynamo.variables.lists import RangeVariable

from ooc_cudnn.torch.thread_patches import patched_in_this_thread


class _Bounds(list[Any]):
    """Start, stop and step of a range: its items, for TorchDynamo."""


def _made(was: Any, self: Any, items: Any, **how: Any) -> None:
    was(self, items, **how)
    self.items = _Bounds(self.items)


def _called(was: Any, self: Any, fn: Any, args: Any, kwargs: Any) -> None:
    """A call `f(*range(3))`, for which TorchDynamo takes the items of the range."""
    if isinstance(args, _Bounds):
        numbers = range(*(each.as_python_constant() for each in args))
        args = [ConstantVariable.create(each) for each in numbers]
    was(self, fn, args, kwargs)


def _iterator(tx: Any, iterable: Any) -> Any:
    return BuiltinVariable(iter).call_function(tx, [iterable], {})


#: What TorchDynamo reads at once before 2.13, a TorchVersion, which compares so.
_LAZY: dict[Any, Any] = (
    {map: MapVariable, filter: FilterVariable} if torch.__version__ < "2.13" else {}
)
_BETTER = {max: operator.gt, min: operator.lt}


def _best(is_better: Any, items: Any, key: Any, default: tuple[Any, ...]) -> Any:
    """Return what `max` and `min` give by a key: the first of those that are best."""
    found = default
    rank = None
    is_first = True
    for each in items:
        its = key(each)
        if is_first or is_better(its, rank):
            found, rank, is_first = (each,), its, False
    if not found:
        raise ValueError("max() or min() of what is empty")
    return found[0]


def _by_key(self: Any, tx: Any, args: Any, key: Any, others: Any) -> Any:
    items = args[0] if len(args) == 1 else TupleVariable(list(args))
    default = TupleVariable([others["default"]] if "default" in others else [])
    is_better = VariableTracker.build(tx, _BETTER[self.fn])
    best = VariableTracker.build(tx, _best)
    return tx.inline_user_function_return(best, [is_better, items, key, default], {})


def _of_builtin(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """A call of a builtin: where TorchDynamo holds how it follows one, for all traces to come."""
    if self.fn in _BETTER and kwargs.get("key") is not None:
        others = dict(kwargs)
        key = others.pop("key")
        if key.is_constant_none():
            return was(self, tx, args, others)
        return _by_key(self, tx, args, key, others)
    if self.fn in _LAZY and len(args) > 1 and not kwargs:
        fn, *iterables = args
        iterators: Any = [_iterator(tx, each) for each in iterables]
        read = iterators if self.fn is map else iterators[0]
        return _LAZY[self.fn](fn, read, mutation_type=ValueMutationNew())
    return was(self, tx, args, kwargs)


@contextmanager
def iterables_followed() -> Iterator[None]:
    """Let Dynamo call with the numbers of a range, and read what is mapped when it is asked for.

    It takes start, stop and step for the arguments. Before 2.13 it copies a list that is mapped
    or filtered at once, while Python sees what is changed in it until it is read. By a key, it asks
    Python for what is largest, and guards no key that a dictionary has not yet.
    """
    with patched_in_this_thread(
        (RangeVariable, "__init__", _made),
        (InstructionTranslatorBase, "call_function", _called),
        (BuiltinVariable, "call_function", _of_builtin),
    ):
        yield
