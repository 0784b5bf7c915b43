"""Guards of the types within constants: TorchDynamo takes (2,) and (2.0,) for equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ooc_cudnn.torch.thread_patches import patched_in_this_thread

_SETS: Any = (set, frozenset, type({}.keys()))


def types_in(value: Any) -> Any:
    """The type of a constant, with those of all that is in it: two may be compared by `==`.

    Examples
    --------
    >>> types_in((2, 3)) == types_in((5, 7))
    True
    >>> types_in((2, [3])) == types_in((2, [3.0])), types_in({1}) == types_in({True})
    (False, False)
    """
    kind = type(value)
    if isinstance(value, tuple | list) and kind is not torch.Size:
        return (kind, *map(types_in, value))
    if isinstance(value, dict):
        return kind, {each: (type(each), types_in(value[each])) for each in value}
    if isinstance(value, _SETS):
        return kind, {each: types_in(each) for each in value}
    if kind is slice:
        return kind, *map(types_in, (value.start, value.stop, value.step))
    return kind


@contextmanager
def types_of_constants_guarded() -> Iterator[None]:
    """Have guards that compare a constant by `==` compare the types within it, too."""
    guards: Any = torch._dynamo.guards  # TorchDynamo is imported at the first capture

    def compared(was: Any, self: Any, guard: Any, *args: Any, **how: Any) -> None:
        was(self, guard, *args, **how)
        value = self.get(guard)
        types = types_in(value)
        if types is type(value):  # which TorchDynamo compares
            return
        is_fixed = isinstance(value, tuple | frozenset | slice)

        def are_the_same(now: Any) -> bool:
            return (is_fixed and now is value) or types_in(now) == types

        said = guards.get_verbose_code_parts([f"types in {self.arg_ref(guard)}"], guard)
        manager = self.get_guard_manager(guard)
        manager.add_lambda_guard(are_the_same, said, guard.user_stack)

    with patched_in_this_thread((guards.GuardBuilder, "EQUALS_MATCH", compared)):
        yield
