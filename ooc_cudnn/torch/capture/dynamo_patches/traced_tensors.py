"""Tensors as TorchDynamo traces them: the buffer that `+=` hands on, and hooks that are removed."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import external_utils
from torch._dynamo.variables import AutogradFunctionVariable, ConstantVariable, TensorVariable
from torch._dynamo.variables.base import ValueMutationNew
from torch._dynamo.variables.user_defined import RemovableHandleVariable

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.higher_order import HOOKED, IS_HOOK, REMOVED

#: The function that a hook is for TorchDynamo before PyTorch 2.13.
FUNCTION_OF_HOOKS: Any = getattr(external_utils, "_ApplyBackwardHook", None)


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


def _hooked_by_function(tensor: Any, tx: Any, hook: Any) -> torch.fx.Node:
    """Register a hook by a function, as TorchDynamo does before PyTorch 2.13; return its node.

    TorchDynamo itself would compute all that the hook reads right behind the tensor: what was
    changed in place before is not changed yet there, and what is behind it is changed too early.
    """
    seen = tensor.as_proxy().node.meta["example_value"]
    made = AutogradFunctionVariable(FUNCTION_OF_HOOKS).call_apply(tx, [tensor, hook], {})
    node: torch.fx.Node = made.as_proxy().node
    if node.target is operator.getitem:  # else there are no gradients
        tensor.proxy = made.as_proxy()
        node.meta["example_value"] = seen
        tensor.synchronize_attributes(tx)
        (node,) = node.all_input_nodes
        node.meta[IS_HOOK] = True
    return node


def _is_made_followed(tensor: Any) -> bool:
    """True if autograd follows how a tensor was made, or what it is a view of."""
    seen = tensor.as_proxy().node.meta["example_value"]
    base = seen._base if seen._is_view() else seen
    return seen.grad_fn is not None or base.grad_fn is not None


@contextmanager
def tensors_followed(*, in_inference_mode: bool) -> Iterator[None]:
    """Have Dynamo follow `self.n += 1` of an `nn.Buffer`, and `remove()` of a tensor's hook.

    Parameters
    ----------
    in_inference_mode : bool
        Whether the call is made in inference mode, which TorchDynamo leaves while it traces.
    """

    def read(was: Any, self: Any, tx: Any, name: str) -> Any:
        seen = self.proxy.node.meta["example_value"]
        if name == "persistent" and self.source is None and getattr(seen, "_is_buffer", False):
            return ConstantVariable.create(seen.persistent)
        return was(self, tx, name)

    def hooked(was: Any, self: Any, tx: Any, name: str, hook: Any) -> Any:
        if self.source is not None:
            return was(self, tx, name, hook)
        before = self.as_proxy().node
        if FUNCTION_OF_HOOKS is None:
            was(self, tx, name, hook)
            node = self.as_proxy().node
        else:
            node = _hooked_by_function(self, tx, hook)
        if self.as_proxy().node is not before:
            self.as_proxy().node.meta[HOOKED] = before
        return _Handle(node, mutation_type=ValueMutationNew())

    def asks_for_gradient(was: Any, self: Any, tx: Any) -> Any:
        made = was(self, tx)
        if in_inference_mode and made is not None and made.value and _is_made_followed(self):
            raise UnsupportedModelError(
                "forward asks for requires_grad of what it makes under enable_grad, and in "
                "inference mode that is another one than TorchDynamo sees: call the model under "
                f"torch.no_grad(), or ask before\n  {traced_line()}"
            )
        return made

    with patched_in_this_thread(
        (TensorVariable, "method_attr_requires_grad", asks_for_gradient),
        (TensorVariable, "dynamic_getattr", read),
        (TensorVariable, "_method_register_hook", hooked),
    ):
        yield
