"""Labels in place of scores: the number of the largest channel of each site."""

from __future__ import annotations

from dataclasses import replace

import torch

from ooc_cudnn.torch.lowering.lower import LoweredGraph
from ooc_cudnn.torch.lowering.lowered_value import LoweredValue
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value
from ooc_cudnn.torch.tracing.image_axes import MOVES


def compute_scores(graph: Graph) -> Graph:
    """The same graph whose one result is computed, also where it is cropped or reshaped last.

    Else PyTorch would do that behind the network, where it takes nothing.
    """
    scores, *others = graph.outputs or (None,)
    maker = next((each for each in graph.operations if scores in each.results), None)
    if others or maker is None or maker.name not in MOVES or not isinstance(scores, Value):
        return graph
    result = replace(scores, name=f"{scores.name}_computed")
    told = {"self": scores, "other": 1}
    multiply = torch.ops.aten.mul.Tensor
    computed = Operation(multiply, "mul", (scores, 1), {}, told, (result,))
    return replace(graph, operations=(*graph.operations, computed), outputs=(result,))


def label_scores(lowered: LoweredGraph, dtype: str) -> LoweredGraph:
    """The same network with labels for the scores that are its one result.

    Raises
    ------
    TypeError
        If its result is no map of scores.
    """
    (held, *others) = lowered.results or (None,)
    if others or lowered.after or not isinstance(held, LoweredValue) or not held.is_plain:
        raise TypeError("labels are made of one result, a map of scores (n, classes, ...)")
    labels = lowered.network.argmax(held.tensor, dtype=dtype)
    return replace(lowered, outputs=(labels,), results=(LoweredValue.of(labels),))
