"""A captured model as a graph of its own: values, and operations on them.

What does not depend on the inputs of the call (counters, folded weights, drawn masks of whole
images, constants) is told apart: PyTorch runs it before each call, under its autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Value:
    """A tensor of a graph.

    Attributes
    ----------
    name : str
        Unique in its graph.
    shape : tuple of int
    dtype : torch.dtype
    kind : str
        "input", "parameter", "buffer", "constant", or "made" by an operation.
    source : str
        Of a parameter or a buffer its name in the model; of an input its number.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "made"
    source: str = ""


@dataclass(frozen=True, eq=False)
class Operation:
    """One ATen operation on values.

    Attributes
    ----------
    function : callable
        What PyTorch runs.
    name : str
        "conv2d": without its overload, and without the underscore of one that works in place.
    args, kwargs
        As the function takes them, with values in place of tensors.
    arguments : mapping
        All of them by their names in ATen's schema, those that were left out included.
    results : tuple of Value or None
        None for what is no tensor, or is never used.
    module : str
        The name of the module it is in: "layer1.0.conv1".
    where : str
        The line of the user's model.
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    results: tuple[Value | None, ...]
    module: str = ""
    where: str = ""

    @property
    def said(self) -> str:
        """As PyTorch calls it."""
        return str(self.function)

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values among its arguments."""
        return tuple(values_in((self.args, dict(self.kwargs))))


@dataclass(frozen=True, eq=False)
class Graph:
    """A captured model.

    Attributes
    ----------
    given : tuple of Value
        Inputs, parameters, buffers and constants.
    before : tuple of Operation
        What depends on no input: PyTorch runs it.
    operations : tuple of Operation
        The rest, in order; none works in place.
    counted : tuple of Operation
        Counters, which go up when a call has succeeded.
    outputs : tuple
        Values, and what is no tensor, in the order of `torch.utils._pytree`.
    structure : TreeSpec
        How the outputs are put together.
    constants : mapping
        Tensors that the model holds beside parameters and buffers, by value name.
    """

    given: tuple[Value, ...]
    before: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    counted: tuple[Operation, ...]
    outputs: tuple[Any, ...]
    structure: Any
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Those that a call brings, in order."""
        found = (value for value in self.given if value.kind == "input")
        return tuple(sorted(found, key=lambda value: int(value.source)))


def values_in(tree: Any) -> list[Value]:
    """All values within lists, tuples and dicts, in order."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [value for each in tree for value in values_in(each)]


def replaced(tree: Any, found: Callable[[Value], Any]) -> Any:
    """The same lists, tuples and dicts, with what is found for each value in its place."""
    if isinstance(tree, Value):
        return found(tree)
    if isinstance(tree, Mapping):
        return {name: replaced(each, found) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replaced(each, found) for each in tree)
    return tree
