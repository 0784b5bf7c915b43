"""Linear layers on rows that several axes were joined to: on those axes, as they were.

``nn.MultiheadAttention`` and others write ``linear(x.view(a * b, c)).view(a, b, d)``. A row is no
image of the network's, so PyTorch would compute that; ``linear(x.view(a, b, c))`` is a convolution.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, replace_values
from ooc_cudnn.torch.tracing.image_axes import RESHAPES

#: That a map has.
MOST_AXES = 5


def split_rows(graph: Graph) -> Graph:
    """Return the graph with linear layers on the axes that their results are split into.

    Those whose result is read by one reshape alone, which leaves the last axis as it is.
    """
    readers = _readers(graph)
    makers = {value: each for each in graph.operations for value in each.results if value}
    memories, views = dict(graph.memories), set(graph.views)
    instead: dict[Operation, list[Operation]] = {}
    for operation in graph.operations:
        split = _split(operation, readers)
        if split is None:
            continue
        rows, (joined,) = operation.reads[0], operation.results
        (result,) = split.results
        assert joined is not None
        assert result is not None
        shape = (*result.shape[:-1], rows.shape[-1])
        source = makers.get(rows)
        before = rows if source is None or not _is_reshape(source) else source.reads[0]
        axes = replace(rows, name=f"{rows.name}.axes", shape=shape, kind="made", source="")
        reshape = replace(
            split,
            function=torch.ops.aten.reshape.default,
            name="reshape",
            args=(before, shape),
            kwargs={},
            arguments={"self": before, "shape": shape},
            results=(axes,),
        )
        if rows in memories:
            memories[axes] = memories[rows]
        if rows in views:
            views.add(axes)
        views.discard(result)
        instead[operation] = [reshape, _on(operation, rows, axes, result)]
        instead[split] = []
    if not instead:
        return graph
    operations = [new for old in graph.operations for new in instead.get(old, [old])]
    read = set(graph.asked).union(*(each.reads for each in operations))
    return replace(
        graph,
        operations=tuple(
            each for each in operations if not _is_reshape(each) or read & {*each.results}
        ),
        memories=memories,
        views=frozenset(views),
    )


def _is_reshape(operation: Operation) -> bool:
    """True if an operation reshapes: ``view(dtype)`` takes the bits for other numbers."""
    return operation.name in RESHAPES and operation.arguments.get("dtype") is None


def _readers(graph: Graph) -> dict[Value, list[Operation | None]]:
    """Readers of each value; None for who called."""
    readers: dict[Value, list[Operation | None]] = {}
    for operation in graph.operations:
        for value in operation.reads:
            readers.setdefault(value, []).append(operation)
    for value in graph.asked:
        readers.setdefault(value, []).append(None)
    return readers


def _split(operation: Operation, readers: dict[Value, list[Operation | None]]) -> Operation | None:
    """The reshape that splits the rows of a linear layer's result, and alone reads it."""
    if operation.name != "linear" or Counter(operation.reads)[operation.reads[0]] > 1:
        return None
    (joined,) = operation.results
    if joined is None or len(joined.shape) != 2:
        return None
    (reader, *others) = readers.get(joined, [None])
    if reader is None or others or not _is_reshape(reader):
        return None
    (result,) = reader.results
    if result is None or not 3 <= len(result.shape) <= MOST_AXES or 0 in result.shape:
        return None
    return reader if result.shape[-1] == joined.shape[-1] else None


def _on(operation: Operation, rows: Value, axes: Value, result: Value) -> Operation:
    """A linear layer on other axes."""

    def found(value: Value) -> Value:
        return axes if value == rows else value

    return replace(
        operation,
        args=replace_values(operation.args, found),
        kwargs=replace_values(dict(operation.kwargs), found),
        arguments=replace_values(dict(operation.arguments), found),
        results=(result,),
    )
