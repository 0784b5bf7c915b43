"""Reach of outputs: the tensors of a network that each depends on, and autograd's nodes for them.

An output may be computed from more than its gradient reaches: from what is detached, or has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.cached import cached_property


@dataclass(frozen=True)
class Reach:
    """Reach of the gradients of outputs.

    Attributes
    ----------
    of_outputs : tuple of frozenset of str
        Of each output, in order, the names whose gradients depend on that of the output.
    read_for : tuple of frozenset of str
        Of each output, in order, the names that it and those gradients are computed from.

    Examples
    --------
    >>> reached = frozenset("ac"), frozenset(), frozenset("bc"), frozenset("ac")
    >>> reach = Reach(reached, (frozenset("ac"), frozenset("d"), frozenset("bc"), frozenset("acd")))
    >>> reach.nodes
    ((0, 3), (2,))
    >>> sorted(reach.of_names.items())
    [('a', (0,)), ('b', (1,)), ('c', (0, 1))]
    >>> [sorted(each) for each in reach.read]
    [['a', 'c', 'd'], ['b', 'c']]
    """

    of_outputs: tuple[frozenset[str], ...]
    read_for: tuple[frozenset[str], ...]

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The places of outputs whose gradients reach the same names; of those that reach any."""
        found = dict[frozenset[str], list[int]]()
        for place, names in enumerate(self.of_outputs):
            if names:
                found.setdefault(names, []).append(place)
        return tuple(map(tuple, found.values()))

    @cached_property
    def of_names(self) -> dict[str, tuple[int, ...]]:
        """Nodes from which each name is reached."""
        found = dict[str, tuple[int, ...]]()
        for node, (place, *_) in enumerate(self.nodes):
            for name in self.of_outputs[place]:
                found[name] = (*found.get(name, ()), node)
        return found

    @cached_property
    def read(self) -> tuple[frozenset[str], ...]:
        """Names that the outputs of each node and their gradients are computed from."""
        return tuple(
            frozenset().union(*(self.read_for[place] for place in places)) for places in self.nodes
        )
