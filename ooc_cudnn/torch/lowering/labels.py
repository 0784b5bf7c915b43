"""Labels in place of scores: the number of the largest channel of each site."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ooc_cudnn.torch.lowering.lower import LoweredGraph
from ooc_cudnn.torch.lowering.lowered_value import LoweredValue
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value
from ooc_cudnn.torch.tracing.image_axes import MOVES

#: Asks for the least type of labels that has a number for each class.
LEAST = "least"


def least_labels(classes: int) -> str:
    """The least type that has a number for each class.

    >>> least_labels(256), least_labels(257)
    ('uint8', 'uint16')
    """
    return next(each for each in ("uint8", "uint16", "int32") if classes <= np.iinfo(each).max + 1)


def compute_scores(graph: Graph) -> Graph:
    """The same graph whose one result is computed, also where it is an input, or is cropped last.

    Else PyTorch would do that behind the network, where it takes nothing.
    """
    scores, *others = graph.outputs or (None,)
    maker = next((each for each in graph.operations if scores in each.results), None)
    if others or not isinstance(scores, Value):
        return graph
    if scores.kind != "input" and (maker is None or maker.name not in MOVES | {"clone"}):
        return graph
    result = replace(scores, name=f"{scores.name}_computed", kind="made", source="")
    told = {"self": scores, "other": 1}
    multiply = torch.ops.aten.mul.Tensor
    computed = Operation(multiply, "mul", (scores, 1), {}, told, (result,))
    return replace(graph, operations=(*graph.operations, computed), outputs=(result,))


def label_scores(lowered: LoweredGraph, dtype: str) -> LoweredGraph:
    """The same network with labels for the scores that are its one result.

    Parameters
    ----------
    dtype : str
        Of the labels; `LEAST` for the first of uint8, uint16 and int32 that will do.

    Raises
    ------
    TypeError
        If its result is no map of scores.
    """
    (held, *others) = lowered.results or (None,)
    wanted = "labels are made of one result, a map of scores (n, classes, ...)"
    if others:
        count = len(others) + 1
        raise TypeError(f"{wanted}, and this model makes {count}: return the scores alone")
    if lowered.after:
        raise TypeError(f"{wanted} that the network makes, and PyTorch makes this one")
    if not isinstance(held, LoweredValue) or len(held.axes) < 2:
        raise TypeError(wanted)
    if held.axes[0] != 0:
        raise TypeError(f"{wanted}: these scores have the images on axis {held.axes.index(0)}")
    network, scores = lowered.network, held.tensor
    if not held.is_plain:
        factors = [(extent,) for extent in scores.shape]
        scores = network.rearrange(scores, factors, [(axis,) for axis in held.axes])
    dtype = least_labels(scores.shape[1]) if dtype == LEAST else dtype
    labels = network.argmax(scores, dtype=dtype)
    return replace(lowered, outputs=(labels,), results=(LoweredValue.of(labels),))
