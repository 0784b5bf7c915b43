"""Extra guards that TorchDynamo lacks: tensors changed in place, shared memory, classes, names.

TorchDynamo compares what forward reads by versions of dictionaries: where that of a module and
those of its parts have not changed, nothing within is looked at. `requires_grad_()`, `.data = ...`
and `module.__class__ = ...` change none.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import os
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import compress
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from ooc_cudnn.torch.capture.guards.constant_types import types_in
from ooc_cudnn.torch.places import source_name
from ooc_cudnn.torch.tracing.graph import Graph
from ooc_cudnn.torch.tracing.overlaps import WrittenMemory

#: Settings of TorchDynamo by which guards compare versions of dictionaries.
BY_DICTIONARIES = (
    "skip_tensor_guards_with_matching_dict_tags",
    "guard_nn_modules_using_dict_tags",
    "use_recursive_dict_tags_for_guards",
)
#: Names by which code asks for the dictionary of an object; and the folder of PyTorch's own code.
_OF_DICTIONARIES = frozenset({"__dict__", "vars"})
_PYTORCH = os.path.dirname(torch.__file__)
#: What cannot change without a change of what holds it.
_FIXED = frozenset({
    object, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device,
    torch.Size, type, types.FunctionType, types.ModuleType,
})  # fmt: skip
#: That, and what is always looked at where a dictionary holds it.
_PLAIN = _FIXED | {dict, OrderedDict, list, set}


def look_at_guards(model: torch.nn.Module, missed: Collection[str]) -> Names:
    """Look at what guards of what is traced now will compare.

    They compare versions of dictionaries where these tell all: of numbers, tensors and parts of the
    model in plain dictionaries. Versions do not tell of attributes of tensors, of objects that pass
    for numbers or dictionaries (an `IntEnum`, an `EasyDict`), of methods of lists, and of modules
    elsewhere.

    Parameters
    ----------
    model : Module
    missed : collection of str
        Errors of lookups that forward has caught.

    Returns
    -------
    Names
        Those that forward may have looked for.
    """
    from ooc_cudnn.torch.capture.guards.key_orders import guard_orders  # it imports TorchDynamo

    output = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
    parts = set(map(id, model.modules()))
    scope = {**_functions_of_guards(), "L": output.local_scope, "G": output.global_scope}
    values: dict[str, Any] = {}
    found: dict[str, Any] = {}
    guard_orders(output, lambda source: _value_of(source, scope, found))
    constants: list[Any] = []
    are_told = True
    for guard in output.guards:
        name = source_name(guard.originating_source)
        if not name:  # of the process
            continue
        if name not in values:
            of_modes = "get_torch_function_mode_stack_at" in name
            with _modes_as_called() if of_modes else nullcontext():
                values[name] = _value_of(guard.originating_source, scope, found)
        if guard.create_fn_name() in ("CONSTANT_MATCH", "EQUALS_MATCH"):
            constants.append(values[name])
        are_told = are_told and _is_told(values[name], guard.create_fn_name(), parts)
    for setting in BY_DICTIONARIES:
        if are_told:
            setattr(torch._dynamo.config, setting, True)
    are_absent_names_asked = bool(missed) or _asks_for_dictionaries(output)
    stored = {
        source_name(variable.source): set(names)
        for variable, names in output.side_effects.store_attr_mutations.items()
        if variable.source is not None and not are_absent_names_asked
    }
    looked_into = [(value, stored.get(name, ())) for name, value in values.items()]
    return Names(looked_into, constants, with_dictionaries=bool(missed))


def _asks_for_dictionaries(output: Any) -> bool:
    """True if a user's code asks for `__dict__` or `vars`: a name that is not there is no guard."""
    return any(
        _OF_DICTIONARIES.intersection(code.co_names) and not code.co_filename.startswith(_PYTORCH)
        for code in output.tracing_context.traced_code
    )


@contextmanager
def noting_missed_lookups() -> Iterator[list[str]]:
    """Note the errors by which TorchDynamo traces lookups that find nothing, in all threads."""
    missed: list[str] = []
    exc = torch._dynamo.exc
    kinds: list[Any] = [exc.ObservedAttributeError, exc.ObservedLookupError]

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        missed.append(type(self).__name__)
        exc.ObservedException.__init__(self, *args, **kwargs)

    for kind in kinds:
        kind.__init__ = noted
    try:
        yield missed
    finally:
        for kind in kinds:
            del kind.__init__


class Names:
    """Counts of the names in objects that forward looks into: guards pass over new ones.

    Parameters
    ----------
    looked_into : iterable
        Pairs: a value, and the names that forward itself leaves in it.
    constants : iterable
        What guards compare with itself: a tuple, whatever has become of a list within.
    with_dictionaries : bool
        Whether keys of dictionaries count, too: forward has caught the error of a lookup.
    """

    def __init__(
        self,
        looked_into: Iterable[tuple[Any, Collection[str]]],
        constants: Iterable[Any] = (),
        *,
        with_dictionaries: bool = False,
    ) -> None:
        counts: dict[int, tuple[Callable[[], Any], int, int]] = {}
        self._files: list[_File] = []
        tuples = (each for each in constants if type(each) is tuple and not _is_fixed(each))
        self._tuples = [(each, copy.deepcopy(each), types_in(each)) for each in tuples]
        self._dictionaries: list[tuple[Sized, int]] = []
        self._metaclasses: dict[type, tuple[tuple[str, ...], list[Any]]] = {}
        for value, stored in looked_into:
            metaclasses = inspect.getmro(type(value)) if isinstance(value, type) else ()
            for kind in metaclasses:
                if _is_a_users(kind):
                    self._metaclasses[kind] = tuple(vars(kind)), list(vars(kind).values())
            if with_dictionaries and isinstance(value, dict | torch.nn.Module):
                mine = (value,) if isinstance(value, dict) else _names_of_module(value)
                self._dictionaries += [(each, len(each)) for each in mine]
            for owner in (value, *(kind for kind in type(value).__mro__ if _is_a_users(kind))):
                names = getattr(owner, "__dict__", None)
                if names is None or not _is_a_users(owner):
                    continue
                if isinstance(owner, types.ModuleType):
                    self._files.append(_File(owner))
                    continue
                more = len(set(stored).difference(names)) if owner is value else 0
                counts[id(owner)] = (_weak(owner), len(names), len(names) + more)
        self._owners = [get for get, *_ in counts.values()]
        self._allowed = [allowed for _, *allowed in counts.values()]
        self._now: list[int] = []

    def are_as_they_were(self) -> bool:
        """True if no name has come or gone, but for those that forward leaves."""
        return (
            self._have_as_many()
            and all(len(each) == count for each, count in self._dictionaries)
            and all(each.has_as_many() for each in self._files)
            and all(_has_still(each, *held) for each, held in self._metaclasses.items())
            and all(e == before and types_in(e) == types for e, before, types in self._tuples)
        )

    def _have_as_many(self) -> bool:
        """True if all that is counted has as many names as before, or as forward leaves it with."""
        try:
            now = list(map(len, map(_NAMES, map(operator.call, self._owners))))
        except AttributeError:  # one of them is gone
            now = [-1 if (owner := get()) is None else len(vars(owner)) for get in self._owners]
        if now == self._now:
            return True
        pairs = zip(now, self._allowed, strict=True)
        are_right = all(number in allowed or number == -1 for number, allowed in pairs)
        if are_right:
            self._now = now
        return are_right


def _has_still(kind: type, names: tuple[str, ...], values: Sequence[Any]) -> bool:
    """True if a metaclass has what it had: guards look at no operator of a class (`K[0]`)."""
    held = vars(kind)
    return tuple(held) == names and all(map(operator.is_, held.values(), values))


#: `vars`, in a third of its time.
_NAMES = operator.attrgetter("__dict__")


def _is_fixed(value: tuple[Any, ...]) -> bool:
    """True if none of its elements can change."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _File:
    """The number of names in a file of Python, without those that TorchDynamo puts there."""

    def __init__(self, module: types.ModuleType) -> None:
        self._held, self._count = vars(module), _count_of(vars(module))
        #: All of them as they were found last.
        self._names = set(self._held)

    def has_as_many(self) -> bool:
        """True if there are as many as there were."""
        if self._held.keys() == self._names:
            return True
        if _count_of(self._held) != self._count:
            return False
        self._names = set(self._held)
        return True


def _count_of(names: Iterable[str]) -> int:
    return sum(name[:2] != "__" for name in names)


def _names_of_module(module: torch.nn.Module) -> tuple[Sized, ...]:
    return module._parameters, module._buffers, module._modules


def _is_a_users(value: Any) -> bool:
    """True if names in it are a user's: those of libraries come with each import."""
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, dict | torch.Tensor):
        return False
    named = isinstance(value, type | types.FunctionType)
    home = value.__name__ if isinstance(value, types.ModuleType) else None
    home = home or (value if named else type(value)).__module__ or ""  # a function made by `eval`
    return home.partition(".")[0] not in ("builtins", "numpy", "ooc_cudnn", "torch")


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # there is none of a SimpleNamespace
        return lambda: value


def _functions_of_guards() -> dict[str, Any]:
    """The functions that guards call in their expressions."""
    found: dict[str, Any] = torch._dynamo.guards._get_closure_vars()
    return found


class _Nothing:
    """The value of a name that is missing: guards also compare that something is."""


def _modes_as_called() -> AbstractContextManager[None]:
    """Modes of torch functions, such as a default device, as they were before the trace began."""
    modes = torch._dynamo.variables.torch_function.torch_function_mode_stack_state_mgr
    restored: AbstractContextManager[None] = modes.temp_restore_stack()
    return restored


def _value_of(source: Any, scope: dict[str, Any], found: dict[str, Any]) -> Any:
    """The value of a source: a step from that of the one it is based on, which may be known."""
    name = source_name(source)
    if name not in found:
        base = getattr(source, "base", None)
        step, held = name, scope
        if base is not None and source_name(base):
            of = _value_of(base, scope, found)
            if of is _Nothing:
                return _Nothing
            step, held = source._name_template.format("_base"), {**scope, "_base": of}
        try:
            found[name] = eval(_code_of(step), held)
        except (AttributeError, LookupError, NameError, TypeError):
            found[name] = _Nothing
    return found[name]


@functools.lru_cache(2**12)
def _code_of(source: str) -> types.CodeType:
    return compile(source, "<what TorchDynamo calls it>", "eval")


def _is_told(value: Any, guard: str, parts: set[int]) -> bool:
    if value is _Nothing:
        return False
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return guard == "TENSOR_MATCH"
    if isinstance(value, torch.nn.Module):
        return id(value) in parts
    if type(value) is tuple:
        return all(type(each) in (*_FIXED, torch.Tensor) for each in value)
    if type(value) is types.BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    if type(value) is types.MethodType:
        return id(value.__self__) in parts
    return type(value) in _PLAIN


class WatchedState:
    """A model's state, as it was when it was captured: tensors, classes of parts, names.

    Parameters
    ----------
    graph : Graph
        What was captured.
    tensors : sequence
        What it was given, in its order.
    model : Module
    names : Names

    Examples
    --------
    >>> model = torch.nn.Linear(2, 2)
    >>> held = WatchedState(Graph((), (), (), ()), (), model, Names(()))
    >>> model.bias.requires_grad_(False) is model.bias
    True
    >>> held.are_as_they_were(())
    False
    """

    def __init__(
        self, graph: Graph, tensors: Sequence[Any], model: torch.nn.Module, names: Names
    ) -> None:
        self._names = names
        pairs = zip(graph.given, tensors, strict=True)
        self._is_read = [value.is_held for value, _ in pairs]
        read = list(compress(tensors, self._is_read))
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
        #: The places of arguments that are changed in place with their history: none is a leaf.
        self._changed = [
            graph.given.index(write.target)
            for write in graph.writes
            if write.target.kind == "input" and write.target.requires_grad
        ]

    def are_as_they_were(self, tensors: Sequence[Any]) -> bool:
        """True if all is as it was, of what a call is given; what was replaced, guards compare."""
        read = tuple(compress(tensors, self._is_read))
        return (
            bool(self._read.check(*read))
            and all((e := each()) is None or guards.check(e) for each, guards in self._others)
            and self._have_their_classes()
            and self._names.are_as_they_were()
            and self._written.shared(tensors, read) is None
            and not any(tensors[at].is_leaf for at in self._changed)
        )

    def _have_their_classes(self) -> bool:
        now = list(map(type, map(operator.call, self._parts)))
        if now == self._classes:
            return True
        gone = type(None)
        return all(one in (other, gone) for one, other in zip(now, self._classes, strict=True))


def _guards(tensors: Sequence[torch.Tensor]) -> TensorGuards:
    """Guards of dtypes, devices, shapes, strides, and of whether a gradient is asked for."""
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


def _tensors(held: dict[Any, Any], within: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in a dictionary, and in dictionaries that it holds; not in those seen already."""
    within.add(id(held))
    for value in held.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict) and id(value) not in within:
            yield from _tensors(value, within)
