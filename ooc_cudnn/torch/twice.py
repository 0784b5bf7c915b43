"""A model captured twice: what Python makes anew in each call would stay that of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.capture import capture
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.graph import Graph, Operation
from ooc_cudnn.torch.parts import is_plain
from ooc_cudnn.torch.ranks import within_ddp

Attributes = dict[tuple[torch.nn.Module, str], Any]


def captured_twice(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Graph:
    """Capture a call as `capture` does; refuse a model whose forward does not do the same twice.

    Raises
    ------
    UnsupportedModelError
        As of `capture`; or with the first operation that is another one, or is told something else.

    Examples
    --------
    >>> class Counting(torch.nn.Module):
    ...     calls = 0
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x * self.calls
    >>> model = Counting()
    >>> captured_twice(model, model.forward, [torch.ones(2)], {})
    Traceback (most recent call last):
    ...
    ooc_cudnn.torch.errors.UnsupportedModelError: Counting does not do the same in each call: ...
    """
    inner = within_ddp(model)
    after: Attributes = {}

    def noting(*args: Any, **kwargs: Any) -> Any:
        before = _tensors(inner)
        made = forward(*args, **kwargs)
        # capture puts them back; with tensors, which are fake, all of a module begins anew
        keeping = {at[0] for at, each in _tensors(inner).items() if before.get(at) is not each}
        found = _attributes(inner).items()
        after.update({at: value for at, value in found if at[0] not in keeping})
        return made

    first = capture(model, noting, args, kwargs)
    with _set(inner, after):
        _check_alike(inner, first, capture(model, forward, args, kwargs))
    return first


def _attributes(model: torch.nn.Module) -> Attributes:
    """The numbers, strings and tuples of them that modules hold."""
    return {
        (module, name): value
        for module in model.modules()
        for name, value in vars(module).items()
        if is_plain(value)
    }


def _tensors(model: torch.nn.Module) -> Attributes:
    """The tensors that modules hold, parameters aside."""
    return {
        (module, name): value
        for module in model.modules()
        for name, value in (*vars(module).items(), *module._buffers.items())
        if isinstance(value, torch.Tensor)
    }


@contextmanager
def _set(model: torch.nn.Module, after: Attributes) -> Iterator[None]:
    """Let modules have attributes as a call has left them, in this block."""
    before = _attributes(model)
    changed = {each: value for each, value in after.items() if before.get(each, after) != value}
    for (module, name), value in changed.items():
        vars(module)[name] = value
    try:
        yield
    finally:
        for module, name in changed:
            del vars(module)[name]
            if (module, name) in before:
                vars(module)[name] = before[module, name]


def _check_alike(model: torch.nn.Module, first: Graph, second: Graph) -> None:
    pairs = zip_longest(_operations(first), _operations(second))
    other = next((one or two for one, two in pairs if _told(one) != _told(two)), None)
    constants = first.constants, second.constants
    outputs = _comparable(first.outputs), _comparable(second.outputs)
    if other is None and outputs[0] == outputs[1] and _are_equal(*constants):
        return
    where = "" if other is None else f": {other.said}\n  {other.where}"
    raise UnsupportedModelError(
        f"{type(model).__name__} does not do the same in each call: what Python draws or counts in "
        "forward (random.random(), self.calls += 1) would stay as it was at the first. Draw it "
        f"with torch, or hand it in as an argument{where}"
    )


def _operations(graph: Graph) -> tuple[Operation, ...]:
    return *graph.before, *graph.operations, *graph.counted


def _told(operation: Operation | None) -> Any:
    """What an operation is told; a function may be made for one capture."""
    return operation and (
        operation.name,
        _comparable((operation.args, dict(operation.kwargs))),
        operation.results,
    )


def _comparable(tree: Any) -> Any:
    """The same, in which what is not a number is equal to itself."""
    return pytree.tree_map(lambda e: "nan" if isinstance(e, float) and e != e else e, tree)


def _are_equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(_alike(one[name], two[name]) for name in one)


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether tensors are equal; what is not a number is equal to itself."""
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())
