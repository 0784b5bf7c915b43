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
from types import CellType, CodeType, MemberDescriptorType
from typing import Any

import numpy as np
import torch

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import name_of, users_frame

_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device)
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
    """

    where: Any
    name: str
    who: str
    in_place: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all that are alike."""
        where = self.where if isinstance(self.where, str) else id(self.where)
        return where, self.name, self.in_place

    def value(self, found: dict[str, Any], scope: dict[str, Any]) -> Any:
        """What is there now; objects that were found already are not looked for again."""
        if not isinstance(self.where, str):
            return self.where.get(self.name, _GONE)
        if self.where not in found:
            try:
                found[self.where] = eval(_code(self.where), scope)
            except (AttributeError, KeyError, IndexError, NameError):
                found[self.where] = _GONE
        return _held_by(found[self.where], self.name)


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
        self._seen = list[list[tuple[Any, Any]]]()

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
        for read, before, now in zip(self._reads, self._seen, self._now(), strict=False):
            if not _alike(before, now):
                where = read.where if isinstance(read.where, str) else ""
                name = name_of(f"{where}.{read.name}")
                raise UnsupportedModelError(
                    f"{read.who} reads {name}, which has changed between forward and backward, and "
                    "a plan has it as forward left it: change it after backward, or let what reads "
                    f"it keep what it finds in forward{users_frame()}"
                )

    def _now(self) -> list[list[tuple[Any, Any]]]:
        found: dict[str, Any] = {}
        return [
            _seen(read.value(found, self._scope), in_place=read.in_place) for read in self._reads
        ]


def roots_of(reads: Iterable[LateRead], scope: Mapping[str, Any]) -> dict[str, Any]:
    """What the names of reads begin with, of the globals of a capture.

    These are modules and the like, which nobody replaces. The globals themselves are emptied when
    the capture is let go of, and a backward may come later.
    """
    sources = (each.where for each in reads if isinstance(each.where, str))
    names = {name for source in sources for name in _ROOT.findall(source)}
    return {name: scope[name] for name in names if name in scope}


def _held_by(owner: Any, name: str) -> Any:
    """An attribute as it is held, without a call of what the user has written."""
    if isinstance(owner, CellType):  # of a function, whose variable has the name
        return next(iter(_contents(owner)), _GONE)
    own = getattr(owner, "__dict__", {})
    if name in own:
        return own[name]
    for kind in _HELD if isinstance(owner, torch.nn.Module) else ():
        if name in own[kind]:
            return own[kind][name]
    kinds = (*getattr(owner, "__mro__", ()), *type(owner).__mro__)
    found = next((vars(kind)[name] for kind in kinds if name in vars(kind)), _GONE)
    if isinstance(found, MemberDescriptorType) and isinstance(owner, found.__objclass__):
        return getattr(owner, name, _GONE)  # one of __slots__
    return found


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


@functools.lru_cache(2**14)
def _code(source: str) -> CodeType:
    return compile(source, "<what TorchDynamo calls it>", "eval")


def _seen(value: Any, *, in_place: bool) -> list[tuple[Any, Any]]:
    """A value, and what is in it, each with what may change in it: the version of a tensor, say."""
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


def _alike(one: Sequence[tuple[Any, Any]], other: Sequence[tuple[Any, Any]]) -> bool:
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(was == now and _same(a, b) for (a, was), (b, now) in pairs)


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other)
    )
