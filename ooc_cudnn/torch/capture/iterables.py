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


def _mapped(was: Any, self: Any, tx: Any, fn: Any, *iterables: Any) -> Any:
    iterators: Any = [_iterator(tx, each) for each in iterables]
    return MapVariable(fn, iterators, mutation_type=ValueMutationNew())


def _filtered(was: Any, self: Any, tx: Any, fn: Any, iterable: Any) -> Any:
    return FilterVariable(fn, _iterator(tx, iterable), mutation_type=ValueMutationNew())


_BETTER = {max: operator.gt, min: operator.lt}


def _best(is_better: Any, items: Any, key: Any, default: tuple[Any, ...]) -> Any:
    """What `max` and `min` give by a key: the first of those that are best."""
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


def _by_key(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    key = kwargs.get("key")
    if self.fn not in _BETTER or key is None:
        return was(self, tx, args, kwargs)
    if key.is_constant_none():
        return was(self, tx, args, {name: kwargs[name] for name in kwargs if name != "key"})
    items = args[0] if len(args) == 1 else TupleVariable(list(args))
    default = TupleVariable([kwargs["default"]] if "default" in kwargs else [])
    is_better = VariableTracker.build(tx, _BETTER[self.fn])
    best = VariableTracker.build(tx, _best)
    return tx.inline_user_function_return(best, [is_better, items, key, default], {})


@contextmanager
def iterables_followed() -> Iterator[None]:
    """Let Dynamo call with the numbers of a range, and read what is mapped when it is asked for.

    It takes start, stop and step for the arguments. Before 2.13 it copies a list that is mapped
    or filtered at once, while Python sees what is changed in it until it is read. By a key, it asks
    Python for what is largest, and guards no key that a dictionary has not yet.
    """
    places: list[tuple[Any, str, Any]] = [
        (RangeVariable, "__init__", _made),
        (InstructionTranslatorBase, "call_function", _called),
        (BuiltinVariable, "call_function", _by_key),
    ]
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        places.append((BuiltinVariable, "call_map", _mapped))
        places.append((BuiltinVariable, "call_filter", _filtered))
    with patched_in_this_thread(*places):
        yield
