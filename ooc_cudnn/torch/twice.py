"""A model captured twice: what Python makes anew in each call would stay that of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch

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
        made = forward(*args, **kwargs)
        after.update(_attributes(inner))  # torch.export puts them back
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
    if other is None and first.outputs == second.outputs and _are_equal(*constants):
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
    return operation and (operation.name, operation.args, operation.kwargs, operation.results)


def _are_equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
