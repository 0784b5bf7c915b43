"""Bodies of functions of functions, as PyTorch runs them: graphs of TorchDynamo's in operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from ooc_cudnn.torch.autograd.unhooked_alias import unhooked_alias
from ooc_cudnn.torch.tracing.graph import Value

#: Move a tensor to a device that their name says.
_MOVES = (torch.Tensor.cpu, torch.Tensor.cuda)


def text_of(module: Any) -> str:
    """All that a graph computes, as text."""
    if not isinstance(module, torch.fx.GraphModule):
        return str(module)
    parts = [text_of(each) for each in module.children()]
    return "\n".join([str(module.graph), *parts])


class OnDevice(TorchFunctionMode):
    """Mode that has functions make their tensors on one device, whichever they are told."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES:
            return args[0]
        if kwargs.get("device") is not None or func in _device_constructors():
            kwargs["device"] = self._device
        if func is torch.Tensor.to:
            args = tuple(self._device if isinstance(each, str) else each for each in args)
        args = pytree.tree_map_only(torch.device, lambda _: self._device, args)
        return func(*args, **kwargs)


class Body(torch.nn.Module):
    """A graph as a function of tensors, which makes others where these are.

    TorchDynamo's graph names the device of the capture. A card may compute what is on the host,
    and the cost is found on tensors without memory.

    Parameters
    ----------
    module : GraphModule
    """

    tags = ()

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.body = _with_children(module)

    def forward(self, *given: Any) -> Any:
        """Compute what the graph says."""
        devices = (each.device for each in given if isinstance(each, torch.Tensor))
        device = next(devices, None)
        with nullcontext() if device is None else OnDevice(device):
            return torch.fx.Interpreter(self.body).run(*given)

    def __str__(self) -> str:
        return text_of(self.body)

    def as_graph(self) -> torch.fx.GraphModule:
        """The same as a graph of one node, for those who take no other functions."""
        graph = torch.fx.Graph()
        names = [each.name for each in self.body.graph.nodes if each.op == "placeholder"]
        read = tuple(graph.placeholder(each) for each in names)
        graph.output(graph.call_module("body", read))
        return torch.fx.GraphModule({"body": self}, graph)


def _with_children(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, with those of functions of functions within it so, too."""
    children = [(n, e) for n, e in module.named_children() if isinstance(e, torch.fx.GraphModule)]
    if not children:
        return module
    made = torch.fx.GraphModule(module, module.graph)
    for name, child in children:
        setattr(made, name, Body(child).as_graph())
    return made


class Bound:
    """A function of functions, with all of its arguments but for tensors."""

    tags = ()

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        leaves, self._structure = pytree.tree_flatten((args, dict(kwargs)))
        self._leaves = [None if isinstance(each, torch.Tensor) else each for each in leaves]
        self._places = [at for at, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        self._function = function

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call it with these."""
        leaves = list(self._leaves)
        for at, tensor in zip(self._places, tensors, strict=True):
            leaves[at] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return self._function(*args, **kwargs)

    def __str__(self) -> str:
        return "\n".join(map(text_of, (self._function, *self._leaves)))


@dataclass(frozen=True, eq=False)
class OnClones:
    """A function that changes some of its tensors: it is given clones of those, by number.

    It returns its results in one row, and the clones behind them.
    """

    function: Callable[..., Any]
    changed: tuple[int, ...]
    tags = ()

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call it with clones."""
        own = [each.clone() if at in self.changed else each for at, each in enumerate(tensors)]
        results = pytree.tree_leaves(self.function(*own))
        return *results, *(own[at] for at in self.changed)

    def __str__(self) -> str:
        return f"on clones of {self.changed}: {self.function}"


@dataclass(frozen=True, eq=False)
class Hooked:
    """Hands a tensor on, and calls a hook with its gradient."""

    body: Callable[..., Any]
    tags = ()

    def __call__(self, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        made = unhooked_alias(tensor)
        if made.requires_grad:
            made.register_hook(lambda gradient: self._changed(gradient, *others))
        return made

    def _changed(self, gradient: torch.Tensor, *others: torch.Tensor) -> Any:
        found = self.body(gradient, *others)
        return found[0] if isinstance(found, tuple) else found

    def __str__(self) -> str:
        return f"register_hook {text_of(self.body)}"


class _ZerosBehind(torch.autograd.Function):
    """A tensor as it is; backward hands zeros to others."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        ctx.shapes = [each.shape for each in others]
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """The gradient, and zeros."""
        return gradient, *(gradient.new_zeros(()).expand(shape) for shape in ctx.shapes)


@dataclass(frozen=True, eq=False)
class WithZeros:
    """A function of the first arguments; gradients of its results are zeros for the others.

    It returns its results in one row. Those with a gradient are `followed`, by number.
    """

    function: Callable[..., Any]
    others: int
    followed: tuple[int, ...]

    @classmethod
    def of(
        cls, function: Callable[..., Any], zeroed: Sequence[Value], results: Sequence[Value | None]
    ) -> WithZeros:
        """A function that makes these results, with zeros for other values."""
        followed = (at for at, each in enumerate(results) if each and each.requires_grad)
        return cls(function, len(zeroed), tuple(followed))

    @property
    def tags(self) -> Any:
        """Those of the function."""
        return getattr(self.function, "tags", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it with those that it takes."""
        count = len(args) - self.others
        results = pytree.tree_leaves(self.function(*args[:count], **kwargs))
        return tuple(
            _ZerosBehind.apply(each, *args[count:]) if at in self.followed else each
            for at, each in enumerate(results)
        )

    def __str__(self) -> str:
        return f"zeros for {self.others} others of {self.followed}: {self.function}"
