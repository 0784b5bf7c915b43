"""The truth of an object whose `__bool__` or `__len__` gives a number that changes.

TorchDynamo before PyTorch 2.13 jumps where such an object is true, whichever way the jump goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables import ConstantVariable, SymNodeVariable, UserMethodVariable
from torch.fx.experimental.symbolic_shapes import guard_bool

from ooc_cudnn.torch.thread_patches import patched_in_this_thread


def _called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """A method that says which way a jump goes: guards compare the truth of what it gives."""
    made = was(self, tx, args, kwargs)
    name = getattr(self.fn, "__name__", "")
    is_asked = "JUMP" in tx.current_instruction.opname and name in ("__bool__", "__len__")
    if not is_asked or not isinstance(made, SymNodeVariable):
        return made
    if name == "__len__" and isinstance(made.sym_num, torch.SymInt):
        return ConstantVariable.create(guard_bool(made.sym_num != 0))
    return ConstantVariable.create(made.evaluate_expr())


@contextmanager
def truths_followed() -> Iterator[None]:
    """Have Dynamo jump as Python does."""
    if torch.__version__ >= "2.13":  # a TorchVersion, which compares so
        yield
        return
    with patched_in_this_thread((UserMethodVariable, "call_function", _called)):
        yield
