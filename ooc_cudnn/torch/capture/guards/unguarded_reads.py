"""Reads of TorchDynamo's without a guard: attributes of classes, and of empty dictionaries.

Before PyTorch 2.13 it takes numbers, strings, lists of them and members of enums that it reads
through a class (`Settings.gain`, `type(self).gain`) for what can never change, and the names of
functions; since then, attributes of a metaclass. Of a dictionary whose order of keys is compared,
guards look at nothing else while it is empty: one of a class of the user's may have attributes.
"""

from __future__ import annotations

import enum
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, TypeSource
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    GetAttrVariable,
    UserDefinedClassVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker

from ooc_cudnn.torch.thread_patches import patched_in_this_thread

#: What a class tells of itself, and a function.
_NAMES, _OF_FUNCTIONS = ("__name__", "__qualname__"), ("__name__", "__module__")
#: Dictionaries without attributes of their own; TorchDynamo compares the length of all others.
_PLAIN = (dict, OrderedDict, defaultdict)


def _attribute(was: Any, self: Any, tx: Any, name: str) -> Any:
    """An attribute of a class: what it is goes by its name, and guards compare it."""
    made = was(self, tx, name)
    is_guarded = made.source is not None and type(made) is not GetAttrVariable
    if is_guarded or self.source is None:
        return made
    if tx.output.side_effects.has_pending_mutation_of_attr(self, name):
        return made
    held = _held(self.value, name)
    if ConstantVariable.is_literal(held) or isinstance(held, enum.Enum):
        return VariableTracker.build(tx, held, AttrSource(self.source, name))
    if held is self.value or any(name in vars(base) for base in self.value.__mro__):
        return made
    if not hasattr(held, "__get__"):
        return VariableTracker.build(tx, held, AttrSource(self.source, name))
    if isinstance(held, FunctionType):  # a method of its metaclass, to be called: a guard will do
        VariableTracker.build(tx, held, AttrSource(TypeSource(self.source), name)).realize()
    return made


def _held(kind: type, name: str) -> Any:
    """Return what a class or its metaclass has under a name; the class itself where nothing is."""
    return getattr(kind, name) if name in _NAMES else inspect.getattr_static(kind, name, kind)


def _called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """A call of a function of Python's; of `getattr`, and by it `a.b`, a name has its own name."""
    made = was(self, tx, args, kwargs)
    if self.fn is not getattr or type(made) is not ConstantVariable or made.source is not None:
        return made
    of, name = args[0].realize(), args[1].as_python_constant()
    if type(of) is not UserFunctionVariable or of.source is None or name not in _OF_FUNCTIONS:
        return made
    return VariableTracker.build(tx, made.as_python_constant(), AttrSource(of.source, name))


def _has_order(was: Any, self: Any, source: Any) -> bool:
    """True if the order of keys of a dictionary is compared: an empty one has none."""
    if not was(self, source):
        return False
    held = self.get(source)
    return not isinstance(held, dict) or dict.__len__(held) > 0 or type(held) in _PLAIN


@contextmanager
def unguarded_reads_guarded() -> Iterator[None]:
    """Have Dynamo compare them in each call."""
    places: list[tuple[Any, str, Any]] = [
        (UserDefinedClassVariable, "var_getattr", _attribute),
        (GuardBuilder, "requires_key_order_guarding", _has_order),
    ]
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        places.append((BuiltinVariable, "call_function", _called))
    with patched_in_this_thread(*places):
        yield
