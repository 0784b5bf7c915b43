"""Guards of the keys of dictionaries, and of their order, where forward reads all of them.

TorchDynamo compares the order where forward goes through a dictionary. Where it copies one, joins
it to another or prints it, it compares the keys in any order, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import is_constant_source
from torch._dynamo.variables import ConstDictVariable

from ooc_cudnn.torch.capture.guards.constant_types import types_in
from ooc_cudnn.torch.thread_patches import patched_in_this_thread

#: What has the attributes of an object as a dictionary since PyTorch 2.13.
_DUNDER_DICT: Any = getattr(torch._dynamo.variables.dicts, "DunderDictVariable", None)


def guard_orders(output: Any, value_of: Callable[[Any], Any]) -> None:
    """Compare keys with their order where TorchDynamo compares keys, or their order.

    Parameters
    ----------
    output : OutputGraph
        What is traced now. It has all its guards.
    value_of : callable
        Gives the value of a source.
    """
    ordered = output.guard_on_key_order
    matched = {
        guard.originating_source
        for guard in output.guards
        if guard.create_fn_name() == "DICT_KEYS_MATCH"
    }
    for source in ordered - matched:
        held = value_of(source)
        if isinstance(held, dict) and dict.__len__(held):
            torch._dynamo.guards.install_guard(source.make_guard(GuardBuilder.DICT_KEYS_MATCH))
    ordered |= matched


def _constant(was: Any, self: Any) -> Any:
    """A dictionary as a whole, as `str` reads it."""
    if self.source is not None:
        self.install_dict_keys_match_guard()
    return was(self)


def _joined(was: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
    """A method of a dictionary: of `d | e` TorchDynamo before PyTorch 2.13 compares one of them."""
    if name == "__or__" and self.source is not None:
        self.install_dict_keys_match_guard()
    return was(self, tx, name, *args)


def _read(was: Any, self: Any) -> None:
    """A whole `__dict__` that is read, or written to."""
    was(self)
    item = self.items.item
    if self.source is None or is_constant_source(self.source):
        return
    if not isinstance(getattr(item, "value", None), torch.nn.Module):
        output = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
        output.guard_on_key_order.add(self.source)


def _copied(was: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
    """A method of a `__dict__`."""
    if name == "copy":
        _read(lambda self: None, self)
    return was(self, tx, name, *args)


def _keys_with_types(was: Any, self: Any, value: dict[Any, Any], guard: Any) -> None:
    """Compare keys in their order, and types within keys."""
    was(self, value, guard)
    manager = self.get_guard_manager(guard)
    for at, key in enumerate(dict.keys(value)):
        types = types_in(key)
        if types is type(key):  # which TorchDynamo compares
            continue
        name = f"types in key {at} of {self.arg_ref(guard)}"
        keys = manager.get_key_manager(
            index=at,
            source=torch._dynamo.guards.get_key_index_source(guard.name, at),
            example_value=key,
            guard_manager_enum=torch._dynamo.guards.GuardManagerType.GUARD_MANAGER,
        )
        said = torch._dynamo.guards.get_verbose_code_parts([name], guard)

        def are_the_same(now: Any, key: Any = key, types: Any = types) -> bool:
            return now is key or types_in(now) == types

        keys.add_lambda_guard(are_the_same, said, guard.user_stack)


@contextmanager
def key_orders_guarded() -> Iterator[None]:
    """Have TorchDynamo note what reads all keys, and compare types within them."""
    places: list[tuple[Any, str, Any]] = [
        (ConstDictVariable, "as_python_constant", _constant),
        (GuardBuilder, "guard_on_dict_keys_and_order", _keys_with_types),
    ]
    if _DUNDER_DICT is None:
        places.append((ConstDictVariable, "call_method", _joined))
    else:
        places.append((_DUNDER_DICT, "install_dict_keys_match_guard", _read))
        places.append((_DUNDER_DICT, "call_method", _copied))
    with patched_in_this_thread(*places):
        yield
