"""Gradients of outputs that forward reads further: in part within a plan, and so not to be seen.

So are those of arguments that forward changes in place, and reads after that.

Autograd adds up what reaches an output from a loss. What comes by way of another output, which
forward made of the first, is added up where the model's backward runs. So who asks for the gradient
of the first one (`torch.autograd.grad(loss, h)`, a hook of `h` or of `h.grad_fn`) would be given a
part of it. Autograd is told that the other output depends on the first one, and hands on a tensor
that has no elements: who looks at it is told why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ooc_cudnn.torch.errors import HiddenGradientError
from ooc_cudnn.torch.places import users_frame

_aten = torch.ops.aten
#: What backward does where a view was made, and the nodes in which it does.
_MOVES = {
    _aten.view.default, _aten.permute.default, _aten.transpose.int, _aten.t.default,
    _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims,
    _aten.slice_backward.default, _aten.select_backward.default,
}  # fmt: skip
MOVING_NODES = frozenset(
    f"{name}Backward{number}"
    for name in ("View", "Permute", "Transpose", "T", "Unsqueeze", "Squeeze", "Slice", "Select")
    for number in range(3)
)
_HANDS_ON = (_aten.detach.default, _aten.alias.default)


class HiddenGradient(torch.Tensor):
    """A gradient that lacks what comes by way of another output.

    Attributes
    ----------
    known : Tensor or None
        What does not.
    """

    known: torch.Tensor | None
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        known: torch.Tensor | None = None,
    ) -> HiddenGradient:
        """Make one without elements."""
        made: HiddenGradient = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)  # what DLPack hands on is not dispatched
        made.known = known
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"HiddenGradient of shape {tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Add, as autograd does, and never in place; refuse all else."""
        if (
            func is _aten.add.Tensor
            and not kwargs
            and all(isinstance(e, torch.Tensor) for e in args)
        ):
            known = [each for each in map(shown, args) if each is not None]
            total = known[0] + known[1] if len(known) == 2 else next(iter(known), None)
            like = args[0]
            return cls(like.shape, like.dtype, like.device, total)
        if func in _HANDS_ON:
            (like,) = args
            return cls(like.shape, like.dtype, like.device, like.known)
        if func in _MOVES and not kwargs:
            like, *more = args
            shape = func(torch.empty(like.shape, dtype=like.dtype, device="meta"), *more).shape
            moved = None if like.known is None else func(like.known.contiguous(), *more)
            return cls(shape, like.dtype, like.device, moved)
        if func is _aten.isnan.default and torch.is_anomaly_enabled():  # which looks at all
            return torch.zeros(args[0].shape, dtype=torch.bool, device=args[0].device)
        raise hidden_gradient_error()


def _refused(self: HiddenGradient, *_: Any, **more: Any) -> Any:
    raise hidden_gradient_error()


# of an operator PyTorch takes the error, which is a TypeError, for "not implemented"
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip
for _name in _OPERATORS:
    for _kind in ("", "r", "i"):
        setattr(HiddenGradient, f"__{_kind}{_name}__", _refused)
# nor are these dispatched: who reads memory, or hands it on
for _name in (
    "__array__", "__bool__", "__dlpack__", "__float__", "__int__", "__reduce_ex__", "data_ptr",
    "item", "numpy", "share_memory_", "storage", "tolist", "untyped_storage",
):  # fmt: skip
    setattr(HiddenGradient, _name, _refused)


def shown(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient as what it is made of reads it: the rest is added behind that."""
    return gradient.known if isinstance(gradient, HiddenGradient) else gradient


def check_not_asked_for(nodes: Iterable[Any]) -> None:
    """Refuse a backward that ends at one of these, for what it ends at is asked for.

    Raises
    ------
    HiddenGradientError
        At once, where it can be seen.
    """
    runs = torch._C._will_engine_execute_node
    for node in nodes:
        behind = [each for each, _ in node.next_functions if each is not None]
        if runs(node) and not any(map(runs, behind)):
            raise hidden_gradient_error()


def hidden_gradient_error() -> HiddenGradientError:
    """Return the error of asking for the gradient of what another output is made of."""
    return HiddenGradientError(
        "the gradient of an output, or of an argument that forward changes in place, is asked for, "
        "and forward makes another output of it, whose gradient it would not see: register a hook "
        "in forward (y.register_hook), have forward change no argument (x = x.relu()), or put the "
        f"limit on the parts before and behind that tensor{users_frame()}"
    )
