"""Drawn networks: forks, skips, concatenations, shared and frozen parameters, with their twins.

`drawn_network` makes a network and the same in PyTorch from one seed. How its phases are run is the
test's affair. `tests/support/drawn_kinds.py` has the kinds of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch.nn.functional as F

import ooc_cudnn
from tests.support.drawn_kinds import KINDS


@dataclass
class Drawing:
    """A network in the making."""

    net: ooc_cudnn.Network
    random: np.random.Generator
    maps: list = field(default_factory=list)
    consumed: set = field(default_factory=set)
    steps: list = field(default_factory=list)  # (name of the result, twin of tensors by name)
    filters: list = field(default_factory=list)  # (w, b, options) of convolutions

    def choice(self, options):
        return options[int(self.random.integers(len(options)))]

    def some(self, *fit):
        """One of the maps; rather one that nobody reads yet, or the latest."""
        maps = [m for m in self.maps if all(rule(m) for rule in fit)]
        if not maps:
            return None
        fresh = [m for m in maps if m.name not in self.consumed]
        picked = self.choice(fresh if fresh and self.random.integers(3) else maps)
        self.consumed.add(picked.name)
        return picked

    def made(self, tensor, twin):
        self.maps.append(tensor)
        self.steps.append((tensor.name, twin))
        return tensor

    def result(self, values):
        """Run the twin: the last step's result from inputs and parameters."""
        found = dict(values.tensors)
        lookup = type(
            "T", (), {"training": values.training, "__getitem__": lambda _, n: found[n]}
        )()
        for name, twin in self.steps:
            found[name] = twin(lookup)
        return found[self.steps[-1][0]]


def drawn_network(seed, *, dtype="float64", kinds=KINDS, loss=False, rows=None):
    """Draw a network; return it, its result (or a loss of it), and the twin of that.

    With `rows`, images have at least as many, or one less than twice that, and are narrow.
    """
    random = np.random.default_rng(seed)
    net = ooc_cudnn.Network(seed=seed)
    d = Drawing(net, random)
    count = int(random.integers(1, 4))
    sizes = [int(e) for e in random.integers(3, (9, 7, 5)[count - 1], count)]
    if rows:
        sizes = [int(random.integers(rows, 2 * rows)), *(min(size, 5) for size in sizes[1:])]
    n = int(random.integers(1, 4))
    for at in range(int(random.integers(1, 3))):
        shape = (n, int(random.integers(1, 5)), *sizes)
        asks = bool(random.integers(2))
        d.maps.append(net.input(f"x_{at}", shape, dtype, gradient=asks))
    shares = np.array(list(kinds.values()))
    for _ in range(int(random.integers(3, 11))):
        random.choice(list(kinds), p=shares / shares.sum())(d)
    _join(d)
    if loss:
        y = d.maps[-1]
        target = net.input("target", y.shape, dtype)
        d.made(net.mean_squared_error(y, target), lambda t: F.mse_loss(t[y.name], t[target.name]))
    for name in net.parameters:
        if not random.integers(4):
            net.freeze(name)
    return net, d.maps[-1], d.result


def _join(d):
    """Loose ends become three features each, and their sum is the result."""
    ends = [m for m in d.maps if m.name not in d.consumed]
    total = None
    for end in ends:
        y = d.net.linear(end, 3)
        name = y.name
        d.made(y, lambda t, end=end, name=name: F.linear(
            t[end.name].flatten(1), t[f"{name}.w"].flatten(1), t[f"{name}.b"]
        ))  # fmt: skip
        if total is None:
            total = y
        else:
            a, total = total, d.net.add(total, y)
            d.made(total, lambda t, a=a, y=y: t[a.name] + t[y.name])
