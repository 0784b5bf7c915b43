"""Casts of what a layer normalization makes, and nobody else reads: it rounds its result itself.

So it is under autocast: layers normalise in float32, and the next one multiplies in a half type.
What lies between is then never written, and its gradient is read in the half type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.graph.nodes.cast import Cast
from ooc_cudnn.network.graph.nodes.group_normalization import GroupNormalization
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
    makers = {node.y.name: node for node in nodes if isinstance(node, GroupNormalization)}
    folded: dict[str, Node] = {}
    left = list[Node]()
    for node in nodes:
        maker = makers.get(node.x.name) if isinstance(node, Cast) else None
        if (
            maker is not None
            and not maker.groups
            and (maker.x.dtype, ITEM_BYTES[node.y.dtype]) == ("float32", 2)  # to a narrower type
            and readers[maker.y.name] == 1
            and maker.y.name not in asked
        ):
            folded[maker.name] = replace(maker, y=node.y)
        else:
            left.append(node)
    return tuple(folded.get(node.name, node) for node in left)
