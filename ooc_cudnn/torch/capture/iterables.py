"""Ranges that are spread over arguments, and `map` and `filter`, as Python has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import BuiltinVariable, ConstantVariable
from torch._dynamo.variables.base import ValueMutationNew
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


@contextmanager
def iterables_followed() -> Iterator[None]:
    """Let Dynamo call with the numbers of a range, and read what is mapped when it is asked for.

    It takes start, stop and step for the arguments. Before 2.13 it copies a list that is mapped
    or filtered at once, while Python sees what is changed in it until it is read.
    """
    places: list[tuple[Any, str, Any]] = [
        (RangeVariable, "__init__", _made),
        (InstructionTranslatorBase, "call_function", _called),
    ]
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        places.append((BuiltinVariable, "call_map", _mapped))
        places.append((BuiltinVariable, "call_filter", _filtered))
    with patched_in_this_thread(*places):
        yield
