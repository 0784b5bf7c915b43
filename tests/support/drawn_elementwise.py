"""Kinds of drawn nodes that compute each element by itself: products, gates, PReLU, dropout."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ooc_cudnn.operations.elementwise.dropout import Dropout


def multiply(d):
    a = d.some()
    b = d.some(lambda m: m.shape == a.shape)
    d.made(d.net.multiply(a, b), lambda t: t[a.name] * t[b.name])


def gate(d):
    """Squeeze and excitation: each channel of an image times, or plus, a number made of it."""
    x, op = d.some(), d.choice(["multiply", "add"])
    inner = d.net.global_average(x)
    d.steps.append(
        (inner.name, lambda t: t[x.name].mean(tuple(range(2, len(x.shape))), keepdim=True))
    )
    between = d.net.linear(inner, x.shape[1])
    number = d.net.activation(between, "sigmoid")
    linear = between.name

    def twin(t):
        w, b = t[f"{linear}.w"].flatten(1), t[f"{linear}.b"]
        made = torch.sigmoid(F.linear(t[inner.name].flatten(1), w, b))
        made = made.reshape(*x.shape[:2], *[1] * (len(x.shape) - 2))
        return t[x.name] * made if op == "multiply" else t[x.name] + made

    d.made(getattr(d.net, op)(x, number), twin)


def number(d):
    x, op = d.some(), d.choice(["multiply", "add"])
    y = getattr(d.net, op)(x, float(d.random.uniform(-2, 2)))
    constant = f"{y.name}.constant"
    d.made(y, lambda t: t[x.name] * t[constant] if op == "multiply" else t[x.name] + t[constant])


def prelu(d):
    x = d.some()
    y = d.net.prelu(x, per_channel=bool(d.random.integers(2)))
    d.made(y, lambda t: F.prelu(t[x.name], t[f"{y.name}.w"]))


def dropout(d):
    x = d.some()
    p, per_channel = d.choice([0.0, 0.2, 0.6]), bool(d.random.integers(2))
    y = d.net.dropout(x, p, per_channel=per_channel)
    call = Dropout(x.shape, x.shape, (0,) * len(x.shape), p, per_channel, "float64")
    whole = tuple(slice(0, extent) for extent in x.shape)

    def twin(t):
        if not (t.training and p):
            return t[x.name] * 1
        state = t[f"{y.name}.state"]
        state[1] += 1
        return t[x.name] * torch.tensor(np.array(call.factors(whole, state.numpy())))

    d.made(y, twin)


#: What draws a node, and how often.
KINDS = {multiply: 0.7, gate: 0.5, number: 0.3, prelu: 0.5, dropout: 0.7}
