"""Drawn networks: forks, skips, concatenations, shared and frozen parameters, with their twins.

`drawn_network` makes a network and the same in PyTorch from one seed. How its phases are run is the
test's affair. A kind of node is drawn by a function of `KINDS`: it looks at the maps there are and
adds a node to the network and its twin, or nothing where nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.operations.activation import MODES

#: Modes of activation in PyTorch.
ACTIVATIONS = {
    "relu": torch.relu,
    "clipped_relu": F.relu6,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "identity": lambda x: x * 1,
    "hardsigmoid": lambda x: torch.clamp(x / 6 + 0.5, 0, 1),  # PyTorch's slope is rounded
    "hardswish": F.hardswish,
}


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


def axes(tensor):
    return len(tensor.shape) - 2


def windows(d, x, most=3):
    """A window, stride and padding that fit a map."""
    extent = min(x.shape[2:])
    window = int(d.random.integers(1, min(most, extent) + 1))
    stride = int(d.random.integers(1, 3))
    return window, stride, int(d.random.integers(0, (window - 1) // 2 + 1))


def convolution(d):
    x = d.some()
    function = (F.conv1d, F.conv2d, F.conv3d)[axes(x) - 1]
    groups = d.choice([g for g in (1, 2) if x.shape[1] % g == 0])
    same = [e for e in d.filters if e[0].shape[1] * e[2]["groups"] == x.shape[1]]
    if same and not d.random.integers(3):
        w, b, geometry = d.choice(same)
        size, channels = w.shape[2:], w.shape[0]
        reach = [geometry["dilation"] * (k - 1) + 1 for k in size]
        if all(r <= e for r, e in zip(reach, x.shape[2:], strict=True)):
            options = {"bias": b is not None, "w": w, "b": b}
            y = d.net.convolution(x, channels, window=size, **geometry, **options)
            return d.made(y, lambda t: function(t[x.name], t[w.name], b and t[b.name], **geometry))
    window, stride, padding = windows(d, x)
    dilation = 2 if 2 * window - 1 <= min(x.shape[2:]) and d.random.integers(2) else 1
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    channels, bias = groups * int(d.random.integers(1, 4)), bool(d.random.integers(2))
    y = d.net.convolution(x, channels, window=window, bias=bias, **geometry)
    w = d.net.graph.tensors[f"{y.name}.w"]
    b = d.net.graph.tensors[f"{y.name}.b"] if bias else None
    d.filters.append((w, b, geometry))
    return d.made(y, lambda t: function(t[x.name], t[w.name], b and t[b.name], **geometry))


def activation(d):
    x, mode = d.some(), d.choice(list(MODES))
    return d.made(d.net.activation(x, mode), lambda t: ACTIVATIONS[mode](t[x.name]))


def pooling(d):
    x = d.some(lambda m: min(m.shape[2:]) > 1)
    if x is None:
        return None
    window, stride, padding = windows(d, x)
    mode = d.choice(["max", "average_include_padding", "average_exclude_padding"])
    options = {"kernel_size": window, "stride": stride, "padding": padding}
    if mode == "max":
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes(x) - 1]
    else:
        function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes(x) - 1]
        options["count_include_pad"] = mode == "average_include_padding"
    y = d.net.pooling(x, window=window, stride=stride, padding=padding, mode=mode)
    return d.made(y, lambda t: function(t[x.name], **options))


def batch_normalization(d):
    x = d.some(lambda m: np.prod(m.shape) // m.shape[1] > 2)
    if x is None:
        return None
    y = d.net.batch_normalization(x, epsilon=0.1)
    name = y.name

    def twin(t):
        running = t[f"{name}.running_mean"], t[f"{name}.running_variance"]
        return F.batch_norm(
            t[x.name], *running, t[f"{name}.scale"], t[f"{name}.bias"], t.training, 0.1, 0.1
        )

    return d.made(y, twin)


def softmax(d):
    x = d.some(lambda m: m.shape[1] > 1)
    if x is None:
        return None
    return d.made(d.net.softmax(x), lambda t: torch.softmax(t[x.name], 1))


def add(d):
    a = d.some()
    b = d.some(lambda m: m.shape == a.shape)
    return d.made(d.net.add(a, b), lambda t: t[a.name] + t[b.name])


def residual(d):
    """A map and what a convolution of odd window makes of it: the gradient of both is one."""
    x = d.some()
    window = d.choice([1, 3])
    geometry = {"padding": window // 2}
    inner = d.net.convolution(x, x.shape[1], window=window, **geometry)
    function, name = (F.conv1d, F.conv2d, F.conv3d)[axes(x) - 1], inner.name
    d.steps.append(
        (name, lambda t: function(t[x.name], t[f"{name}.w"], t[f"{name}.b"], **geometry))
    )
    a, b = (x, inner) if d.random.integers(2) else (inner, x)
    return d.made(d.net.add(a, b), lambda t: t[a.name] + t[b.name])


def concatenate(d):
    parts = [d.some()]
    for _ in range(int(d.random.integers(1, 3))):
        parts.append(
            d.some(lambda m: (m.shape[0], *m.shape[2:]) == (parts[0].shape[0], *parts[0].shape[2:]))
        )
    y = d.net.concatenate(parts)
    return d.made(y, lambda t: torch.cat([t[part.name] for part in parts], 1))


#: What draws a node; rather those that come first.
KINDS = [convolution, residual, activation, concatenate, add, batch_normalization, pooling, softmax]


def drawn_network(seed, *, dtype="float64", kinds=KINDS):
    """Draw a network; return it, its result, and the twin of its result."""
    random = np.random.default_rng(seed)
    net = ooc_cudnn.Network(seed=seed)
    d = Drawing(net, random)
    count = int(random.integers(1, 4))
    sizes = [int(e) for e in random.integers(3, (9, 7, 5)[count - 1], count)]
    n = int(random.integers(1, 4))
    for at in range(int(random.integers(1, 3))):
        shape = (n, int(random.integers(1, 5)), *sizes)
        asks = bool(random.integers(2))
        d.maps.append(net.input(f"x_{at}", shape, dtype, gradient=asks))
    weights = 1 / np.arange(2, len(kinds) + 2)
    for _ in range(int(random.integers(3, 11))):
        kinds[int(random.choice(len(kinds), p=weights / weights.sum()))](d)
    _join(d)
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
