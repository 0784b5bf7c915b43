"""Automatic differentiation of a graph to a step: forward phases, and backward as a rewrite.

Backward goes through the nodes from the last to the first. When it comes to a node, all who read
its result have added their part to the gradient of that result, so the gradient is complete. Only
nodes on a way from something that wants a gradient are asked for phases: a frozen parameter, and
all before the first one that is not frozen, costs nothing. Which tensors backward reads, and when
for the first and the last time, is what its phases bind.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward, _Emit
from ooc_cudnn.network.graph.fold_casts import fold_casts
from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import GIVEN, Tensor
from ooc_cudnn.settings_table import Settings


def forward_step(graph: Graph, outputs: Sequence[Tensor], settings: Settings) -> Step:
    """Inference: the phases that make outputs, by running statistics and without dropout."""
    return _step(graph, outputs, frozenset(), settings, is_training=False)


def training_step(
    graph: Graph,
    outputs: Sequence[Tensor],
    wanted: Iterable[str],
    settings: Settings,
    *,
    pauses: bool = False,
    seeded: Collection[int] | None = None,
) -> Step:
    """Forward and backward: gradients of what is wanted, by name, from those of the outputs.

    The step's `seeds` name the tensors that hold the gradients of the outputs: ones for a loss. If
    it `pauses`, they are given when the outputs are there, each as a tensor of its own. An output
    that nothing wanted leads to has none, nor has one whose place is not in `seeded`.
    """
    leaves = frozenset(wanted)
    return _step(graph, outputs, leaves, settings, is_training=True, pauses=pauses, seeded=seeded)


def check_loss(loss: Tensor) -> None:
    """Raise ValueError for a loss that is no scalar."""
    if math.prod(loss.shape) != 1 or not loss.is_floating:
        raise ValueError(
            f"the loss must be one number, but {loss.name} has shape {loss.shape} and dtype "
            f"{loss.dtype}: end the network in a loss, or ask for the gradients of outputs"
        )


def _step(
    graph: Graph,
    outputs: Sequence[Tensor],
    leaves: frozenset[str],
    settings: Settings,
    *,
    is_training: bool,
    pauses: bool = False,
    seeded: Collection[int] | None = None,
) -> Step:
    nodes = graph.nodes_before(outputs)
    if is_training:
        nodes = fold_casts(nodes, {*leaves, *(output.name for output in outputs)})
    on_the_way = _on_the_way(nodes, leaves)
    forward = Forward(settings, on_the_way, is_training=is_training)
    for output in outputs:
        if output.kind in GIVEN:
            raise ValueError(f"{output.name} is given, not made: ask for what a node makes")
        forward.known(output)
    for node in nodes:
        forward.node = node.name
        node.forward(forward)
    asked = outputs
    if not is_training or pauses:
        asked = [_alone(forward, output) for output in outputs]
    last: _Emit = forward
    seeds: dict[str, str] = {}
    gradients: dict[str, str] = {}
    if is_training:
        numbered = enumerate(outputs)
        wanted = [y for at, y in numbered if forward.wants(y) and (seeded is None or at in seeded)]
        last = backward = Backward(forward, wanted)
        for node in reversed(nodes):
            dys = [backward.gradient_of(y) for y in node.results if forward.wants(y)]
            dy = next((each for each in dys if each is not None), None)
            if dy is not None:
                backward.node = node.name
                node.backward(backward, dy)
                for y in node.results:
                    backward.done_with(y)
        by_name = {name: backward.gradient_of(graph.tensors[name]) for name in graph.tensors}
        gradients = {n: each.name for n, each in by_name.items() if each and n in leaves}
        pairs = zip(outputs, asked, strict=True)
        seeds = {there.name: backward.seeds[y.name] for y, there in pairs if y in wanted}
    return Step(
        dict(last.tensors),
        (*forward.phases, *(last.phases if is_training else ())),
        tuple(output.name for output in asked),
        len(forward.phases),
        gradients,
        seeds,
        pauses,
    )


def _alone(forward: Forward, output: Tensor) -> Tensor:
    """Make what is asked for a tensor of its own, that can be written to an array of the user's.

    What is a view (dropout in inference, a part of a concatenation) is copied.
    """
    if forward.place(output.name).base == output.name:
        return output
    alone = Tensor(f"{output.name} alone", output.shape, output.dtype)
    if alone.name not in forward.tensors:  # it may be asked for twice
        forward.node = output.name
        forward.copy("copy", output, alone)
    return alone


def _on_the_way(nodes: Sequence[Node], leaves: frozenset[str]) -> frozenset[str]:
    """Everything of which a gradient is made: the leaves, and what is computed from them."""
    found = set(leaves)
    for node in nodes:
        if any(tensor.name in found for tensor in node.differentiable_inputs):
            found.update(tensor.name for tensor in node.results)
    return frozenset(found)
