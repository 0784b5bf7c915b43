"""`torch.utils.checkpoint` in forward: what it calls, with the history that it gives to results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import (
    SkipFunctionVariable,
    UserFunctionVariable,
    builder,
)
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ooc_cudnn.torch.thread_patches import patched_in_this_thread, rules_in_this_thread

#: Arguments of a checkpoint itself.
_OWN = frozenset(inspect.signature(checkpoint).parameters) | {"preserve_rng_state"}


def _checkpoint(function: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """Call a function as `torch.utils.checkpoint.checkpoint` does. TorchDynamo traces this.

    The reentrant one is an `autograd.Function`: it has a history where one of its arguments has,
    whatever else the function reads. Of what it returns tensors have one, and none in a container.
    Without gradients nothing is computed again, and a checkpoint is a call.
    """
    is_reentrant = how.get("use_reentrant")
    others = {name: each for name, each in how.items() if name not in _OWN}
    if not torch.is_grad_enabled():
        return function(*args, **others)
    if not (is_reentrant or is_reentrant is None):
        return tag_activation_checkpoint(function, *args, **how)
    if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
        with torch.no_grad():
            return function(*args, **others)
    made = tag_activation_checkpoint(function, *args, **how)
    if isinstance(made, tuple):
        return tuple(each if isinstance(each, torch.Tensor) else _detached(each) for each in made)
    return made if isinstance(made, torch.Tensor) else _detached(made)


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


def _traced(function: Any) -> UserFunctionVariable:
    return UserFunctionVariable(function)


def _followed(was: Any, source: Any = None) -> UserFunctionVariable:
    """Function that Dynamo traces in the place of PyTorch's, as long as that stands there."""
    if source is not None:
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    return _traced(_checkpoint)


def _checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,  # noqa: A002  # PyTorch's name for it
    use_reentrant: bool | None = None,
    **how: Any,
) -> Any:
    """Call a row of functions as `checkpoint_sequential` does: each segment but the last is one."""
    row = list(functions.children()) if isinstance(functions, torch.nn.Sequential) else functions
    given, size = input, len(row) // segments
    last = size * (segments - 1)
    for start in range(0, last, size):
        part = _in_a_row(row[start : start + size])
        given = _checkpoint(part, given, use_reentrant=use_reentrant, **how)
    return _in_a_row(row[last:])(given)


def _in_a_row(functions: Any) -> Callable[[Any], Any]:
    def call(given: Any) -> Any:
        for function in functions:
            given = function(given)
        return given

    return call


class _Sequential(SkipFunctionVariable):
    """`checkpoint_sequential`, which Dynamo skips."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace ours."""
        return _traced(_checkpoint_sequential).call_function(tx, args, kwargs)


@contextmanager
def checkpoints_followed() -> Iterator[None]:
    """Let Dynamo follow checkpoints. By itself it takes none for reentrant, and skips rows."""
    with (
        patched_in_this_thread((builder, "build_checkpoint_variable", _followed)),
        rules_in_this_thread({checkpoint_sequential: _Sequential}),
    ):
        yield
