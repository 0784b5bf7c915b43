"""In-place operators on lists, dictionaries and sets: `t += [1]`, where TorchDynamo makes another.

It makes another for classes derived from these, for `-=` of a set, and where it refuses the write,
but all is constant: then it computes with copies. What forward or backward writes would be lost. So
would be the order that `move_to_end` leaves.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import ConstDictVariable, ListVariable, user_defined
from torch._dynamo.variables.builtin import BuiltinVariable

from ooc_cudnn.torch.capture.dynamo_patches.made_objects import container_of, is_container
from ooc_cudnn.torch.thread_patches import patched_in_this_thread

#: The operators, by the names of their methods.
_IN_PLACE: dict[Any, str] = {
    getattr(operator, name): f"__{name}__"
    for name in ("iadd", "imul", "ior", "iand", "isub", "ixor", "iconcat")
}
#: Methods of a list that change it without a note.
_UNNOTED = ("__iadd__",)
#: What moves an entry of an `OrderedDict`; before PyTorch 2.13 all dictionaries have it.
_ORDERED: Any = getattr(user_defined, "OrderedDictVariable", ConstDictVariable)
#: With what TorchDynamo refuses a write in a hook, a function's backward or a checkpoint.
_REFUSED_WRITE = "side effect"


def _has_own(item: Any, method: str) -> bool:
    """True if the class of a container has written the method itself."""
    return isinstance(inspect.getattr_static(item.python_type(), method, None), FunctionType)


@contextmanager
def container_writes_followed() -> Iterator[None]:
    """Have TorchDynamo change a container in place where an operator does, or refuse to."""

    def called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = was(self, tx, args, kwargs)
        method = _IN_PLACE.get(self.fn)
        if method is None or len(args) != 2:
            return made
        item = args[0].unwrap()
        if not is_container(item) or _has_own(item, method):
            return made
        held = container_of(item)
        fill = "update" if hasattr(item.python_type(), "update") else "extend"
        if made is not item and made is not held:
            item.call_method(tx, "clear", [], {})
            item.call_method(tx, fill, [made], {})
        tx.output.side_effects.mutation(held)
        if fill == "update":  # else TorchDynamo takes nothing out of it
            held.should_reconstruct_all = True
        return item

    def computes_with_copies(was: Any, self: Any, *args: Any) -> bool:
        refused = sys.exc_info()[1]
        if isinstance(refused, Unsupported) and _REFUSED_WRITE in str(refused):
            return False
        return bool(was(self, *args))

    def by_its_method(was: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
        made = was(self, tx, name, *args)
        if name in _UNNOTED:
            tx.output.side_effects.mutation(self)
        return made

    def moved(was: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
        made = was(self, tx, name, *args)
        if name == "move_to_end":  # else TorchDynamo leaves it where it was
            container_of(self).should_reconstruct_all = True
        return made

    with patched_in_this_thread(
        (BuiltinVariable, "call_function", called),
        (BuiltinVariable, "has_constant_handler", computes_with_copies),
        (ListVariable, "call_method", by_its_method),
        (_ORDERED, "call_method", moved),
    ):
        yield
