"""Maps (c, spatial...) without an axis of images, which PyTorch's convolutions and poolings take.

The network's maps have images. So what reads such a map in windows, and what follows it, is taken
of a batch of one, which is what PyTorch does itself; the axis goes again where something reads the
map as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import torch

from ooc_cudnn.torch.lowering.fallbacks import draws
from ooc_cudnn.torch.tracing.autocast import AUTOCAST
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, replace_values
from ooc_cudnn.torch.tracing.image_axes import PER_ELEMENT, RESHAPES

#: What reads maps of so many spatial axes, with an axis of images or without.
WINDOWED = re.compile(
    r"(conv|conv_transpose|(max|avg)_pool|adaptive_(max|avg)_pool)(?P<axes>[123])d(_with_indices)?"
)
#: Of which PyTorch takes the second axis for that of channels, whatever there is.
BY_CHANNEL = frozenset({"feature_dropout"})


def add_batch_axis(graph: Graph) -> Graph:
    """The same graph with batches of one in place of maps without images."""
    if not any(is_unbatched(each) for each in graph.operations):
        return graph
    return _BatchAxisPass(graph).graph()


def is_unbatched(operation: Operation) -> bool:
    """True if an operation reads a map, or a vector, without an axis of images."""
    if operation.name.removesuffix(AUTOCAST) == "linear":
        return len(operation.reads[0].shape) == 1
    found = WINDOWED.fullmatch(operation.name.removesuffix(AUTOCAST))
    return found is not None and len(operation.reads[0].shape) == int(found["axes"]) + 1


class _BatchAxisPass:
    """A graph being written again."""

    def __init__(self, graph: Graph) -> None:
        self._before = graph
        self._operations: list[Operation] = []
        #: Of each map the batch of one, if there is one.
        self._batches: dict[Value, Value] = {}
        self._of_inputs = {value for value in graph.given if value.kind == "input"}
        self._of_inputs.update(
            value for each in graph.operations for value in each.results if value is not None
        )
        #: What makes a map, of batches as well as of maps; and those that are there as batches.
        self._makers: dict[Value, Operation] = {}
        self._waiting: dict[Value, Operation] = {}

    def graph(self) -> Graph:
        """Write everything."""
        for operation in self._before.operations:
            self._write(operation)
        for output in self._before.outputs:
            if isinstance(output, Value):
                self._as_it_was(output)
        return replace(self._before, operations=tuple(self._operations))

    def _write(self, operation: Operation) -> None:
        x = operation.reads[0]
        if is_unbatched(operation):
            batched = self._changed(operation, {x: self._batch(x)})
        elif _adds_the_axis(operation) and x in self._batches:
            batched = replace(
                operation, function=torch.ops.aten.alias.default, name="alias", kwargs={},
                args=(self._batches[x],), arguments={"self": self._batches[x]},
            )  # fmt: skip
            self._operations.append(batched)
            return
        elif self._is_of_maps(operation):
            batched = self._of_batches(operation)
        else:
            for value in operation.reads:
                self._as_it_was(value)
            self._operations.append(operation)
            if _follows(operation) and not draws(operation):  # it would draw once more
                self._makers.update({y: operation for y in operation.results if y is not None})
            return
        self._enter(operation, batched)

    def _is_of_maps(self, operation: Operation) -> bool:
        """True if batches go through an operation: not where a map meets images."""
        maps = [each for each in operation.reads if each in self._batches]
        ranks = {len(y.shape) for y in operation.results if y is not None}
        meets = operation.name in PER_ELEMENT and any({len(each.shape)} != ranks for each in maps)
        return bool(maps) and _follows(operation) and not meets

    def _enter(self, operation: Operation, made: Operation) -> None:
        """Add what makes batches of what an operation made."""
        self._operations.append(made)
        for y, batch in zip(operation.results, made.results, strict=True):
            if y is not None and batch is not None:
                self._batches[y] = batch
                self._waiting[y] = operation

    def _batch(self, x: Value) -> Value:
        """A map as a batch of one: made so, or given another axis."""
        if x not in self._batches and x in self._makers:
            operation = self._makers[x]
            self._enter(operation, self._of_batches(operation))
            for y in operation.results:
                self._waiting.pop(y, None)  # type: ignore[arg-type]  # it is there already
        if x not in self._batches:
            self._batches[x] = batch = _batch_of(x)
            function, told = torch.ops.aten.unsqueeze.default, {"self": x, "dim": 0}
            self._operations.append(Operation(function, "unsqueeze", (x, 0), {}, told, (batch,)))
        return self._batches[x]

    def _as_it_was(self, y: Value) -> None:
        """Have a map there without the axis of images."""
        made_by = self._waiting.pop(y, None)
        if made_by is None:
            return
        batch, function = self._batches[y], torch.ops.aten.squeeze.dim
        told = {"self": batch, "dim": 0}
        self._operations.append(
            Operation(
                function, "squeeze", (batch, 0), {}, told, (y,), made_by.module, made_by.where
            )
        )

    def _of_batches(self, operation: Operation) -> Operation:
        """The operation behind maps, of batches: values of the result's rank have such an axis."""
        (y,) = operation.results
        assert y is not None
        if operation.name in RESHAPES:
            x, shape = self._batch(operation.reads[0]), [1, *y.shape]
            function, told = torch.ops.aten.reshape.default, {"self": x, "shape": shape}
            return replace(
                operation, function=function, name="reshape", args=(x, shape), kwargs={},
                arguments=told, results=(_batch_of(y),),
            )  # fmt: skip
        depends = {
            x: self._batch(x)
            for x in operation.reads
            if x in self._of_inputs and len(x.shape) == len(y.shape)
        }
        if operation.name not in ("cat", "concat"):
            return self._changed(operation, depends)
        tensors = [depends.get(x) or self._batch(x) for x in operation.reads]
        dim = operation.arguments["dim"] % len(y.shape) + 1
        return replace(
            operation, args=(tensors, dim), kwargs={},
            arguments={"tensors": tensors, "dim": dim}, results=(_batch_of(y),),
        )  # fmt: skip

    @staticmethod
    def _changed(operation: Operation, batches: Mapping[Value, Value]) -> Operation:
        def put(value: Value) -> Value:
            return batches.get(value, value)

        return replace(
            operation,
            args=replace_values(operation.args, put),
            kwargs=replace_values(dict(operation.kwargs), put),
            arguments=replace_values(dict(operation.arguments), put),
            results=tuple(y and _batch_of(y) for y in operation.results),
        )


def _batch_of(x: Value) -> Value:
    return Value(f"{x.name}_batch", (1, *x.shape), x.dtype, requires_grad=x.requires_grad)


def _adds_the_axis(operation: Operation) -> bool:
    return operation.name == "unsqueeze" and operation.arguments["dim"] == 0


def _follows(operation: Operation) -> bool:
    """True if it makes of a batch what it makes of a map, with the axis of images before it.

    What has as many axes as the result has the axis, too; what has fewer is broadcast.
    """
    if len(operation.results) != 1 or operation.results[0] is None:
        return False
    rank, name = len(operation.results[0].shape), operation.name.removesuffix(AUTOCAST)
    if name in RESHAPES:
        return operation.arguments.get("dtype") is None and name == operation.name
    if name in ("cat", "concat"):
        return name == operation.name
    if name in ("constant_pad_nd", "pad"):
        return 2 * rank >= len(operation.arguments["pad"])
    if name == "prelu":
        return operation.reads[-1].shape in ((), (1,))
    return name in PER_ELEMENT - BY_CHANNEL and max(len(x.shape) for x in operation.reads) == rank
