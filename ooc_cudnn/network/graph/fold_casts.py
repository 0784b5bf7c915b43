"""Casts around a normalization that nobody else reads: it reads and rounds itself.

So it is under autocast: layers normalise in float32, and the next one multiplies in a half type.
What lies between is then never written, and its gradient is read in the half type. Where the input
was of that type, too, all of it is: kernels compute in float32 inside. An activation between the
normalization of groups and the cast is computed with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ooc_cudnn.network.graph.nodes.activation import Activation
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.graph.nodes.cast import Cast
from ooc_cudnn.network.graph.nodes.group_normalization import GroupNormalization
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.activation_modes import MODES, needs_x
from ooc_cudnn.tensor import ITEM_BYTES


def fold_casts(nodes: Sequence[Node], asked: Collection[str]) -> tuple[Node, ...]:
    """Nodes of a training step, without the casts that normalizations do.

    Parameters
    ----------
    nodes : sequence of Node
        In order.
    asked : collection of str
        Names of tensors that are wanted themselves, or their gradients.
    """
    return _Folding(nodes, asked).nodes()


class _Folding:
    """State of folding: who makes and reads each value, and what is left of each node."""

    def __init__(self, nodes: Sequence[Node], asked: Collection[str]) -> None:
        self._nodes, self._asked = nodes, asked
        self._readers = Counter(tensor.name for node in nodes for tensor in node.inputs)
        self._makers = {node.y.name: node for node in nodes}
        self._folded: dict[str, Node | None] = {}

    def nodes(self) -> tuple[Node, ...]:
        for node in self._nodes:
            if isinstance(node, Cast):
                self._fold(node)
        left = (self._folded.get(node.name, node) for node in self._nodes)
        return tuple(node for node in left if node is not None)

    def _fold(self, cast: Cast) -> None:
        """Fold a cast into the normalization before it, if it is one to a narrower type."""
        activation = self._maker(cast.x)
        norm = activation
        if isinstance(activation, Activation):
            norm = self._maker(activation.x)
        if (
            not isinstance(norm, GroupNormalization)
            or (norm.x.dtype, ITEM_BYTES[cast.y.dtype]) != ("float32", 2)
        ):  # fmt: skip
            return
        before = self._maker(norm.x)
        widened = isinstance(before, Cast) and before.x.dtype == cast.y.dtype
        if norm.groups and not widened:
            return
        found = replace(norm, y=cast.y)
        if isinstance(activation, Activation):
            if not norm.groups or not _has_slope_of_rounded(activation, cast.y.dtype):
                return
            found = replace(found, mode=activation.mode, coef=activation.coef)
            self._folded[activation.name] = None
        if isinstance(before, Cast) and widened:
            found = replace(found, x=before.x)
            self._folded[before.name] = None
        self._folded |= {cast.name: None, norm.name: found}

    def _maker(self, tensor: Tensor) -> Node | None:
        """The node that makes what one other alone reads."""
        if self._readers[tensor.name] != 1 or tensor.name in self._asked:
            return None
        return self._makers.get(tensor.name)


def _has_slope_of_rounded(activation: Activation, dtype: str) -> bool:
    """True if a gradient that makes y again, and rounds it, finds the slope that y had before.

    Where y never tells the slope kernels take it of x, in float32. Else y must tell no more than
    its sign, and keep that: it does in bfloat16, whose normal numbers are as small as float32's.
    """
    mode, coef = activation.mode, activation.coef
    if MODES[mode].needs_x:
        return True
    return dtype == "bfloat16" and mode in ("relu", "leaky_relu") and not needs_x(mode, coef)
