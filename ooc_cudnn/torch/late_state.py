"""What hooks, functions' backward and checkpoints read when backward runs, and others may change.

They are traced with the forward that they are in. Between that and backward a user may put another
buffer, attribute or global in place, or the next forward may. PyTorch would read that.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import told_name, users_frame

_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device)
_FIXED = frozenset((*_PLAIN, bool, type(None)))
_CONTAINERS = (list, tuple, dict, deque)
_GONE = object()
_ROOT = re.compile(r"\bG\['([^']+)'\]")
_HELD = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class LateRead:
    """A name that is read when backward runs.

    Attributes
    ----------
    where : str or dict
        TorchDynamo's name of the object whose attribute it is, or of the cell in which a function
        has it; or the globals of a function.
    name : str
    who : str
        What reads it.
    in_place : bool
        Whether tensors that change in place count, too.
    remedy : str
        How it would read in forward.
    """

    where: Any
    name: str
    who: str
    in_place: bool
    remedy: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all that are alike."""
        where = self.where if isinstance(self.where, str) else id(self.where)
        return where, self.name, self.who

    def value(self, found: dict[str, Any], scope: dict[str, Any]) -> Any:
        """What is there now; objects that were found already are not looked for again."""
        if not isinstance(self.where, str):
            return self.where.get(self.name, _GONE)
        return _held_by(self.owner(found, scope), self.name)[1]

    def owner(self, found: dict[str, Any], scope: dict[str, Any]) -> Any:
        """Whose name it is."""
        if not isinstance(self.where, str):
            return self.where
        if self.where not in found:
            try:
                found[self.where] = eval(_code(self.where), scope)
            except (AttributeError, KeyError, IndexError, NameError):
                found[self.where] = _GONE
        return found[self.where]

    def is_of_pytorch(self, found: dict[str, Any], scope: dict[str, Any]) -> bool:
        """True if a module or a class of PyTorch's has it, and not an object that the user made."""
        owner = self.owner(found, scope)
        if isinstance(owner, dict):
            return _is_pytorchs(owner.get("__name__"))
        holder, _ = _held_by(owner, self.name)
        if isinstance(holder, ModuleType):
            return _is_pytorchs(holder.__name__)
        return isinstance(holder, type) and _is_pytorchs(holder.__module__)


class LateState:
    """What late reads would find, behind forward and before backward.

    Parameters
    ----------
    reads : sequence of LateRead
    scope : mapping
        What their names begin with: "L" and "G".
    """

    def __init__(self, reads: Sequence[LateRead], scope: Mapping[str, Any]) -> None:
        self._reads, self._scope = reads, dict(scope)
        self._seen = list[Any]()

    def note(self) -> None:
        """Note what is there now that forward is over."""
        self._seen = self._now()

    def check(self) -> None:
        """Refuse a backward for which something else is there.

        Raises
        ------
        UnsupportedModelError
            With its name.
        """
        for read, before, now in zip(self._reads, self._seen, self._now(), strict=True):
            if not _alike(before, now):
                where = read.where if isinstance(read.where, str) else ""
                name = told_name(f"{where}.{read.name}")
                raise UnsupportedModelError(
                    f"{read.who} reads {name}, which has changed between forward and backward, and "
                    f"a plan has it as forward left it: {_remedy(read)}{users_frame()}"
                )

    def _now(self) -> list[Any]:
        found: dict[str, Any] = {}
        return [
            _seen(read.value(found, self._scope), in_place=read.in_place) for read in self._reads
        ]


def _remedy(read: LateRead) -> str:
    if read.name == "training":
        return "call model.train() and model.eval() after backward"
    return "change it after backward" + (f", or {read.remedy}" if read.remedy else "")


def roots_of(reads: Iterable[LateRead], scope: Mapping[str, Any]) -> dict[str, Any]:
    """What the names of reads begin with, of the globals of a capture.

    These are modules and the like, which nobody replaces. The globals themselves are emptied when
    the capture is let go of, and a backward may come later.
    """
    sources = (each.where for each in reads if isinstance(each.where, str))
    names = {name for source in sources for name in _ROOT.findall(source)}
    return {name: scope[name] for name in names if name in scope}


def users_alone(reads: Iterable[LateRead], scope: Mapping[str, Any]) -> list[LateRead]:
    """Reads but for those of what is PyTorch's own, which nobody replaces in the midst of a step.

    These are most by far: functions of its modules, methods of its layers.
    """
    found, names = dict[str, Any](), dict(scope)
    return [each for each in reads if not each.is_of_pytorch(found, names)]


def _is_pytorchs(name: Any) -> bool:
    return str(name).partition(".")[0] == "torch"


def _held_by(owner: Any, name: str) -> tuple[Any, Any]:
    """What holds an attribute, and what it is, without a call of what the user has written."""
    if isinstance(owner, CellType):  # of a function, whose variable has the name
        return owner, next(iter(_contents(owner)), _GONE)
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


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


@functools.lru_cache(2**14)
def _code(source: str) -> CodeType:
    return compile(source, "<what TorchDynamo calls it>", "eval")


def _seen(value: Any, *, in_place: bool) -> Any:
    """A value that stays what it is; or else a list of it and of what is in it.

    Each of these has beside it what may change in it: the version of a tensor, say.
    """
    kind = type(value)
    if kind in _FIXED or (kind is tuple and all(type(each) in _FIXED for each in value)):
        return value
    found = list[tuple[Any, Any]]()
    _look_at(value, found, (), in_place=in_place)
    return found


def _look_at(
    value: Any, found: list[tuple[Any, Any]], around: tuple[int, ...], *, in_place: bool
) -> None:
    """Add a value, and what is in it, to what was found. It is in containers, by their `id`."""
    if not isinstance(value, _CONTAINERS) or id(value) in around:
        found.append((value, _state(value, in_place=in_place)))
        return
    names = tuple(value) if isinstance(value, dict) else len(value)
    found.append((type(value), names))
    for each in value.values() if isinstance(value, dict) else value:
        _look_at(each, found, (*around, id(value)), in_place=in_place)


def _state(value: Any, *, in_place: bool) -> Any:
    """What changes where a value stays the same object."""
    if isinstance(value, torch.Tensor):
        return _version(value) if in_place else 0
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.strides, value.dtype.str, value.tobytes()
    return 0


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _alike(one: Any, other: Any) -> bool:
    """True if two values are what the same read would see."""
    if one is other:
        return True
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
