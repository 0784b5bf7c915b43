"""A graph: nodes in the order in which they were made, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable

from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor

#: No tensor has as many: sums of bytes are to fit 64 bits.
MOST_BYTES = 2**50


class Graph:
    """Nodes, each of which reads tensors that were there before it: so there are no cycles."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.nodes: dict[str, Node] = {}

    def add_tensor(self, tensor: Tensor) -> Tensor:
        """Add an input, a parameter or running statistics; or the result of a node to be.

        Raises
        ------
        ValueError
            If its name is taken, or no memory could hold it.
        """
        if tensor.name in self.tensors:
            raise ValueError(f"there is a tensor named {tensor.name!r} already")
        if tensor.nbytes >= MOST_BYTES:
            raise ValueError(f"{tensor.name} of shape {tensor.shape} is larger than any memory")
        self.tensors[tensor.name] = tensor
        return tensor

    def add(self, node: Node) -> Tensor:
        """Add a node, and return its (first) result.

        Raises
        ------
        ValueError
            If it reads a tensor that is none of this graph's.
        """
        for tensor in node.inputs:
            self.check_own(tensor)
        for tensor in node.results:
            self.add_tensor(tensor)
        self.nodes[node.name] = node
        return node.y

    def check_own(self, tensor: object, argument: str = "") -> Tensor:
        """Return what is a tensor of this graph.

        Raises
        ------
        TypeError, ValueError
            Naming the argument.
        """
        said = f"{argument} " if argument else ""
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__  # not its elements, which may be many
            raise TypeError(f"{said}must be a tensor of this network, not {kind}")
        if self.tensors.get(tensor.name) != tensor:
            raise ValueError(f"{said}{tensor.name!r} is not a tensor of this network")
        return tensor

    def nodes_before(self, outputs: Iterable[Tensor]) -> tuple[Node, ...]:
        """The nodes that outputs depend on, in order."""
        needed = {tensor.name for tensor in outputs}
        nodes = []
        for node in reversed(self.nodes.values()):
            if any(tensor.name in needed for tensor in node.results):
                needed.update(tensor.name for tensor in node.inputs)
                nodes.append(node)
        return tuple(reversed(nodes))
