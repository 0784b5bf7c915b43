"""Objects and containers that forward makes: where they are once it is over.

TorchDynamo has variables of them while it traces, and none of them is there yet. What forward
returns, and what it puts into what was there before, says by which name each is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch._dynamo import variables
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import base, lists
from torch._dynamo.variables.base import VariableTracker

from ooc_cudnn.torch.autograd.late_state import RESULT
from ooc_cudnn.torch.places import source_name

_CONTAINERS = (
    variables.ConstDictVariable,
    lists.DequeVariable,
    variables.ListVariable,
    variables.MappingProxyVariable,
    variables.SetVariable,
    variables.UserDefinedDictVariable,
    variables.UserDefinedListVariable,
    variables.UserDefinedSetVariable,
)
#: Of these the entries are read one by one, or they are PyTorch's.
_OTHERS = (
    variables.FrozensetVariable,
    variables.NNModuleHooksDictVariable,
    *([variables.DunderDictVariable] if hasattr(variables, "DunderDictVariable") else []),  # 2.13
)
#: Where those of a user's class have it; before PyTorch 2.13 each kind has a name of its own.
_HOLDS = ("_base_vt", "_dict_vt", "_list_vt", "_set_vt", "_tuple_vt")
#: Keys of entries that names can have.
KEYS = (str, int, float)
_MADE = (base.ValueMutationNew, base.AttributeMutationNew)


def is_container(item: VariableTracker) -> bool:
    """True if it is a list, a dictionary or the like, whose entries may change."""
    return isinstance(item, _CONTAINERS) and not isinstance(item, _OTHERS)


def container_of(item: Any) -> Any:
    """Return what holds the entries of a container: a derived class has another variable."""
    held = map(vars(item).get, _HOLDS)
    return next((each for each in held if each is not None), item)


def is_made(item: VariableTracker) -> bool:
    """True if forward has made it; not the variable of a function."""
    return isinstance(item.mutation_type, _MADE) and not isinstance(item, variables.CellVariable)


def places_of(effects: SideEffects, stack: Sequence[Any]) -> dict[int, str]:
    """Names under which what forward makes is there later, by the `id` of its variable.

    Parameters
    ----------
    effects : SideEffects
        What forward writes.
    stack : sequence of VariableTracker
        Its stack when it ends: what it returns comes last.
    """
    waiting = [*((each, RESULT) for each in stack[-1:]), *_lasting(effects)]
    found, seen = dict[int, str](), set[int]()
    for item, place in waiting:
        item = item.unwrap()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if is_made(item):
            found[id(item)] = place
        waiting += [(each, place + step) for each, step in _within(effects, item) if step]
    return found


def reachable(effects: SideEffects, stack: Sequence[Any]) -> set[int]:
    """The `id` of the variables of all that is there later, by whatever way."""
    found, seen = set[int](), dict[int, Any]()
    waiting = [each for item, _ in _lasting(effects) for each, _ in _within(effects, item)]
    waiting += stack[-1:]

    def note(item: Any) -> None:
        found.add(id(item))
        # PyTorch 2.11 does not walk what forward sets
        waiting.extend(effects.store_attr_mutations.get(item, {}).values())

    while waiting:
        VariableTracker.visit(note, waiting.pop(), seen)
    return found


def _lasting(effects: SideEffects) -> Iterator[tuple[Any, str]]:
    """Yield what was there before and forward writes to, with its name."""
    for item in list(effects.id_to_variable.values()):
        place = "" if item.source is None else source_name(item.source)
        if place and (item in effects.store_attr_mutations or is_container(item)):
            yield item, place


def _within(effects: SideEffects, item: Any) -> Iterator[tuple[Any, str]]:
    """Yield what is in a container or an object, with what comes behind its name; or ""."""
    for name, each in effects.store_attr_mutations.get(item, {}).items():
        yield each, f".{name}"
    items = vars(container_of(item)).get("items")
    if isinstance(items, list | tuple):
        yield from ((each, f"[{at}]") for at, each in enumerate(items))
    elif isinstance(items, dict):
        for key, each in items.items():
            constant = key.vt.as_python_constant() if key.vt.is_python_constant() else None
            yield each, f"[{constant!r}]" if type(constant) in KEYS else ""
            yield key.vt, ""  # of a set, it is what is in it
