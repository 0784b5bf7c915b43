"""Kinds of drawn nodes for tall images: what goes down the rows, and concatenations of all sorts.

Steps of such networks are cut into bands of rows and spilled, where small maps never are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support import drawn_elementwise, drawn_kinds
from tests.support.drawn_kinds import by_axes

#: Channels of a concatenation at most, so that what joins again and again stays small.
MOST_CHANNELS = 24


def layer(d):
    """A convolution of the same size, nearly always with bias and ReLU, and perhaps a pooling."""
    x = d.some(lambda m: min(m.shape[2:]) > 2)
    if x is None:
        return
    window = d.choice([1, 3])
    depthwise = x.shape[1] <= MOST_CHANNELS and not d.random.integers(6)
    geometry = {"padding": window // 2, "groups": x.shape[1] if depthwise else 1}
    channels = geometry["groups"] * int(d.random.integers(1, 4))
    bias = bool(d.random.integers(4))
    inner = d.net.convolution(x, channels, window=window, bias=bias, **geometry)
    function, w = by_axes(x, F.conv1d, F.conv2d, F.conv3d), f"{inner.name}.w"
    b = f"{inner.name}.b" if bias else ""
    d.steps.append(
        (inner.name, lambda t: function(t[x.name], t[w], t[b] if b else None, **geometry))
    )
    if not d.random.integers(4):
        d.maps.append(inner)  # another reader may have it without the activation
    mode = d.choice(["relu", "relu", "tanh", "clipped_relu"])
    d.made(d.net.activation(inner, mode), lambda t: drawn_kinds.ACTIVATIONS[mode](t[inner.name]))


def nested(d):
    """A concatenation of concatenations: maps come twice, in any order, joined in any order."""
    a = d.choice(d.maps)
    fit = [m for m in d.maps if (m.shape[0], *m.shape[2:]) == (a.shape[0], *a.shape[2:])]
    made = [a]
    for _ in range(int(d.random.integers(2, 5))):
        parts = [d.choice(d.choice([made, fit])) for _ in range(int(d.random.integers(2, 4)))]
        if sum(part.shape[1] for part in parts) > MOST_CHANNELS:
            continue
        d.consumed.update(part.name for part in parts)
        y = d.net.concatenate(parts)
        d.made(y, lambda t, parts=tuple(parts): torch.cat([t[p.name] for p in parts], 1))
        made.append(y)


def readers(d):
    """A convolution and a pooling of one map, which both read rows beside their own."""
    x = d.some(lambda m: min(m.shape[2:]) > 2)
    if x is None:
        return
    window = d.choice([1, 3])
    one = d.net.convolution(x, 2, window=window, padding=window // 2)
    name = one.name
    function = by_axes(x, F.conv1d, F.conv2d, F.conv3d)
    d.made(one, lambda t: function(
        t[x.name], t[f"{name}.w"], t[f"{name}.b"], padding=window // 2
    ))  # fmt: skip
    pool = by_axes(x, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    other = d.net.pooling(x, window=3, stride=1, padding=1, mode="average_include_padding")
    d.made(other, lambda t: pool(t[x.name], 3, 1, 1))


def block(d):
    """As in ResNets: ReLU of two normalised convolutions of one map; sums share their gradient."""
    x = d.some(lambda m: min(m.shape[2:]) > 2)
    if x is None:
        return
    function, parts = by_axes(x, F.conv1d, F.conv2d, F.conv3d), []
    for window in (3, 1):
        inner = d.net.convolution(x, 2, window=window, padding=window // 2, bias=False)
        y = d.net.batch_normalization(inner, epsilon=0.1)
        w, name = f"{inner.name}.w", y.name
        d.steps.append(
            (
                inner.name,
                lambda t, w=w, window=window: function(t[x.name], t[w], padding=window // 2),
            )
        )
        d.steps.append((name, drawn_kinds.batch_normalized(inner.name, name)))
        parts.append(y)
    total = d.net.add(*parts)
    names = [part.name for part in parts]
    d.steps.append((total.name, lambda t: t[names[0]] + t[names[1]]))
    d.made(d.net.activation(total), lambda t: torch.relu(t[total.name]))


#: What draws a node, and how often.
KINDS = {
    layer: 5,
    block: 1.5,
    nested: 2,
    readers: 2,
    drawn_kinds.convolution: 2,
    drawn_kinds.residual: 3,
    drawn_kinds.activation: 1,
    drawn_kinds.concatenate: 2,
    drawn_kinds.add: 3,
    drawn_kinds.pooling: 2,
    drawn_kinds.crop: 1,
    drawn_kinds.pad: 0.5,
    drawn_kinds.batch_normalization: 1,
    drawn_kinds.transposed_convolution: 0.5,
    drawn_kinds.interpolation: 0.3,
    drawn_kinds.local_response_normalization: 0.3,
    drawn_kinds.group_normalization: 0.3,
    drawn_elementwise.dropout: 0.5,
    drawn_elementwise.multiply: 0.5,
}
