"""Methods of the classes of a model: TorchDynamo takes for granted that they stay; we compare.

Nor does it see an attribute that is put on a class in front of that of a base.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import FunctionType
from typing import Any

import torch

_PYTORCHS = "torch."


class Methods:
    """The methods of the classes that a model's parts are of, as they are in each call.

    Of PyTorch's own classes no more than their forward.

    >>> class Model(torch.nn.Module):
    ...     def forward(self, x, gain=1.0):
    ...         return x * gain
    >>> methods = Methods(Model())
    >>> before = methods.now()
    >>> Model.forward.__defaults__ = (2.0,)
    >>> methods.now() == before
    False
    """

    def __init__(self, model: torch.nn.Module) -> None:
        kinds = dict.fromkeys(type(each) for each in model.modules())
        self._kinds = tuple(kinds)
        bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
        self._bases = tuple(
            base
            for base in bases
            if base is not object and not base.__module__.startswith(_PYTORCHS)
        )

    def now(self) -> Hashable:
        """All of them, and their defaults; equal to what it was where nothing has changed."""
        seen: list[Hashable] = [kind.forward for kind in self._kinds]
        for base in self._bases:
            seen.extend(vars(base))  # guards look at an attribute where it was found, not before
            for value in vars(base).values():
                for function in _functions(value):
                    seen.append(function)
                    seen.append(function.__code__)
                    seen.extend(map(id, function.__defaults__ or ()))
                    seen.extend(map(id, (function.__kwdefaults__ or {}).values()))
        return tuple(seen)


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions that an attribute of a class calls."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, staticmethod | classmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset):
            yield from _functions(accessor)
