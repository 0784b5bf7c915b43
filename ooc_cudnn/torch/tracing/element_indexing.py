"""Indices that are numbers in tensors: `y[:, t]`, `q[ptr] = v`, `y.narrow(1, t, 2)`.

PyTorch asks such a tensor for its number. A fake tensor has none; and where TorchDynamo knows one,
it is a constant, so that each number is captured anew. Here the tensor itself says what is shown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import EllipsisType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder

#: Makes the view of a tensor along an axis, from a place on: of a length, or one place without the
#: axis.
Shows = Callable[[torch.Tensor, int, torch.Tensor, int | None], torch.Tensor]
_MASKS = (torch.bool, torch.uint8)
#: Entries of an index whose number of axes is known.
_ENTRIES = torch.Tensor | slice | int | torch.SymInt | EllipsisType | None


def part_of(
    x: torch.Tensor, axis: int, start: torch.Tensor, length: int | None = None
) -> torch.Tensor:
    """Return what `x.select(axis, start)` shows, or `x.narrow(axis, start, length)`.

    Of tensors without data, fake and meta ones, it is the first such part.

    >>> x, t = torch.arange(4), torch.tensor(2)
    >>> part_of(x, 0, t), part_of(x, 0, t, 2)
    (tensor(2), tensor([2, 3]))
    """
    first = 0 if start.is_meta or isinstance(start, FakeTensor) else int(start)
    return x.select(axis, first) if length is None else x.narrow(axis, first, length)


def get_item(x: torch.Tensor, index: Any, shows: Shows = part_of) -> torch.Tensor:
    """``x[index]``.

    >>> x = torch.arange(6).reshape(2, 3)
    >>> get_item(x, (slice(None), torch.tensor(-1))), get_item(x, (None, ..., torch.tensor(0)))
    (tensor([2, 5]), tensor([[0, 3]]))
    """
    x, left = _without_numbers(x, index, shows)
    return x if left == () else x[left]


def set_item(x: torch.Tensor, index: Any, value: Any, shows: Shows = part_of) -> None:
    """``x[index] = value``."""
    x, left = _without_numbers(x, index, shows)
    x[left] = value


def select(x: torch.Tensor, dim: int, index: Any, shows: Shows = part_of) -> torch.Tensor:
    """``x.select(dim, index)``."""
    return shows(x, dim % x.ndim, index, None)


def narrow(x: torch.Tensor, dim: int, start: Any, length: int, shows: Shows = part_of) -> Any:
    """``x.narrow(dim, start, length)``."""
    return shows(x, dim % x.ndim, start, length)


#: By what a node of a graph calls, the function that takes an index from a tensor.
_OURS: dict[Any, Callable[..., Any]] = {
    operator.getitem: get_item,
    operator.setitem: set_item,
    torch.select: select,
    torch.narrow: narrow,
    "select": select,
    "narrow": narrow,
}
_OURS |= {each: each for each in _OURS.values()}


def in_place_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """The function that does what a node of a graph does, if an index of it is in a tensor."""
    function = _OURS.get(target) if isinstance(target, str) or callable(target) else None
    if function is None or not isinstance(args[0], torch.Tensor):
        return None
    if function in (get_item, set_item):
        return function if any(map(_is_number, _entries(args[1]))) else None
    return function if any(map(_is_number, (*args[1:], *kwargs.values()))) else None


@contextmanager
def indices_followed() -> Iterator[None]:
    """Have TorchDynamo ask no index for its number."""

    def by_tensors(was: Any, tracer: Any, node: Any, args: Any, kwargs: Any, module: Any) -> Any:
        function = in_place_of(node.target, args, kwargs)
        if function is not None:
            node.op, node.target = "call_function", function
        return was(tracer, node, args, kwargs, module)

    with patched_in_this_thread((torch._dynamo.utils, "run_node", by_tensors)):
        yield


def recorded_part(
    recorder: Recorder, x: torch.Tensor, axis: int, start: torch.Tensor, length: int | None = None
) -> torch.Tensor:
    """Record `part_of` for fake tensors that a recorder knows: a view by a value."""
    places = start.long()
    if length is not None:
        first = torch.where(places < 0, places + x.shape[axis], places)
        places = first + torch.arange(length, device=places.device)
    with recorder.paused():
        shown = part_of(x, axis, start, length)
    base, index = map(recorder.memories.read, (x, places))
    result = recorder.value_like(shown)
    indices = [*[None] * axis, index]
    read = base if torch.is_grad_enabled() else recorder.detached(base)
    function = torch.ops.aten.index.Tensor
    recorder.emit(function, "index", (read, indices), {}, (result,), function._schema)
    recorder.memories.shows_at(shown, result, x, indices)
    return shown


def _is_number(index: Any) -> bool:
    """True if an index is a tensor that PyTorch asks for its number."""
    if not isinstance(index, torch.Tensor) or index.ndim > 0 or index.dtype in _MASKS:
        return False
    return not index.dtype.is_floating_point and not index.dtype.is_complex


def _entries(index: Any) -> tuple[Any, ...]:
    """The entries of an index, none if it has lists or arrays among them."""
    entries = index if isinstance(index, tuple) else (index,)
    return entries if all(isinstance(each, _ENTRIES) for each in entries) else ()


def _without_numbers(x: torch.Tensor, index: Any, shows: Shows) -> tuple[torch.Tensor, Any]:
    """The part that numbers in tensors show, and what of an index is left for it."""
    entries, left, axis = _entries(index), list[Any](), 0
    if not any(map(_is_number, entries)):
        return x, index
    rest = x.ndim - sum(map(_axes, entries))
    for entry in entries:
        if _is_number(entry):
            x = shows(x, axis, entry, None)
        else:
            left.append(entry)
            axis += rest if entry is Ellipsis else _axes(entry)
    return x, tuple(left)


def _axes(entry: Any) -> int:
    """The number of axes that an entry of an index stands for."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    is_mask = isinstance(entry, torch.Tensor) and entry.dtype in _MASKS
    return entry.ndim if is_mask else 1
