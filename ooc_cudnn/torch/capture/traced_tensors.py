"""Tensors as TorchDynamo traces them: the buffer that `+=` hands on, and hooks that are removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.variables import ConstantVariable, TensorVariable
from torch._dynamo.variables.user_defined import RemovableHandleVariable

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.higher_order import REMOVED


class _Handle(RemovableHandleVariable):
    """The handle of a hook of a tensor that forward makes; TorchDynamo's own has no hook."""

    def __init__(self, node: torch.fx.Node, **how: Any) -> None:
        super().__init__(**how)
        self._node, self._line = node, traced_line()

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Note that the hook is removed."""
        if name != "remove":
            return super().call_method(tx, name, args, kwargs)
        self._node.meta[REMOVED] = True
        return ConstantVariable.create(None)

    def reconstruct(self, codegen: Any) -> None:
        """Refuse it: after forward a hook is part of the plan."""
        raise UnsupportedModelError(
            "forward keeps the handle of a hook that it registers on a tensor of its own, and the "
            "hook cannot be removed behind forward: call remove() in forward, or do not keep it\n"
            f"  {self._line}"
        )


@contextmanager
def tensors_followed() -> Iterator[None]:
    """Have Dynamo follow `self.n += 1` of an `nn.Buffer`, and `remove()` of a tensor's hook."""

    def read(was: Any, self: Any, tx: Any, name: str) -> Any:
        seen = self.proxy.node.meta["example_value"]
        if name == "persistent" and self.source is None and getattr(seen, "_is_buffer", False):
            return ConstantVariable.create(seen.persistent)
        return was(self, tx, name)

    def hooked(was: Any, self: Any, tx: Any, *args: Any, **how: Any) -> Any:
        handle = was(self, tx, *args, **how)
        node = self.as_proxy().node
        if self.source is not None or "register_hook" not in str(node.target):
            return handle  # a hook of an input; or before PyTorch 2.13, a function
        return _Handle(node, mutation_type=handle.mutation_type)

    with patched_in_this_thread(
        (TensorVariable, "dynamic_getattr", read),
        (TensorVariable, "_method_register_hook", hooked),
    ):
        yield
