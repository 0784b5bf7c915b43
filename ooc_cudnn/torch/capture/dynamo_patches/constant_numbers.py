"""Numbers from tensors that forward makes of numbers and shapes alone: TorchDynamo asks none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables import NumpyNdarrayVariable, TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy

from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.constant_tensors import (
    constant_of,
    has_unknown_shape,
    tell_numbers,
)
from ooc_cudnn.torch.tracing.scalar_inputs import specialize


def _seen(node: Any) -> Any:
    return node.meta.get("example_value")


def _now(node: Any) -> Any:
    return specialize(_seen(node))


def _of_all_sizes(node: Any) -> Any:
    seen = _seen(node)
    if isinstance(seen, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise ValueError(f"{seen} may be another one in another call")
    return seen


def _told(was: Any, tracer: Any, node: Any, args: Any, kwargs: Any, module: Any) -> Any:
    told = tell_numbers(node, _seen, _of_all_sizes)
    try:
        return was(tracer, node, args, kwargs, module)
    finally:
        for each in told:  # Dynamo takes it for a symbol
            each.item_memo = None


def _constant(variable: Any) -> torch.Tensor | None:
    """The tensor that a variable is; None where it depends on data. Guards compare shapes."""
    found = constant_of(variable.as_proxy().node, _now)
    return found if isinstance(found, torch.Tensor) else None


def _as(of: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """A function of a tensor's number, or numbers."""

    def call(was: Any, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        found = None if args or kwargs else _constant(self)
        if found is None:
            return was(self, tx, *args, **kwargs)
        return VariableTracker.build(tx, of(found))

    return call


def _unpacked(was: Any, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    """The elements of a tensor, of which TorchDynamo may not know how many there are."""
    node = self.as_proxy().node
    if has_unknown_shape(node.meta.get("example_value")):
        found = _constant(self)
        if found is not None:
            told = {"dtype": found.dtype, "device": self.device}
            proxy = tx.output.create_proxy("call_function", torch.tensor, (found.tolist(),), told)
            self = wrap_fx_proxy(tx, proxy)
    return was(self, tx, *args, **kwargs)


#: Of each method that asks a tensor for its number, in some version of PyTorch, what it is.
_ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "method_item": torch.Tensor.item,
    "method_tolist": torch.Tensor.tolist,
    "nb_index_impl": lambda tensor: tensor.__index__(),
    "nb_int_impl": int,
    "nb_float_impl": float,
}


def _deciding(variable: Any) -> torch.Tensor | None:
    """A NumPy boolean of numbers and shapes alone, where it says which way a jump goes."""
    tx = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output.current_tx
    found = _constant(variable) if "JUMP" in tx.current_instruction.opname else None
    return found if found is not None and found.numel() == 1 else None


def _decides(was: Any, self: Any) -> bool:
    return _deciding(self) is not None or bool(was(self))


def _truth(was: Any, self: Any) -> Any:
    found = _deciding(self)
    return was(self) if found is None else bool(found)


@contextmanager
def constant_numbers_known() -> Iterator[None]:
    """Let Dynamo know them."""
    asked = {name: of for name, of in _ASKED.items() if hasattr(TensorVariable, name)}
    with patched_in_this_thread(
        *((TensorVariable, name, _as(of)) for name, of in asked.items()),
        (TensorVariable, "unpack_var_sequence", _unpacked),
        (NumpyNdarrayVariable, "is_python_constant", _decides),
        (NumpyNdarrayVariable, "as_python_constant", _truth),
        (torch._dynamo.utils, "run_node", _told),
    ):
        yield
