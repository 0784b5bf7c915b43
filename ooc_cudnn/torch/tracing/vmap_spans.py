"""Spans between the begin and the end of a `torch.vmap` in TorchDynamo's graph: one function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ENTERS, _LEAVES = "_vmap_increment_nesting", "_vmap_decrement_nesting"
#: With what a graph begins a derivative of `torch.func`'s.
DERIVES = frozenset({"_grad_increment_nesting", "_jvp_increment_nesting"})
DERIVED = (
    "forward takes a derivative by torch.func (grad, vjp, jvp, ...), which the library has not: "
    "take it outside of forward, or limit the parts before and behind it\n  "
)


@dataclass(eq=False)
class Span:
    """Nodes between the begin and the end of a `torch.vmap`, as one function.

    Attributes
    ----------
    module : GraphModule
    reads, makes : sequence of Node
        Of the graph around it: what it takes, in order, and what it returns.
    """

    module: torch.fx.GraphModule
    reads: Sequence[Any]
    makes: Sequence[Any]


def spans(module: torch.fx.GraphModule) -> Iterator[Any]:
    """The nodes of a graph; those of a vmap as one span each."""
    nodes, index = list(module.graph.nodes), 0
    while index < len(nodes):
        if name_of_call(nodes[index]) != _ENTERS:
            yield nodes[index]
            index += 1
            continue
        depth, last = 0, index
        for last in range(index, len(nodes)):
            depth += (name_of_call(nodes[last]) == _ENTERS) - (name_of_call(nodes[last]) == _LEAVES)
            if depth == 0:
                break
        yield _as_span(module, nodes[index : last + 1])
        index = last + 1


def _as_span(module: torch.fx.GraphModule, nodes: Sequence[Any]) -> Span:
    inside = dict.fromkeys(nodes)
    reads = list(
        dict.fromkeys(e for node in nodes for e in node.all_input_nodes if e not in inside)
    )
    makes = [node for node in nodes if any(user not in inside for user in node.users)]
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in reads}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in makes))
    return Span(torch.fx.GraphModule(module, graph), reads, makes)


def name_of_call(node: Any) -> str:
    """The name of the function that a node calls; none if it calls none."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""
