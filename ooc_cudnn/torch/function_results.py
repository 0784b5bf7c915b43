"""What the forward of a user's `autograd.Function` returns: autograd looks into no container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import traced_line


class _Forward(VariableTracker):
    """A forward that TorchDynamo traces for training, whose result is looked at."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace it."""
        made = self._function.call_function(tx, args, kwargs)
        results = made.unpack_var_sequence(tx) if issubclass(_kind(made), tuple) else [made]
        for kind in map(_kind, results):
            if issubclass(kind, list | dict | tuple) and kind is not torch.Size:
                raise UnsupportedModelError(
                    f"forward of an autograd.Function returns a {kind.__name__}, and autograd "
                    "follows no tensor within: let it return a tensor, or one tuple of tensors\n  "
                    f"{traced_line()}"
                )
        return made


def _kind(made: Any) -> type:
    kind: type = torch.Tensor if made.is_tensor() else made.python_type()
    return kind


@contextmanager
def results_of_functions_checked() -> Iterator[None]:
    """Refuse a user's function that returns tensors in a container where autograd follows it."""
    kind: Any = AutogradFunctionApplyVariable
    before = kind.prepare_fn_vt

    def prepared(self: Any, tx: Any, ctx: Any, name: str, args: Any) -> Any:
        function, given = before(self, tx, ctx, name, args)
        return (_Forward(function) if name == "forward" else function), given

    kind.prepare_fn_vt = prepared
    try:
        yield
    finally:
        kind.prepare_fn_vt = before
