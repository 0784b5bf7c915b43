"""Operations whose results one node of the network makes, so that backward runs once for all.

PyTorch calls the backward of an operation once, with the gradients of all of its results. Made
apart, each result of several would have a backward of its own. That is the same for a derivative,
which is linear in the gradients, and takes twice the time; a user's own backward may clip them, or
take their norm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ooc_cudnn.torch.tracing.graph import Operation, Value, name_of
from ooc_cudnn.torch.tracing.image_axes import MOVES

#: The floats that hold all integers of a dtype, those of eight bytes as two of four.
HELD_AS = {
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.float32),
    **dict.fromkeys((torch.int32, torch.int64), torch.float64),
}


def is_linear(operation: Operation) -> bool:
    """True if what backward makes of several gradients is the sum of what it makes of each."""
    function: Any = operation.function
    while hasattr(function, "target"):
        function = function.target
    return isinstance(function, torch._ops.OpOverload) and function.namespace == "aten"


def is_map(value: Value) -> bool:
    """True if a tensor of a network may be a value."""
    return 2 <= len(value.shape) <= 5 and 0 not in value.shape and value.dtype.is_floating_point


def may_be_row(value: Value) -> bool:
    """True if a network may hold a value's elements."""
    dtype = value.dtype
    held = dtype.is_complex or dtype.is_floating_point or dtype in HELD_AS
    return held and 0 not in value.shape


@dataclass(frozen=True)
class Readers:
    """Readers of the values of a graph.

    Attributes
    ----------
    of : mapping
        The operations that read a value.
    asked : collection of Value
        What a call makes for others.
    at : mapping
        Of each operation a number: what stands for another one has its number.
    """

    of: Mapping[Value, Sequence[Operation]]
    asked: Collection[Value]
    at: Mapping[Operation, float]

    def follow(self, value: Value | None) -> bool:
        """True if a gradient of a value may be asked for."""
        if value is None or not value.requires_grad:
            return False
        made = (each for reader in self.of.get(value, ()) for each in reader.results)
        return value in self.asked or any(each and each.requires_grad for each in made)

    def joint(
        self, operations: Sequence[Operation], value: Value, makers: Mapping[Value, Operation]
    ) -> Iterator[tuple[Operation, list[Value]]]:
        """Those of the operations behind a value that must be a node, and its results.

        One that makes several, and one whose backward is not linear and that others depend on, too.
        A map that others read is made before in any case.

        Parameters
        ----------
        operations : sequence of Operation
            In order: the last makes the value.
        makers : mapping
            Of the values that are still to be made what makes each.
        """
        if not operations:
            return
        *before, last = operations
        own = self._followed(last, makers)
        linear, are_maps = is_linear(last), all(map(is_map, own))
        made_apart = last.name in MOVES or (linear and not are_maps)
        is_read_again = len(self.of.get(value, ())) + (value in self.asked) > 1
        shared = self.shared(operations, [value] if made_apart else last.results)
        for operation in before:
            if operation in shared and not is_linear(operation):
                yield operation, self._followed(operation, makers)
        is_joint = len(own) > 1 or (is_read_again and not are_maps)
        if value in own and is_joint and not made_apart:
            yield last, own

    def _followed(self, operation: Operation, makers: Mapping[Value, Operation]) -> list[Value]:
        made = (each for each in operation.results if each is not None)
        return [each for each in made if makers.get(each) is operation and self.follow(each)]

    def shared(
        self, operations: Sequence[Operation], own: Collection[Value | None]
    ) -> set[Operation]:
        """Those that others depend on, too, in any way but by what is their `own`."""
        by_number = {self.at[each]: each for each in operations}
        found = set[Operation]()
        for operation in reversed(operations):
            for result in operation.results:
                if result is None or result in own:
                    continue
                readers = (by_number.get(self.at[each]) for each in self.of.get(result, ()))
                if result in self.asked or any(each is None or each in found for each in readers):
                    found.add(operation)
        return found


class Row(NamedTuple):
    """A value as a row of real numbers, which a network holds.

    Attributes
    ----------
    value : Value
    makes, shows : tuple of Operation
        What makes the row of the value; and the value of the row.
    """

    value: Value
    makes: tuple[Operation, ...]
    shows: tuple[Operation, ...]


def as_row(value: Value) -> Row:
    """A value as a row. Of complex numbers these are the real and the imaginary parts.

    >>> row = as_row(Value("places", (2, 3), torch.int64))
    >>> row.value.shape, row.value.dtype
    ((1, 12), torch.float64)
    """
    if value.dtype in HELD_AS:
        return _of_integers(value)
    aten, dtype, shape = torch.ops.aten, value.dtype.to_real(), value.shape
    if value.dtype.is_complex:
        shape = (*shape, 2)
    row = replace(value, name=f"{value.name}.row", shape=(1, math.prod(shape)), dtype=dtype)
    if not value.dtype.is_complex:
        return Row(row, (_reshape(value, row),), (_reshape(row, value),))
    plain = replace(value, name=f"{value.name}.plain")  # a view that is conjugated shows no parts
    parts, shown = (
        replace(value, name=f"{value.name}.{what}", shape=shape, dtype=dtype)
        for what in ("parts", "shown")
    )
    makes = (
        _of_one(aten.resolve_conj.default, value, plain),
        _of_one(aten.view_as_real.default, plain, parts),
        _reshape(parts, row),
    )
    return Row(
        row, makes, (_reshape(row, shown), _of_one(aten.view_as_complex.default, shown, value))
    )


def _of_integers(value: Value) -> Row:
    """Integers or booleans as a row of floats, each exactly."""
    aten, dtype = torch.ops.aten, value.dtype
    halves = torch.int32 if dtype == torch.int64 else dtype
    count = math.prod(value.shape)
    flat = replace(value, name=f"{value.name}.flat", shape=(1, count))
    count *= dtype.itemsize // halves.itemsize
    parts = replace(flat, name=f"{value.name}.parts", shape=(1, count), dtype=halves)
    row = replace(parts, name=f"{value.name}.row", dtype=HELD_AS[dtype])
    view, to = aten.view.dtype, aten.to.dtype
    return Row(
        row,
        (
            _reshape(value, flat),
            _of_one(view, flat, parts, dtype=halves),
            _of_one(to, parts, row, dtype=row.dtype),
        ),
        (
            _of_one(to, row, parts, dtype=halves),
            _of_one(view, parts, flat, dtype=dtype),
            _reshape(flat, value),
        ),
    )


def _reshape(source: Value, target: Value) -> Operation:
    return _of_one(torch.ops.aten.reshape.default, source, target, shape=list(target.shape))


def _of_one(function: Any, source: Value, target: Value, **told: Any) -> Operation:
    args, arguments = (source, *told.values()), {"self": source, **told}
    return Operation(function, name_of(function), args, {}, arguments, (target,))
