"""Tensors that a graph makes of numbers and shapes alone: PyTorch computes them at the capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ooc_cudnn.torch.tracing.bodies import OnDevice
from ooc_cudnn.torch.tracing.body_writes import storage_key
from ooc_cudnn.torch.tracing.scalar_inputs import is_unknown

#: Of sizes and places.
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def constant_of(node: Any, number_of: Callable[[Any], Any]) -> Any:
    """Compute what a node of TorchDynamo's graph makes, where that depends on no data.

    Parameters
    ----------
    node : torch.fx.Node
    number_of : callable
        The value of a node that is a number: an extent of an argument, say.

    Returns
    -------
    tensor or tuple of tensors, on the host
        None where it depends on data, is drawn, or forward has written to what it is made of.
    """
    behind: dict[Any, None] = {}
    wanted = [node]
    while wanted:
        each = wanted.pop()
        if each in behind:
            continue
        if not _is_number(each):
            if not _is_pytorchs(each):
                return None
            wanted.extend(each.all_input_nodes)
        behind[each] = None
    if any(map(_is_written, behind)):
        return None
    made: dict[Any, Any] = {}
    try:
        with (
            _disable_current_modes(),
            no_python_dispatcher(),
            torch.no_grad(),
            OnDevice(_HOST),
            _Drawn(),
        ):
            for each in sorted(behind):
                made[each] = number_of(each) if _is_number(each) else _called(each, made)
                if not _is_as_seen(made[each], each.meta.get("example_value")):
                    return None
    except Exception:  # of what it is called with, or not to be computed so: it is as it was
        return None
    return made[node]


_HOST = torch.device("cpu")


class _Drawn(TorchDispatchMode):
    """Raises an error where random numbers are drawn."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError(f"{func} draws")
        return func(*args, **(kwargs or {}))


def _is_number(node: Any) -> bool:
    return isinstance(node.meta.get("example_value"), _NUMBERS)


def _is_pytorchs(node: Any) -> bool:
    """True if a node calls a function of PyTorch's or of Python's."""
    target = node.target
    if node.op == "call_method":
        return True
    if node.op != "call_function" or isinstance(target, HigherOrderOperator):
        return False
    if isinstance(target, OpOverload):
        return target.namespace in ("aten", "prims")
    kind = target if hasattr(target, "__module__") else type(target)
    return f"{kind.__module__}.".startswith(("torch.", "_operator."))


def _is_written(node: Any) -> bool:
    """True if a tensor has been written to that a node has made, or what shows its memory."""
    tensors = _tensors_of(node)
    keys = {storage_key(each) for each in tensors}
    if any(each._version for each in tensors):
        return True
    return any(
        keys.intersection(map(storage_key, _tensors_of(user))) and _is_written(user)
        for user in node.users
    )


def _tensors_of(node: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(node.meta.get("example_value"))
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _called(node: Any, made: dict[Any, Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _is_as_seen(made: Any, seen: Any) -> bool:
    """True if what was computed is of the kind that TorchDynamo has seen."""
    ours, theirs = pytree.tree_leaves(made), pytree.tree_leaves(seen)
    return len(ours) == len(theirs) and all(
        not isinstance(other, torch.Tensor)
        or (isinstance(one, torch.Tensor) and (one.dtype, one.ndim) == (other.dtype, other.ndim))
        for one, other in zip(ours, theirs, strict=True)
    )


def has_unknown_shape(seen: Any) -> bool:
    """True if an extent of a tensor, or of one of several, depends on data as far as is known."""
    return any(
        isinstance(each, torch.Tensor) and any(map(is_unknown, each.shape))
        for each in (seen if isinstance(seen, list | tuple) else (seen,))
    )


def tell_numbers(
    node: Any, made: Callable[[Any], Any], number_of: Callable[[Any], Any]
) -> list[FakeTensor]:
    """Let functions ask fake tensors for their numbers, where no data say what these are.

    Parameters
    ----------
    node : torch.fx.Node
        What is called next.
    made : callable
        The fake tensor of a node that it reads.
    number_of : callable
        As of `constant_of`.

    Returns
    -------
    list of FakeTensor
        Those that know theirs now.
    """
    told = []
    for each in node.all_input_nodes:
        fake = made(each)
        if not isinstance(fake, FakeTensor) or fake.ndim or fake.dtype not in _INTEGERS:
            continue
        if fake.item_memo is None and (found := constant_of(each, number_of)) is not None:
            with _disable_current_modes():
                fake.item_memo = found.item()
            told.append(fake)
    return told
