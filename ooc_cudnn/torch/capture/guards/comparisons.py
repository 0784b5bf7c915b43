"""Comparisons by identity in forward: `a is b`, `a in parts`, a key that is an object."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ooc_cudnn.torch.places import source_name
from ooc_cudnn.torch.thread_patches import patched_in_this_thread

#: What compares two objects, that have no other way, by what they are.
_BY_IDENTITY = (operator.is_, operator.is_not, operator.eq, operator.ne)
_INSTRUCTIONS = ("is", "is not", "==", "!=")


class Compared:
    """Objects that forward compares by identity, or looks up by it."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}
        #: Sources of what TorchDynamo knows by another one.
        self._others: list[tuple[Any, Any]] = []

    def note(self, *variables: Any) -> None:
        """Note what is looked up, or is a constant: numbers and names are told by guards."""
        for each in variables:
            if not _is_told(each):
                self._variables[id(each)] = each

    def note_pair(self, *pair: Any) -> None:
        """Note what is compared with what; most is with None."""
        if not any(map(_is_told, pair)):
            self.note(*pair)

    def note_other(self, source: Any, other: Any) -> None:
        """Note two sources of one object."""
        self._others.append((source, other))

    def names(self) -> list[str]:
        """The names of all that was compared."""
        sources = (getattr(each.unwrap(), "source", None) for each in self._variables.values())
        found = {source_name(each) for each in sources if each is not None}
        others = [(source_name(source), source_name(other)) for source, other in self._others]
        found.update(other for name, other in others if name in found)
        return sorted(each for each in found if each)


def _is_told(variable: Any) -> bool:
    # `isinstance` of what is not looked at yet would have it looked at, and guarded
    return issubclass(type(variable.unwrap()), torch._dynamo.variables.ConstantVariable)


@contextmanager
def comparisons_noted() -> Iterator[Compared]:
    """Note what TorchDynamo compares by what it is."""
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import builder, builtin, dicts, functions, lists, user_defined

    noted = Compared()

    def by_instruction(was: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        noted.note_pair(*args)
        return was(tx, args, kwargs)

    def called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in _BY_IDENTITY:
            noted.note_pair(*args)
        elif self.fn is id:
            noted.note(*args)
        return was(self, tx, args, kwargs)

    def compared(was: Any, *pair: Any) -> Any:
        noted.note_pair(*pair)
        return was(*pair)

    def constant(was: Any, self: Any) -> Any:
        noted.note(self)
        return was(self)

    def contained(was: Any, items: Any, search: Any, *args: Any, **how: Any) -> Any:
        held = list(items)
        noted.note(search, *held)
        return was(held, search, *args, **how)

    def in_list(was: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "index":
            noted.note(*args, *self.items)
        return was(self, tx, name, args, kwargs)

    def of_object(was: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("__eq__", "__ne__"):
            noted.note(self, *args)
        return was(self, tx, name, args, kwargs)

    def hashed(was: Any, self: Any, variable: Any) -> None:
        was(self, variable)
        noted.note(self.vt)

    def duplicate(was: Any, source: Any, other: Any) -> Any:
        if other is not None:
            noted.note_other(other, source)
        return was(source, other)

    places: list[tuple[Any, str, Any]] = [
        *((symbolic_convert.compare_op_handlers, name, by_instruction) for name in _INSTRUCTIONS),
        (builtin.BuiltinVariable, "call_function", called),
        (lists, "iter_contains", contained),
        (lists.BaseListVariable, "call_method", in_list),
        (functions.UserFunctionVariable, "as_python_constant", constant),
        (builder, "make_dupe_guard", duplicate),
    ]
    if torch.__version__ < "2.13":
        held: Any = dicts.ConstDictVariable
        key: Any = held._HashableTracker
        places.append((user_defined.UserDefinedObjectVariable, "call_method", of_object))
    else:
        from torch._dynamo.variables import hashable, object_protocol

        key = hashable.HashableTracker
        places.append((object_protocol, "vt_identity_compare", compared))
        places.append((torch._dynamo.utils, "iter_contains", contained))
    with patched_in_this_thread(*places, (key, "__init__", hashed)):
        yield noted
