"""A user's `autograd.Function`, as TorchDynamo traces it.

What forward returns, and marks dirty; derivatives that backward takes; what vmap makes of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._C._functorch import TransformType, get_interpreter_stack, get_unwrapped
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import (
    AutogradFunctionContextVariable,
    ConstantVariable,
    SkipFunctionVariable,
    TensorVariable,
    TupleVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._functorch import vmap
from torch.autograd.function import _is_setup_context_defined

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread, rules_in_this_thread

#: Attributes of a function's class that it may read; TorchDynamo has no others than its methods.
_NUMBERS = (int, float, str, tuple, torch.Tensor)


class _Name(SkipFunctionVariable):
    """Name of a function in errors of `torch.vmap`: TorchDynamo cannot print a module."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """A name for all."""
        return ConstantVariable.create("the function")


class _Forward(VariableTracker):
    """A forward that TorchDynamo traces for training, whose result is looked at."""

    def __init__(self, function: Any, ctx: Any) -> None:
        super().__init__()
        self._function, self._ctx = function, ctx
        #: Whether it returns one tensor, which was marked as not differentiable.
        self.is_constant = False

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace it; TorchDynamo looks for what is marked in a tuple alone."""
        made = self._function.call_function(tx, args, kwargs)
        results = made.unpack_var_sequence(tx) if issubclass(_kind(made), tuple) else [made]
        for kind in map(_kind, results):
            if issubclass(kind, list | dict | tuple) and kind is not torch.Size:
                raise UnsupportedModelError(
                    f"forward of an autograd.Function returns a {kind.__name__}, and autograd "
                    "follows no tensor within: let it return a tensor, or one tuple of tensors\n  "
                    f"{traced_line()}"
                )
        if made.is_tensor() and made.as_proxy() in (self._ctx.non_differentiable or ()):
            self.is_constant = True
            return TupleVariable([made])
        return made


class _NoGradients(VariableTracker):
    """A backward that nobody calls: that of a function whose one result has no gradient."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """None for each argument of forward."""
        return TupleVariable([ConstantVariable.create(None) for _ in range(self._count)])


def _kind(made: Any) -> type:
    kind: type = torch.Tensor if made.is_tensor() else made.python_type()
    return kind


def _check_vmap(kind: Any, args: Any) -> None:
    """Refuse a function under `torch.vmap`: TorchDynamo knows neither its rule nor its backward.

    Without gradients what `generate_vmap_rule` asks for is its forward under `torch.vmap`.
    """
    levels = [each.key() for each in get_interpreter_stack() or ()]
    if TransformType.Vmap not in levels:
        return
    has_own = kind.vmap is not torch.autograd.Function.vmap
    seen = [each.as_proxy().node.meta["example_value"] for each in args if each.is_tensor()]
    derives = any(each != TransformType.Vmap for each in levels) or any(map(_is_followed, seen))
    if has_own or derives or not kind.generate_vmap_rule:
        raise UnsupportedModelError(
            f"torch.vmap calls an autograd.Function ({kind.__name__}), and TorchDynamo passes over "
            "its backward and its rule for vmap: give the Function the whole batch, outside of "
            f"vmap\n  {traced_line()}"
        )


def _is_followed(tensor: torch.Tensor) -> bool:
    """True if autograd follows a tensor, or what `torch.vmap` takes it from."""
    if not torch.is_grad_enabled():
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def _takes_ctx(kind: Any) -> bool:
    """True if forward of a function is given ctx: else setup_context is."""
    return not _is_setup_context_defined(kind.setup_context)


def _knows_ctx(kind: Any, args: Sequence[Any]) -> bool:
    """True if TorchDynamo knows whether forward takes ctx: without gradients it counts arguments.

    Of `forward(ctx, *xs)` it takes ctx for the first of two.
    """
    tensors = list[Any]()
    VariableTracker.visit(lambda each: tensors.append(each) if each.is_tensor() else None, args)
    if torch.is_grad_enabled() and any(each.requires_grad is not False for each in tensors):
        return True
    if not isinstance(kind.forward, FunctionType):
        return True
    counts = len(inspect.signature(kind.forward).parameters) == len(args)
    return counts != _takes_ctx(kind)


@contextmanager
def functions_followed() -> Iterator[None]:
    """Have Dynamo follow a user's function as autograd does.

    Autograd looks into no container that forward returns, and where it is off nothing is marked.
    PyTorch runs what backward computes, `torch.autograd.grad` too.
    """
    forwards, counts = dict[Any, _Forward](), dict[Any, int]()

    def prepared(was: Any, self: Any, tx: Any, ctx: Any, name: str, args: Any) -> Any:
        function, given = was(self, tx, ctx, name, args)
        if name == "forward":
            function = forwards[self] = _Forward(function, ctx)
        elif forwards[self].is_constant:
            function = _NoGradients(counts[self])
        return function, given

    def applied(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        counts[self] = len(args) + len(kwargs)
        made = was(self, tx, args, kwargs)
        return made.items[0] if forwards[self].is_constant else made

    def called(was: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "mark_dirty" and getattr(self, "proxy", None) is None:  # it is not applied
            return ConstantVariable.create(None)
        if name == "__delattr__":  # as of any object
            return super(AutogradFunctionContextVariable, self).call_method(tx, name, args, kwargs)
        return was(self, tx, name, args, kwargs)

    def traced(was: Any, self: Any, tx: Any, ctx: Any, *args: Any, **how: Any) -> Any:
        before = tx.output.side_effects.store_attr_mutations.get(ctx, {}).copy()
        try:
            with torch._dynamo.config.patch(trace_autograd_ops=True):
                return was(self, tx, ctx, *args, **how)
        finally:  # what backward puts on ctx, or deletes, is not there for what follows
            now = tx.output.side_effects.store_attr_mutations
            if ctx in now:
                now[ctx] = before

    def accumulated(*args: Any, **how: Any) -> Any:
        raise UnsupportedModelError(
            "forward, or the backward of an autograd.Function, calls backward() of a tensor: in a "
            "Function return the gradients that torch.autograd.grad gives; a Function that "
            "computes again in backward may be left out, for the library does so by itself\n"
            f"  {traced_line()}"
        )

    def attribute(was: Any, self: Any, tx: Any, name: str) -> Any:
        value = inspect.getattr_static(self.fn_cls, name, None)
        if self.source is None or not isinstance(value, _NUMBERS):
            return was(self, tx, name)
        return VariableTracker.build(tx, value, AttrSource(self.source, name))

    def looked_at(was: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        _check_vmap(self.fn_cls, (*args, *kwargs.values()))
        if kwargs or _knows_ctx(self.fn_cls, args):
            return was(self, tx, args, kwargs)
        forward = self.fn_cls.forward
        source = None if self.source is None else AttrSource(self.source, "forward")
        function = VariableTracker.build(tx, forward, source=source, realize=True)
        given = list(args)
        if _takes_ctx(self.fn_cls):
            given.insert(0, AutogradFunctionContextVariable.create(tx, args, kwargs))
        return function.call_function(tx, given, kwargs)

    names: Any = vmap._get_name
    with (
        rules_in_this_thread({names: _Name}),
        patched_in_this_thread(
            (AutogradFunctionVariable, "call_apply", looked_at),
            (AutogradFunctionVariable, "var_getattr", attribute),
            (AutogradFunctionApplyVariable, "prepare_fn_vt", prepared),
            (AutogradFunctionApplyVariable, "call_function", applied),
            (AutogradFunctionApplyVariable, "trace_backward_graph", traced),
            (AutogradFunctionContextVariable, "call_method", called),
            (TensorVariable, "method_backward", accumulated),
        ),
    ):
        yield
