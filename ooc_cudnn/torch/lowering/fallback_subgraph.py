"""A fallback subgraph of ATen operations, with its inputs and outputs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from ooc_cudnn.torch.errors import UnsupportedOperationError
from ooc_cudnn.torch.lowering.bitcast import as_it_was
from ooc_cudnn.torch.tracing.filled_tensor import FilledTensor
from ooc_cudnn.torch.tracing.graph import Operation, Value, replace_values
from ooc_cudnn.torch.tracing.image_axes import RESHAPES, ImageAxes

#: Layers that PyTorch says draw random numbers: between them, where dropout is asked for.
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: What fails in PyTorch (2.11 to 2.14) on tensors that are not contiguous.
TAKE_CONTIGUOUS = frozenset({"kron"})


class FallbackResult(NamedTuple):
    """A result of a fallback subgraph.

    Attributes
    ----------
    value : Value
    order : tuple of int
        Of each axis of its array the axis of the value.
    """

    value: Value
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its array."""
        return tuple(self.value.shape[axis] for axis in self.order)

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis of the array for each axis of the value."""
        return tuple(self.order.index(axis) for axis in range(len(self.order)))


@dataclass(frozen=True, eq=False)
class FallbackSubgraph:
    """Operations, and what goes in and out.

    Attributes
    ----------
    operations : tuple of Operation
    inputs : tuple of Value
    orders : tuple of (tuple of int or None)
        Of each input that is of images the axes of its array, by those of the value; None for what
        all images share.
    results : tuple of FallbackResult
        All that one operation makes, where there are several.
    axes : ImageAxes, optional
        Where images lie; None where all are computed at once.
    """

    operations: tuple[Operation, ...]
    inputs: tuple[Value, ...]
    orders: tuple[tuple[int, ...] | None, ...]
    results: tuple[FallbackResult, ...]
    axes: ImageAxes | None

    @property
    def first(self) -> FallbackResult:
        """Its first result, which is the only one of most."""
        return self.results[0]

    @property
    def count(self) -> int:
        """Images."""
        return 1 if self.axes is None else self.axes.count

    def shape(self, value: Value, images: int) -> tuple[int, ...]:
        """Return the shape of a value, for so many images."""
        return value.shape if self.axes is None else self.axes.shape(value, images)

    @property
    def text(self) -> str:
        """All that it computes, as text: two that say the same compute the same."""
        numbers: dict[Value, int] = {}

        def said(value: Value) -> str:
            at = numbers.setdefault(value, len(numbers))
            where = None if self.axes is None else self.axes.of.get(value)
            return f"%{at}:{value.dtype}{list(value.shape)}@{where and tuple(where)}"

        lines = [f"{said(v)} {order}" for v, order in zip(self.inputs, self.orders, strict=True)]
        for operation in self.operations:
            args = replace_values((operation.args, dict(operation.kwargs)), said)
            results = [None if value is None else said(value) for value in operation.results]
            lines.append(f"{results} = {operation.function}{args}")
        made = ", ".join(f"{said(value)} {order}" for value, order in self.results)
        return "\n".join([*lines, f"{made} of {self.count}"])

    def run(
        self, tensors: Sequence[torch.Tensor], images: int, *, is_drawn: bool = False
    ) -> list[torch.Tensor]:
        """Compute the results from arrays of the inputs; all as they lie in the network.

        Where random numbers are drawn, inputs are laid in the order of their axes first: PyTorch
        draws in the order of memory, and each plan of a model has maps lie as it likes.
        """
        values: dict[Value, Any] = {}
        for value, order, tensor in zip(self.inputs, self.orders, tensors, strict=True):
            tensor = as_it_was(value, tensor)
            if order is None:
                tensor = tensor.reshape(value.shape)
            else:  # what is given may have more axes than a tensor of the network
                several = tensor.dim() < len(order)
                shape = self.shape(value, images) if several else tensor.shape
                tensor = tensor.reshape(shape).permute(order)
            values[value] = tensor.contiguous() if is_drawn else tensor
        for operation in self.operations:
            self._run(operation, values, images, tensors[0].device)
        return [values[value].permute(order) for value, order in self.results]

    def _run(
        self,
        operation: Operation,
        values: dict[Value, Any],
        images: int,
        device: torch.device,
    ) -> None:
        name, first = operation.name, operation.results[0]
        expands, reshapes = name == "expand", name in RESHAPES or name == "squeeze"
        if (expands or reshapes) and operation.arguments.get("dtype") is None:
            assert first is not None
            (x,) = operation.reads[:1]
            shape = self.shape(first, images)
            values[first] = values[x].expand(shape) if expands else values[x].reshape(shape)
            return
        if name in ("to", "_to_copy"):  # the device is where it is
            assert first is not None
            values[first] = values[operation.reads[0]].to(first.dtype)
            return
        args = replace_values(operation.args, values.__getitem__)
        if name in TAKE_CONTIGUOUS:
            args = tuple(each.contiguous() for each in args)
        if name in RECURRENT and torch.is_grad_enabled():
            args = _as_in_training(operation, args)
        kwargs = replace_values(dict(operation.kwargs), values.__getitem__)
        if isinstance(operation.function, FilledTensor):  # on the card, or without memory
            kwargs = {"device": device}
        made = _put_by_mask(*args, **kwargs) if name == "index_put" else None
        if made is not None:
            assert first is not None
            values[first] = made
            return
        try:
            with _quiet() if name in RECURRENT else contextlib.nullcontext():
                result = operation.function(*args, **kwargs)
        except DataDependentOutputException as error:
            raise UnsupportedOperationError(
                operation.said,
                operation.where,
                f"it looks at numbers of a tensor as it is called ({error.func}), and none are "
                "known when the model is planned: compute it outside of forward, or limit the "
                "parts before and behind it",
            ) from None
        parts = result if isinstance(result, tuple | list) else (result,)
        for value, part in zip(operation.results, parts, strict=False):
            if value is not None:
                values[value] = part


def _put_by_mask(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor | None:
    """The result of `index_put` by one mask, the same values at all its places; None of others.

    The gradient of values is a sum then. That of `index_put` has first as many rows as places,
    and nothing can be planned for those.
    """
    masks = [(at, each) for at, each in enumerate(indices) if each is not None]
    if len(masks) != 1 or masks[0][1].dtype not in (torch.bool, torch.uint8):
        return None
    ((lead, mask),) = masks
    behind = x.ndim - lead - mask.ndim
    shape = (1,) * (lead + 1 + behind - values.ndim) + tuple(values.shape)
    if len(shape) != lead + 1 + behind or shape[lead] != 1:
        return None
    values = values.reshape(shape[:lead] + (1,) * mask.ndim + shape[lead + 1 :])
    mask = mask.bool().reshape(tuple(mask.shape) + (1,) * behind)
    return torch.where(mask, x + values if accumulate else values, x)


def _as_in_training(operation: Operation, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same numbers by what has a gradient: cuDNN has none of a recurrence in evaluation."""
    names = list(operation.arguments)
    if operation.arguments["train"]:
        return args
    changed = {names.index("train"): True, names.index("dropout"): 0.0}
    return tuple(changed.get(at, each) for at, each in enumerate(args))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warning that weights are not in one piece of memory: arrays are not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single")
        yield
