"""Kinds of nodes that are drawn: each adds a node to a drawing's network, and its twin.

A kind takes a `Drawing` (`tests/support/drawn_networks.py`), picks among the maps there are, and
adds nothing where nothing fits.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ooc_cudnn.operations.core.activation_modes import MODES
from tests.support import activation_modes, drawn_elementwise

#: Modes of activation in PyTorch.
ACTIVATIONS = {mode: activation_modes.pytorch(mode) for mode in MODES}


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
            d.made(y, lambda t: function(t[x.name], t[w.name], b and t[b.name], **geometry))
            return
    window, stride, padding = windows(d, x)
    dilation = 2 if 2 * window - 1 <= min(x.shape[2:]) and d.random.integers(2) else 1
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    channels, bias = groups * int(d.random.integers(1, 4)), bool(d.random.integers(2))
    y = d.net.convolution(x, channels, window=window, bias=bias, **geometry)
    w = d.net.graph.tensors[f"{y.name}.w"]
    b = d.net.graph.tensors[f"{y.name}.b"] if bias else None
    d.filters.append((w, b, geometry))
    d.made(y, lambda t: function(t[x.name], t[w.name], b and t[b.name], **geometry))


def activation(d):
    x, mode = d.some(), d.choice(list(MODES))
    d.made(d.net.activation(x, mode), lambda t: ACTIVATIONS[mode](t[x.name]))


def pooling(d):
    x = d.some(lambda m: min(m.shape[2:]) > 1)
    if x is None:
        return
    window, stride, padding = windows(d, x)
    mode = d.choice(["max", "average_include_padding", "average_exclude_padding"])
    options = {"kernel_size": window, "stride": stride, "padding": padding}
    if mode == "max":
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes(x) - 1]
    else:
        function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes(x) - 1]
        options["count_include_pad"] = mode == "average_include_padding"
    y = d.net.pooling(x, window=window, stride=stride, padding=padding, mode=mode)
    d.made(y, lambda t: function(t[x.name], **options))


def batch_normalization(d):
    x = d.some(lambda m: np.prod(m.shape) // m.shape[1] > 2)
    if x is None:
        return
    y = d.net.batch_normalization(x, epsilon=0.1)
    d.made(y, batch_normalized(x.name, y.name))


def batch_normalized(x, name):
    """What PyTorch makes of a map, by the parameters of the norm of that name."""

    def twin(t):
        running = t[f"{name}.running_mean"], t[f"{name}.running_variance"]
        return F.batch_norm(
            t[x], *running, t[f"{name}.scale"], t[f"{name}.bias"], t.training, 0.1, 0.1
        )

    return twin


def softmax(d):
    x = d.some(lambda m: m.shape[1] > 1)
    if x is None:
        return
    d.made(d.net.softmax(x), lambda t: torch.softmax(t[x.name], 1))


def add(d):
    a = d.some()
    b = d.some(lambda m: m.shape == a.shape)
    d.made(d.net.add(a, b), lambda t: t[a.name] + t[b.name])


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
    d.made(d.net.add(a, b), lambda t: t[a.name] + t[b.name])


def concatenate(d):
    parts = [d.some()]
    for _ in range(int(d.random.integers(1, 3))):
        parts.append(
            d.some(lambda m: (m.shape[0], *m.shape[2:]) == (parts[0].shape[0], *parts[0].shape[2:]))
        )
    y = d.net.concatenate(parts)
    d.made(y, lambda t: torch.cat([t[part.name] for part in parts], 1))


def by_axes(x, *functions):
    """Of three functions, that for as many spatial axes as a map has."""
    return functions[axes(x) - 1]


def transposed_convolution(d):
    x = d.some(lambda m: min(m.shape[2:]) > 1 and max(m.shape[2:]) < 9)
    if x is None:
        return
    function = by_axes(x, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    groups = d.choice([g for g in (1, 2) if x.shape[1] % g == 0])
    stride, window = int(d.random.integers(1, 3)), int(d.random.integers(2, 4))
    geometry = {"stride": stride, "padding": int(d.random.integers(0, 2)), "groups": groups}
    if stride > 1:
        geometry["output_padding"] = int(d.random.integers(0, 2))
    channels, bias = groups * int(d.random.integers(1, 3)), bool(d.random.integers(2))
    y = d.net.transposed_convolution(x, channels, window=window, bias=bias, **geometry)
    w, b = f"{y.name}.w", f"{y.name}.b" if bias else ""
    d.made(y, lambda t: function(t[x.name], t[w], t[b] if b else None, **geometry))


def group_normalization(d):
    groups = d.choice([1, 2])
    x = d.some(lambda m: m.shape[1] % groups == 0 and np.prod(m.shape[1:]) // groups > 2)
    if x is None:
        return
    y = d.net.group_normalization(x, groups, epsilon=0.1)
    name = y.name
    d.made(y, lambda t: F.group_norm(t[x.name], groups, t[f"{name}.scale"], t[f"{name}.bias"], 0.1))


def instance_normalization(d):
    x = d.some(lambda m: np.prod(m.shape[2:]) > 2)
    if x is None:
        return
    y = d.net.instance_normalization(x, epsilon=0.1)
    name = y.name

    def twin(t):  # F.instance_norm of one image has wrong gradients before a layer norm (2.13)
        sites = tuple(range(2, len(x.shape)))
        variance, mean = torch.var_mean(t[x.name], sites, correction=0, keepdim=True)
        scale, bias = (
            t[f"{name}.{each}"].reshape(-1, *[1] * len(sites)) for each in ("scale", "bias")
        )
        return (t[x.name] - mean) / torch.sqrt(variance + 0.1) * scale + bias

    d.made(y, twin)


def layer_normalization(d):
    x = d.some(lambda m: m.shape[1] > 2)
    if x is None:
        return
    y = d.net.layer_normalization(x, epsilon=0.1)
    name = y.name

    def twin(t):
        last = t[x.name].movedim(1, -1)
        scale, bias = t[f"{name}.scale"], t[f"{name}.bias"]
        return F.layer_norm(last, last.shape[-1:], scale, bias, 0.1).movedim(-1, 1)

    d.made(y, twin)


def local_response_normalization(d):
    x, size = d.some(), int(d.random.integers(1, 5))
    y = d.net.local_response_normalization(x, size, alpha=0.5, k=2.0)
    d.made(y, lambda t: F.local_response_norm(t[x.name], size, 0.5, 0.75, 2.0))


def pad(d):
    x = d.some(lambda m: max(m.shape[2:]) < 8)
    if x is None:
        return
    pairs = [tuple(map(int, d.random.integers(0, 3, 2))) for _ in x.shape[2:]]
    flat = [side for pair in reversed(pairs) for side in pair]
    d.made(d.net.pad(x, pairs, value=0.5), lambda t: F.pad(t[x.name], flat, value=0.5))


def crop(d):
    x = d.some(lambda m: min(m.shape[2:]) > 2)
    if x is None:
        return
    start = [int(d.random.integers(0, e - 1)) for e in x.shape[2:]]
    size = [int(d.random.integers(1, e - s + 1)) for e, s in zip(x.shape[2:], start, strict=True)]
    cut = (..., *(slice(s, s + e) for s, e in zip(start, size, strict=True)))
    d.made(d.net.crop(x, start, size), lambda t: t[x.name][cut])


def interpolation(d):
    x = d.some(lambda m: max(m.shape[2:]) < 8)
    if x is None:
        return
    size = [int(d.random.integers(1, 2 * e + 1)) for e in x.shape[2:]]
    if d.random.integers(2):
        y = d.net.interpolation(x, size)
        d.made(y, lambda t: F.interpolate(t[x.name], size))
        return
    mode, corners = by_axes(x, "linear", "bilinear", "trilinear"), bool(d.random.integers(2))
    y = d.net.interpolation(x, size, mode="linear", align_corners=corners)
    d.made(y, lambda t: F.interpolate(t[x.name], size, mode=mode, align_corners=corners))


def adaptive_pooling(d):
    x, mode = d.some(), d.choice(["average", "max"])
    size = [int(d.random.integers(1, e + 1)) for e in x.shape[2:]]
    averages = by_axes(x, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
    largest = by_axes(x, F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
    function = averages if mode == "average" else largest
    d.made(d.net.adaptive_pooling(x, size, mode=mode), lambda t: function(t[x.name], size))


def global_pooling(d):
    x, mean = d.some(), bool(d.random.integers(2))
    sites = tuple(range(2, len(x.shape)))
    y = d.net.global_average(x) if mean else d.net.global_max(x)
    if mean:
        d.made(y, lambda t: t[x.name].mean(sites, keepdim=True))
    else:
        largest = by_axes(x, F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
        d.made(y, lambda t: largest(t[x.name], 1))


#: What draws a node, and how often.
KINDS = {
    convolution: 5,
    residual: 3,
    activation: 4,
    concatenate: 3,
    add: 2,
    batch_normalization: 3,
    pooling: 2,
    transposed_convolution: 1,
    group_normalization: 0.5,
    instance_normalization: 0.5,
    layer_normalization: 0.5,
    local_response_normalization: 0.5,
    softmax: 0.5,
    pad: 0.5,
    crop: 0.5,
    interpolation: 0.5,
    adaptive_pooling: 0.5,
    global_pooling: 0.3,
    **drawn_elementwise.KINDS,
}
