"""What PyTorch runs before each call: what depends on no input of it. Small, and differentiated.

Folded weights (weight_norm), drawn masks of whole images, constants, counters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ooc_cudnn.torch.graph import Graph, Operation, Value, replaced


def run_before(
    graph: Graph, more: Sequence[Operation], given: Mapping[Value, Any]
) -> dict[Value, Any]:
    """Run what comes before; return all values that are known then.

    Parameters
    ----------
    more : sequence of Operation
        What is run after what the graph says.
    given : mapping
        Inputs, parameters and buffers, as the model holds them.
    """
    found = dict(given)
    for value in graph.given:
        if value.kind == "constant":
            found[value] = graph.constants[value.name]
    for operation in (*graph.before, *more):
        _run(operation, found)
    return found


def run_after(operations: Sequence[Operation], found: dict[Value, Any]) -> None:
    """Run what is left to PyTorch on results of the network, under its autograd."""
    for operation in operations:
        first = operation.args[0] if operation.args else None
        in_place = str(getattr(operation.function, "_opname", "")).endswith("_")
        if in_place and isinstance(first, Value):  # backward may still read it
            found[first] = found[first].clone()
        _run(operation, found)


def count(graph: Graph, found: dict[Value, Any]) -> None:
    """Let counters go up: the call has succeeded. Those that go up alike do so together."""
    together: dict[int | float, dict[int, torch.Tensor]] = {}
    with torch.no_grad():
        for operation in graph.counted:
            args = operation.args
            if operation.name == "add" and len(args) == 2 and isinstance(args[1], int | float):
                counter, alike = found[args[0]], together.setdefault(args[1], {})
                if id(counter) not in alike:  # that of a module which runs twice goes up twice
                    alike[id(counter)] = counter
                    continue
            _run(operation, found)
        for more, counters in together.items():
            torch._foreach_add_([*counters.values()], more)


def _run(operation: Operation, found: dict[Value, Any]) -> None:
    args = replaced(operation.args, found.__getitem__)
    made = operation.function(*args, **replaced(dict(operation.kwargs), found.__getitem__))
    parts = made if isinstance(made, tuple | list) else (made,)
    for value, part in zip(operation.results, parts, strict=False):
        if value is not None:
            found[value] = part


def differentiable(graph: Graph, leaves: Collection[Value]) -> frozenset[Value]:
    """Values that are given or made before, of which a gradient can be made: from the leaves on."""
    found = set(leaves)
    for operation in graph.before:
        if found.intersection(operation.reads):
            found.update(
                value
                for value in operation.results
                if value is not None and value.dtype.is_floating_point
            )
    return frozenset(found)
