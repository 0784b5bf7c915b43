"""Kinds of drawn nodes for wide layers: filters that are larger than the maps that they read.

Micro-batches make the gradients of such filters once, of all images: of drawn networks in general
hardly ever one.
"""

from __future__ import annotations

import torch.nn.functional as F

from tests.support import drawn_kinds
from tests.support.drawn_kinds import by_axes


def wide(d):
    """A convolution of many features, where the map has few sites, and an activation."""
    x = d.some(lambda m: m.shape[1] >= 16 or min(m.shape[2:]) < 5)
    if x is None:
        return
    window = 3 if min(x.shape[2:]) > 2 else 1
    geometry = {"padding": window // 2}
    inner = d.net.convolution(x, int(d.random.integers(16, 40)), window=window, **geometry)
    function, w, b = by_axes(x, F.conv1d, F.conv2d, F.conv3d), f"{inner.name}.w", f"{inner.name}.b"
    d.steps.append((inner.name, lambda t: function(t[x.name], t[w], t[b], **geometry)))
    mode = d.choice(["relu", "tanh", "sigmoid"])
    d.made(d.net.activation(inner, mode), lambda t: drawn_kinds.ACTIVATIONS[mode](t[inner.name]))


def halved(d):
    """A pooling of maxima, whose places are saved for backward."""
    x = d.some(lambda m: min(m.shape[2:]) > 1)
    if x is None:
        return
    function = by_axes(x, F.max_pool1d, F.max_pool2d, F.max_pool3d)
    d.made(d.net.pooling(x, window=2), lambda t: function(t[x.name], 2))


KINDS = {**drawn_kinds.KINDS, wide: 8, halved: 5}
