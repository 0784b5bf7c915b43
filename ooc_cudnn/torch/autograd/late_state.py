"""State that hooks, functions' backward and checkpoints read in backward: compared with forward's.

They are traced with the forward that they are in. Between that and backward a user may put another
buffer, attribute or global in place, or the next forward may. PyTorch would read that.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import (
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

from ooc_cudnn.torch.errors import LateChangeError, UnsupportedModelError
from ooc_cudnn.torch.places import of_arguments, told_name, users_frame

_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device)
_FIXED = frozenset((*_PLAIN, bool, type(None)))
_MAPPINGS = (dict, MappingProxyType)
_CONTAINERS = (list, tuple, deque, *_MAPPINGS)
#: These have reads of what is in them.
_WRITTEN = (list, set, *_MAPPINGS)
#: In names of keys: of `torch.float32`, of `device(type='cpu')`.
_NAMES = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
_GONE = object()
#: What an object that is not there raises.
_NOT_THERE = (AttributeError, KeyError, IndexError, NameError, TypeError)
_ROOT = re.compile(r"\bG\['([^']+)'\]")
#: What a function has for arguments that it is not given.
DEFAULTS = ("__defaults__", "__kwdefaults__")
#: What forward returns, in names.
RESULT = "R"
_HELD = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class LateRead:
    """A name that is read when backward runs.

    Attributes
    ----------
    where : str or dict
        TorchDynamo's name of the object whose attribute it is, or of the cell in which a function
        has it; or the globals of a function.
    name : str, optional
        None if what is in the object itself is read: it is a container.
    who : str
        What reads it.
    remedy : str
        How it would read in forward.
    is_made : bool
        Whether forward makes the object, so that it is there once it is over.
    entry : tuple
        The key of an entry, if no more is read of a container.
    asks : bool
        Whether no more is read than if there is such a name.
    is_handle : bool
        Whether what is read in a container there is noted by itself.
    """

    where: Any
    name: str | None
    who: str
    remedy: str = ""
    is_made: bool = False
    entry: tuple[Any, ...] = ()
    asks: bool = False
    is_handle: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all that are alike."""
        where = self.where if isinstance(self.where, str) else id(self.where)
        return where, self.name, self.entry, self.asks, self.is_handle, self.who

    def value(self, owner: Any) -> Any:
        """Value that is there now."""
        if self.entry:
            return _entry(owner, *self.entry)
        if self.name is None:
            return owner
        if not isinstance(self.where, str):
            return owner.get(self.name, _GONE)
        found = _held_by(owner, self.name)[1]
        return found is not _GONE if self.asks else found

    def told(self, forward: Callable[..., Any] | None) -> str:
        """Name of it as its user writes it, who calls a model of that forward."""
        where = self.where if isinstance(self.where, str) else ""
        source = where if self.name is None else f"{where}.{self.name}"
        source += "".join(f"[{key!r}]" for key in self.entry)
        if where.startswith(RESULT):
            within = told_name(f"L{source.removeprefix(RESULT)}") if source != RESULT else ""
            return f"the model's output ({within})" if within else "the model's output"
        return told_name(of_arguments(source, forward))

    def is_of_pytorch(self, owner: Any) -> bool:
        """True if a module or a class of PyTorch's has it, and not an object that the user made."""
        if not isinstance(self.where, str):
            return _is_pytorchs(self.where.get("__name__"))
        if self.name is None:
            return False
        holder, _ = _held_by(owner, self.name)
        if self.name in DEFAULTS and isinstance(owner, FunctionType | MethodType):
            return _is_pytorchs(owner.__module__)
        if isinstance(holder, ModuleType):
            return _is_pytorchs(holder.__name__)
        return isinstance(holder, type) and _is_pytorchs(holder.__module__)


class LateState:
    """Values of late reads when forward ends, and again before backward.

    It holds the objects that are read of, as what reads them would.

    Parameters
    ----------
    reads : sequence of LateRead
    scope : mapping
        What their names begin with: "L" and "G". Names are those of before forward, which may put
        other objects there.
    """

    def __init__(self, reads: Sequence[LateRead], scope: Mapping[str, Any]) -> None:
        self._scope = dict[str, Any](scope)
        self._forward = (self._scope.get("L") or {}).get("forward")
        self._reads = [each for each in reads if not each.is_made]
        self._owners = _owners(self._reads, self._scope)
        self._made = [each for each in reads if each.is_made]
        self._seen = list[Any]()

    def note(self, result: Any = None, given: Mapping[int, Any] = MappingProxyType({})) -> None:
        """Note what is there now that forward is over.

        Parameters
        ----------
        result : any
            What forward has returned.
        given : mapping
            Containers of the user's, by the `id` of what forward was given in their place.
        """
        self._owners += _owners(self._made, {**self._scope, RESULT: result})
        self._reads += self._made
        if given:
            self._owners = [given.get(id(each), each) for each in self._owners]
        self._scope, self._made = {}, []
        self._seen = self._now()

    def check(self) -> None:
        """Refuse a backward for which something else is there.

        Raises
        ------
        LateChangeError
            With its name.
        """
        for read, before, now in zip(self._reads, self._seen, self._now(), strict=True):
            if not _alike(before, now):
                raise LateChangeError(
                    f"{read.who} reads {read.told(self._forward)}, which has changed between "
                    "forward and backward, and a plan has it as forward left it: "
                    f"{_remedy(read)}{users_frame()}"
                )

    def _now(self) -> list[Any]:
        pairs = zip(self._reads, self._owners, strict=True)
        found = ((read, read.value(owner)) for read, owner in pairs)
        return [_Handle(each) if read.is_handle else _seen(each) for read, each in found]


class _Handle:
    """A value that is read, of which what is in it matters only if it is another one."""

    def __init__(self, value: Any) -> None:
        self._is_container = isinstance(value, _WRITTEN) or type(value) is deque
        self._value, self._seen = value if self._is_container else None, _seen(value)

    def is_like(self, other: _Handle) -> bool:
        """True if it is the same container, or what a read of it would see is the same."""
        if self._is_container and self._value is other._value:
            return True
        return _alike(self._seen, other._seen)


def _owners(reads: Sequence[LateRead], scope: dict[str, Any]) -> list[Any]:
    """Return the objects that have the names of reads."""
    names = dict.fromkeys(each.where for each in reads if isinstance(each.where, str))
    scope = {**_NAMES, **scope}
    try:
        objects = eval(_code(f"({''.join(f'{each},' for each in names)})"), scope)
    except _NOT_THERE:
        objects = [_object(each, scope) for each in names]
    found = dict(zip(names, objects, strict=True))
    return [found[each.where] if isinstance(each.where, str) else each.where for each in reads]


def _object(name: str, scope: dict[str, Any]) -> Any:
    try:
        return eval(_code(name), scope)
    except _NOT_THERE:
        return _GONE


def _remedy(read: LateRead) -> str:
    if read.name == "training":
        return "call model.train() and model.eval() after backward"
    return "change it after backward" + (f", or {read.remedy}" if read.remedy else "")


def roots_of(reads: Iterable[LateRead], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the names of reads begin with, of the globals of a capture.

    These are modules and the like, which nobody replaces. The globals themselves are emptied when
    the capture is let go of, and a backward may come later.
    """
    sources = (each.where for each in reads if isinstance(each.where, str))
    names = {name for source in sources for name in _ROOT.findall(source)}
    return {name: scope[name] for name in names if name in scope}


def users_alone(reads: Sequence[LateRead], scope: Mapping[str, Any]) -> list[LateRead]:
    """Reads but for those of what is PyTorch's own, which nobody replaces in the midst of a step.

    These are most by far: functions of its modules, methods of its layers.

    Raises
    ------
    UnsupportedModelError
        If one has a name by which nothing is found.
    """
    lasting = [each for each in reads if not each.is_made]
    pairs = list(zip(lasting, _owners(lasting, dict(scope)), strict=True))
    for read, owner in pairs:
        if owner is _GONE:
            raise UnsupportedModelError(
                f"{read.who} reads {read.told(None)}, which the library does not find again, and "
                f"others may change it before backward: {read.remedy}"
            )
    users = [each for each, owner in pairs if not each.is_of_pytorch(owner)]
    return users + [each for each in reads if each.is_made]


def _is_pytorchs(name: Any) -> bool:
    return str(name).partition(".")[0] == "torch"


def _held_by(owner: Any, name: str) -> tuple[Any, Any]:
    """Find what holds an attribute, and its value, without a call of what the user has written."""
    if isinstance(owner, CellType):  # of a function, whose variable has the name
        return owner, next(iter(_contents(owner)), _GONE)
    if isinstance(owner, torch.Tensor):  # PyTorch warns where a gradient is never there
        is_there = name != "grad" or owner.is_leaf or owner.retains_grad
        return owner, getattr(owner, name, _GONE) if is_there else None
    if name in DEFAULTS and isinstance(owner, FunctionType | MethodType):
        return owner, getattr(owner, name)
    own = getattr(owner, "__dict__", {})
    if name in own:
        return owner, own[name]
    for kind in _HELD if isinstance(owner, torch.nn.Module) else ():
        if name in own[kind]:
            return owner, own[kind][name]
    kinds = (*getattr(owner, "__mro__", ()), *type(owner).__mro__)
    holder = next((kind for kind in kinds if name in vars(kind)), None)
    found = _GONE if holder is None else vars(holder)[name]
    if isinstance(found, MemberDescriptorType) and isinstance(owner, found.__objclass__):
        return owner, getattr(owner, name, _GONE)  # one of __slots__
    return holder, found


def _entry(container: Any, key: Any) -> Any:
    """An entry, without what a class of the user's makes where there is none."""
    if isinstance(container, dict):
        return dict.get(container, key, _GONE)
    try:
        return container[key]
    except (LookupError, TypeError):
        return _GONE


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


@functools.lru_cache(2**14)
def _code(source: str) -> CodeType:
    return compile(source, "<what TorchDynamo calls it>", "eval")


def _seen(value: Any) -> Any:
    """A value that stays what it is; or else a list of it and of what is in it.

    Each of these has beside it what may change in it, but for tensors: `LateTensors` looks at them.
    """
    kind = type(value)
    if kind in _FIXED or (kind is tuple and all(type(each) in _FIXED for each in value)):
        return value
    found = list[tuple[Any, Any]]()
    _look_at(value, found, ())
    return found


def _look_at(value: Any, found: list[tuple[Any, Any]], around: tuple[int, ...]) -> None:
    """Add a value, and what is in it, to what was found. It is in containers, by their `id`."""
    if not isinstance(value, _CONTAINERS) or id(value) in around:
        # a tensor must not be held by what its own graph holds
        one = weakref.ref(value) if isinstance(value, torch.Tensor) else value
        found.append((one, _state(value)))
        return
    names = tuple(value) if isinstance(value, _MAPPINGS) else len(value)
    found.append((type(value), names))
    for each in value.values() if isinstance(value, _MAPPINGS) else value:
        _look_at(each, found, (*around, id(value)))


def _state(value: Any) -> Any:
    """Return what changes where a value stays the same object."""
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.strides, value.dtype.str, value.tobytes()
    return 0


def _alike(one: Any, other: Any) -> bool:
    """True if two values are what the same read would see."""
    if one is other:
        return True
    if isinstance(one, _Handle):
        return one.is_like(other)
    if not isinstance(one, list) or not isinstance(other, list):
        return type(one) is type(other) and bool(one == other)
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(was == now and _same(a, b) for (a, was), (b, now) in pairs)


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other)
    )
