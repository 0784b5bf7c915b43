"""A captured model as a graph of its own: values, and operations on them.

What does not depend on the inputs of the call (counters, folded weights, drawn masks of whole
images, constants) is told apart: PyTorch runs it before each call, under its autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from perfmodel.cached import cached_property

#: The name of an operation that a `torch.autograd.Function` is.
FUNCTION = "autograd_function_apply"


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
        "input", "parameter", "buffer" (any other tensor that the model holds), "constant", or
        "made" by an operation.
    source : str
        Of a parameter or a buffer its name in the model; of an input its number.
    requires_grad : bool
        Whether autograd would follow it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "made"
    source: str = ""
    requires_grad: bool = False

    @property
    def is_held(self) -> bool:
        """True if the model holds it."""
        return self.kind in ("parameter", "buffer")


@dataclass(frozen=True, eq=False)
class Operation:
    """One ATen operation on values.

    Attributes
    ----------
    function : callable
        What PyTorch runs.
    name : str
        "conv2d": without its overload, and without the underscore of one that works in place. Of
        another library's with its namespace: "theirs::conv2d".
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
        """Name of it in PyTorch; its own where that would be all of a body."""
        return str(self.function) if isinstance(self.function, OpOverload) else self.name

    @property
    def has_own_backward(self) -> bool:
        """True if a user wrote its backward, as of a function or an operator of another library."""
        return self.name == FUNCTION or "::" in self.name

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The values among its arguments."""
        return tuple(values_in((self.args, dict(self.kwargs))))


class Write(NamedTuple):
    """A write that forward leaves in a tensor it was given, when the call has succeeded.

    Attributes
    ----------
    target : Value
        A buffer, a parameter or an input.
    value : Value
        Its elements.
    as_data : bool
        Whether autograd is not to know (``weight.data = ...``).
    step : int, optional
        Of a counter that nobody reads, by how much it goes up; the value is the target then.
    """

    target: Value
    value: Value
    as_data: bool = False
    step: int | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """A captured model.

    Attributes
    ----------
    given : tuple of Value
        What a call hands in, in order: inputs, parameters, and other tensors that the model holds.
    before : tuple of Operation
        What depends on no input: PyTorch runs it.
    operations : tuple of Operation
        The rest, in order; none works in place.
    effects : tuple of Operation
        Those of them that are there for what they do: assertions on data.
    writes : tuple of Write
        What changes in what is given.
    outputs : tuple
        Values, and what is no tensor.
    constants : mapping
        Tensors that the graph holds itself, by value.
    same : tuple of int
        Of each output the place of the first one that is the same tensor.
    memories : mapping
        In which memory a value lies, by a number.
    views : frozenset of Value
        Those that show memory of the first that their operation reads.
    without_history : frozenset of Value
        Outputs that are views which `no_grad` made, and what is computed of these alone: they ask
        for a gradient, and hand none on.
    read_late : mapping
        What reads them when backward runs, and its line: of values that are given, and by their
        places of outputs.
    told : mapping
        The names of arguments, as the user writes them, by value.
    """

    given: tuple[Value, ...]
    before: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Any, ...]
    effects: tuple[Operation, ...] = ()
    writes: tuple[Write, ...] = ()
    constants: Mapping[Value, torch.Tensor] = field(default_factory=dict)
    same: tuple[int, ...] = ()
    memories: Mapping[Value, int] = field(default_factory=dict)
    views: frozenset[Value] = frozenset()
    without_history: frozenset[Value] = frozenset()
    read_late: Mapping[Value | int, tuple[str, str]] = field(default_factory=dict)
    told: Mapping[Value, str] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Those that a call brings, in order."""
        found = (value for value in self.given if value.kind == "input")
        return tuple(sorted(found, key=lambda value: int(value.source)))

    @cached_property
    def has_history(self) -> bool:
        """Tell whether gradients go back through what forward makes, be it by `enable_grad`."""
        left = (*self.outputs, *(write.value for write in self.writes))
        return any(
            isinstance(each, Value) and each.kind == "made" and each.requires_grad
            for each in left
            if each not in self.without_history
        )

    def told_of(self, value: Value) -> str:
        """Name a value to the user: its name in the model, or that of the argument.

        Of what is made the name of what is given and is the same memory, or the line that made it.
        """
        memory = self.memories.get(value)
        alike = (v for v in self.given if memory is not None and self.memories.get(v) == memory)
        given = value if value.kind != "made" else next(alike, None)
        if given is None:
            makers = (each for each in (*self.before, *self.operations) if value in each.results)
            line = next((each.where for each in makers), "")
            return "a tensor that forward made" + (f" ({line})" if line else "")
        return self.told.get(given) or given.source or given.name

    def made_of(self, value: Value) -> set[Value]:
        """The values whose gradients reach a value."""
        reached = {value}
        for operation in self.operations:
            if reached.intersection(operation.reads):
                reached.update(y for y in operation.results if y is not None and y.requires_grad)
        return reached - {value}

    @property
    def asked(self) -> tuple[Value, ...]:
        """The values that a call makes for others: outputs, what is written, what effects read."""
        values = [each for each in self.outputs if isinstance(each, Value)]
        values += [write.value for write in self.writes if write.step is None]
        values += [value for effect in self.effects for value in effect.reads]
        return tuple(dict.fromkeys(values))


def name_of(function: OpOverload) -> str:
    """The name of what PyTorch runs: "conv2d" of its own, "theirs::conv2d" of another library's.

    >>> name_of(torch.ops.aten.relu.default), name_of(torch.ops.prims.sin.default)
    ('relu', 'sin')
    """
    namespace, _, name = function._schema.name.partition("::")
    return name if namespace in ("aten", "prims") else f"{namespace}::{name}"


def values_in(tree: Any) -> list[Value]:
    """All values within lists, tuples and dicts, in order."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [value for each in tree for value in values_in(each)]


def run_operation(operation: Operation, found: dict[Value, Any]) -> None:
    """Run one in PyTorch, under its autograd."""
    args = replace_values(operation.args, found.__getitem__)
    result = operation.function(*args, **replace_values(dict(operation.kwargs), found.__getitem__))
    parts = result if isinstance(result, tuple | list) else (result,)
    for value, part in zip(operation.results, parts, strict=False):
        if value is not None:
            found[value] = part


def replace_values(tree: Any, found: Callable[[Value], Any]) -> Any:
    """The same lists, tuples and dicts, with what is found for each value in its place."""
    if isinstance(tree, Value):
        return found(tree)
    if isinstance(tree, Mapping):
        return {name: replace_values(each, found) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replace_values(each, found) for each in tree)
    return tree
