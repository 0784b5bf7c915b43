"""What a capture's guards pass over: tensors that change in place, their memory, parts' classes.

TorchDynamo compares what forward reads by versions of dictionaries: where that of a module and
those of its parts have not changed, nothing within is looked at. `requires_grad_()`, `.data = ...`
and `module.__class__ = ...` change none.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch._dynamo import guards
from torch._dynamo.symbolic_convert import InstructionTranslator

from ooc_cudnn.torch.graph import Graph
from ooc_cudnn.torch.overlaps import WrittenMemory
from ooc_cudnn.torch.places import source_name

#: Settings of TorchDynamo by which guards compare versions of dictionaries.
BY_DICTIONARIES = (
    "skip_tensor_guards_with_matching_dict_tags",
    "guard_nn_modules_using_dict_tags",
    "use_recursive_dict_tags_for_guards",
)
#: What cannot change without a change of the dictionary that holds it, or is always looked at.
_PLAIN = frozenset({
    object, type(None), bool, int, float, complex, str, bytes, dict, OrderedDict, list, set,
    torch.dtype, torch.device, torch.Size, type, types.FunctionType, types.ModuleType,
})  # fmt: skip


def compare_by_versions_where_safe(model: torch.nn.Module) -> None:
    """Have guards of what is traced now compare versions of dictionaries, where these tell all.

    Versions tell of numbers, tensors and parts of the model in plain dictionaries. They do not of
    attributes of tensors, of objects that pass for numbers or dictionaries (an `IntEnum`, an
    `EasyDict`), of methods of lists, and of modules elsewhere.
    """
    output = InstructionTranslator.current_tx().output
    parts = set(map(id, model.modules()))
    scope = {**_functions_of_guards(), "L": output.local_scope, "G": output.global_scope}
    values: dict[str, Any] = {}
    for guard in output.guards:
        name = source_name(guard.originating_source)
        if not name:  # of the process
            continue
        if name not in values:
            values[name] = _value_of(name, scope)
        if not _is_told(values[name], guard.create_fn_name(), parts):
            return
    for setting in BY_DICTIONARIES:
        if hasattr(torch._dynamo.config, setting):  # older versions have fewer
            setattr(torch._dynamo.config, setting, True)


def _functions_of_guards() -> dict[str, Any]:
    """What guards call in their expressions."""
    found: dict[str, Any] = getattr(guards, "_get_closure_vars", dict)()
    return found


class _Nothing:
    """Of a name that there is not: guards also compare that something is missing."""


def _value_of(name: str, scope: dict[str, Any]) -> Any:
    try:
        return eval(name, scope)
    except (AttributeError, LookupError, NameError, TypeError):
        return _Nothing


def _is_told(value: Any, guard: str, parts: set[int]) -> bool:
    if value is _Nothing:
        return False
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return guard == "TENSOR_MATCH"
    if isinstance(value, torch.nn.Module):
        return id(value) in parts
    if type(value) is tuple:
        return all(type(each) in (*_PLAIN, torch.Tensor) for each in value)
    if type(value) is types.BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    if type(value) is types.MethodType:
        return id(value.__self__) in parts
    return type(value) in _PLAIN


class Held:
    """The tensors that a model holds, as they were when it was captured, and its parts' classes.

    Parameters
    ----------
    graph : Graph
        What was captured.
    tensors : sequence
        What it was given, in its order.
    model : Module

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> held = Held(Graph((), (), (), ()), (), model)
    >>> model.bias.requires_grad_(False) is model.bias
    True
    >>> held.are_as_they_were(())
    False
    """

    def __init__(self, graph: Graph, tensors: Sequence[Any], model: torch.nn.Module) -> None:
        given = zip(graph.given, tensors, strict=True)
        self._places = [at for at, (value, _) in enumerate(given) if value.is_held]
        read = [tensors[at] for at in self._places]
        self._read = _guards(read)
        among = set(map(id, read))
        parts = list(model.modules())
        #: What the graph does not read: forward may have looked at it.
        held = (each for part in parts for each in _tensors(vars(part), set()))
        others = {id(each): each for each in held if id(each) not in among}
        self._others = [(weakref.ref(each), _guards([each])) for each in others.values()]
        self._parts = [weakref.ref(part) for part in parts]
        self._classes = list(map(type, parts))
        self._written = WrittenMemory(graph)

    def are_as_they_were(self, tensors: Sequence[Any]) -> bool:
        """Whether all is as it was, of what a call is given; what was replaced, guards compare."""
        return (
            bool(self._read.check(*[tensors[at] for at in self._places]))
            and all((e := each()) is None or guards.check(e) for each, guards in self._others)
            and self._have_their_classes()
            and self._written.shared(tensors) is None
        )

    def _have_their_classes(self) -> bool:
        now = list(map(type, map(operator.call, self._parts)))
        if now == self._classes:
            return True
        gone = type(None)
        return all(one in (other, gone) for one, other in zip(now, self._classes, strict=True))


def _guards(tensors: Sequence[torch.Tensor]) -> TensorGuards:
    """What compares dtypes, devices, shapes, strides, and whether a gradient is asked for."""
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


def _tensors(held: dict[Any, Any], within: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in a dictionary, and in dictionaries that it holds; not in those seen already."""
    within.add(id(held))
    for each in held.values():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, dict) and id(each) not in within:
            yield from _tensors(each, within)
