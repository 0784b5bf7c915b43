"""Which outputs of a network depend on which of its tensors: what is one node of autograd's."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.cached import cached_property


@dataclass(frozen=True)
class Reach:
    """What the gradients of outputs reach.

    Attributes
    ----------
    of_outputs : tuple of frozenset of str
        Of each output, in order, the names whose gradients depend on that of the output.

    Examples
    --------
    >>> reach = Reach((frozenset("ac"), frozenset(), frozenset("bc"), frozenset("ac")))
    >>> reach.nodes
    ((0, 3), (2,))
    >>> sorted(reach.of_names.items())
    [('a', (0,)), ('b', (1,)), ('c', (0, 1))]
    """

    of_outputs: tuple[frozenset[str], ...]

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
        """Of each name that is reached the nodes from which it is."""
        found = dict[str, tuple[int, ...]]()
        for node, (place, *_) in enumerate(self.nodes):
            for name in self.of_outputs[place]:
                found[name] = (*found.get(name, ()), node)
        return found
