"""Casts around a layer normalization that nobody else reads: it reads and rounds itself.

So it is under autocast: layers normalise in float32, and the next one multiplies in a half type.
What lies between is then never written, and its gradient is read in the half type. Where the input
was of that type, too, all of it is: kernels compute in float32 inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.graph.nodes.cast import Cast
from ooc_cudnn.network.graph.nodes.group_normalization import GroupNormalization
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.tensor import ITEM_BYTES


def fold_casts(nodes: Sequence[Node], asked: Collection[str]) -> tuple[Node, ...]:
    """Nodes of a training step, without the casts that normalizations of sites do.

    Parameters
    ----------
    nodes : sequence of Node
        In order.
    asked : collection of str
        Names of tensors that are wanted themselves, or their gradients.
    """
    readers = Counter(tensor.name for node in nodes for tensor in node.inputs)
    makers = {node.y.name: node for node in nodes}
    folded: dict[str, Node | None] = {}

    def is_between(tensor: Tensor) -> bool:
        return readers[tensor.name] == 1 and tensor.name not in asked

    for node in nodes:
        norm = makers.get(node.x.name) if isinstance(node, Cast) else None
        if (
            not isinstance(norm, GroupNormalization)
            or norm.groups
            or not is_between(norm.y)
            or (norm.x.dtype, ITEM_BYTES[node.y.dtype]) != ("float32", 2)  # to a narrower type
        ):
            continue
        folded[node.name] = None
        before = makers.get(norm.x.name)
        if isinstance(before, Cast) and before.x.dtype == node.y.dtype and is_between(norm.x):
            folded[before.name] = None
            norm = replace(norm, x=before.x)
        folded[norm.name] = replace(norm, y=node.y)
    found = (folded.get(node.name, node) for node in nodes)
    return tuple(node for node in found if node is not None)
