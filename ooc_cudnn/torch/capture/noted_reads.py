"""Reads of hooks, functions' backward and checkpoints, noted while TorchDynamo traces them.

A name of what was there before forward is TorchDynamo's own. Of what forward makes there is a
variable alone, until it is known where forward leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.side_effects import SideEffects

from ooc_cudnn.torch.autograd.late_state import DEFAULTS, LateRead
from ooc_cudnn.torch.capture.dynamo_patches.made_objects import KEYS, is_made, places_of, reachable
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import source_name, traced_line

#: What names of objects begin with; and the containers of arguments, which nobody else has.
_ROOTS, _OF_THE_CALL = ("L['", "G["), ("L['args']", "L['kwargs']")
#: What backward reads of a tensor beside its elements, which are compared where they are.
_OF_TENSORS = ("requires_grad", "grad")
#: Instructions that put a key on the stack which is there already.
_LOADS_KEY = ("LOAD_CONST", "LOAD_SMALL_INT")


def _is_of_its_own(name: str | None) -> bool:
    """True if a tensor has an attribute that its user has set, or one that backward reads."""
    return name is not None and (name in _OF_TENSORS or not hasattr(torch.Tensor, name))


class NotedReads:
    """Reads of the bodies of one graph."""

    def __init__(self) -> None:
        #: What is traced now, innermost last, and what all of them have read by name.
        self.within: list[tuple[str, str]] = []
        self.reads: dict[Any, LateRead] = {}
        #: What they have read of what forward makes: its variable, a name, and what reads it.
        self.made: dict[Any, tuple[Any, LateRead, str]] = {}
        #: Tensors of whose gradients they have read.
        self.graded: list[tuple[Any, LateRead, str]] = []

    @contextmanager
    def reading(self, kind: tuple[str, str]) -> Iterator[None]:
        """Note the names that a body reads while it is traced."""
        self.within.append(kind)
        try:
            yield
        finally:
            self.within.pop()

    def has_read(self, where: Any, name: str, *, is_handle: bool = False) -> None:
        """Note a name, where a body reads it."""
        if self.within:
            read = LateRead(where, name, *self.within[-1], is_handle=is_handle)
            self.reads[read.key] = read

    def has_read_of(
        self,
        item: Any,
        name: str | None,
        entry: tuple[Any, ...] = (),
        *,
        asks: bool = False,
        is_handle: bool = False,
    ) -> None:
        """Note it of an object by its variable; or what is read in it, if it is a container."""
        if not self.within or (item.is_tensor() and not _is_of_its_own(name)):
            return
        place = "" if item.source is None else source_name(item.source)
        read = LateRead(place, name, *self.within[-1], entry=entry, asks=asks, is_handle=is_handle)
        if any(each in place for each in _ROOTS):
            if place not in _OF_THE_CALL:
                self.reads[read.key] = read
            if item.is_tensor() and name == "grad":
                self.graded.append((item, read, traced_line()))
        elif not place and is_made(item) and (id(item), read.key) not in self.made:
            self.made[id(item), read.key] = item, read, traced_line()

    def has_called(self, function: Any, source: Any) -> None:
        """Note the defaults of a function that a body calls."""
        place = "" if not self.within or source is None else source_name(source)
        for name in DEFAULTS if any(each in place for each in _ROOTS) else ():
            if getattr(function, name, None):
                self.has_read(place, name)

    def all_reads(self, effects: SideEffects, stack: Sequence[Any]) -> list[LateRead]:
        """Return what bodies have read, once it is known what forward leaves and returns.

        Raises
        ------
        UnsupportedModelError
            If they read of what forward makes and leaves where it is not found again; or a
            gradient that backward itself makes.
        """
        for item, read, line in self.graded:
            if item.requires_grad and item.as_proxy().node.users:
                raise UnsupportedModelError(
                    f"{read.who} reads {read.told(None)}, which backward itself changes: read it "
                    f"after backward, or before forward\n  {line}"
                )
        reads = list(self.reads.values())
        if not self.made:
            return reads
        places, there = places_of(effects, stack), reachable(effects, stack)
        for item, read, line in self.made.values():
            place = places.get(id(item))
            if place is not None:
                reads.append(replace(read, where=place, is_made=True))
            elif id(item) in there:
                raise UnsupportedModelError(
                    f"{read.who} reads {read.name or 'a container'} of what forward makes and "
                    "keeps where the library does not find it again (in a function, or under a key "
                    "that is no string or number), and others may change it before backward: "
                    f"{read.remedy}\n  {line}"
                )
        return reads


def entry_read(tx: Any) -> tuple[Any, ...]:
    """The key of the entry that is read next of what is put on the stack now; () if none is."""
    key, reads = [*tx.instructions[tx.instruction_pointer :][:2], None, None][:2]
    is_read = reads is not None and (
        reads.opname == "BINARY_SUBSCR" or (reads.opname, reads.argrepr) == ("BINARY_OP", "[]")
    )
    found = _key_of(tx, key) if is_read else None
    return () if found is None else (found,)


def _key_of(tx: Any, instruction: Any) -> Any:
    """Return what an instruction puts on the stack, if names can have it as a key; or else None."""
    if instruction.opname in _LOADS_KEY:
        found = instruction.argval
    else:
        held = tx.symbolic_locals.get(instruction.argval)
        is_known = instruction.opname.startswith("LOAD_FAST") and held is not None
        found = held.as_python_constant() if is_known and held.is_python_constant() else None
    return found if type(found) in KEYS else None
