"""NumPy scalars as they are to Python: TorchDynamo has arrays in place of them.

`isinstance(numpy.float64(2), float)` is true, and no `numpy.ndarray` is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, GlobalSource, TypeSource
from torch._dynamo.variables import BuiltinVariable, ConstantVariable, NumpyNdarrayVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import dtype_name, traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread


def _scalar_of(made: Any) -> np.generic | None:
    """The NumPy scalar that forward may have made, of which TorchDynamo makes an array."""
    seen = made.as_proxy().node.meta["example_value"]
    return np.dtype(dtype_name(seen)).type() if seen.ndim == 0 else None


@contextmanager
def numpy_scalars_followed() -> Iterator[None]:
    """Have Dynamo answer `isinstance`, `type` and `__class__` as Python does."""
    #: By the `id` of the variable of one that was there before forward: that, and the scalar.
    found: dict[int, tuple[Any, np.generic]] = {}

    def wrapped(was: Any, self: Any, value: Any) -> Any:
        made = was(self, value)
        if isinstance(value, np.generic | np.ndarray):
            self.install_guards(GuardBuilder.TYPE_MATCH)
        if isinstance(value, np.generic):
            found[id(made)] = made, value
        return made

    def class_of(tx: Any, of: Any) -> Any:
        kind = type(found[id(of)][1]) if id(of) in found else np.ndarray
        source: Any = AttrSource(GlobalSource(tx.output.install_global_by_id("", np)), "ndarray")
        source = source if of.source is None else TypeSource(of.source.base)
        return VariableTracker.build(tx, kind, source)

    def called(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = was(self, tx, args, kwargs)
        if self.fn not in (isinstance, type) or len(args) != 1 + (self.fn is isinstance):
            return made
        of = args[0].unwrap()
        if type(of) is not NumpyNdarrayVariable:
            return made
        scalar = found[id(of)][1] if id(of) in found else None
        made_here = _scalar_of(of) if of.source is None else None
        if self.fn is type:
            is_other, answer = made_here is not None, class_of(tx, of)
        else:
            kinds = args[1].as_python_constant()
            is_other = made_here is not None and isinstance(made_here, kinds) != made.value
            answer = made if scalar is None else ConstantVariable.create(isinstance(scalar, kinds))
        if is_other:
            raise UnsupportedModelError(
                "forward asks for the type of a NumPy scalar that it makes, and TorchDynamo has "
                "an array in its place: ask before, or convert it by float() or int()\n"
                f"  {traced_line()}"
            )
        return answer

    def attribute(was: Any, self: Any, tx: Any, name: str) -> Any:
        return class_of(tx, self) if name == "__class__" else was(self, tx, name)

    with patched_in_this_thread(
        (VariableBuilder, "_wrap", wrapped),
        (BuiltinVariable, "call_function", called),
        (NumpyNdarrayVariable, "var_getattr", attribute),
    ):
        yield
