"""A network of residual blocks, as deep and wide as a test needs."""

from __future__ import annotations

import ooc_cudnn


def blocks(batch, image, count, channels=8):
    """A network of residual blocks, and its loss: most maps it is worth it to make again."""
    net = ooc_cudnn.Network(seed=3)
    h = net.convolution(net.input("x", (batch, 3, image, image)), channels, window=3, padding=1)
    for _ in range(count):
        inner = net.activation(net.batch_normalization(h), "relu")
        inner = net.convolution(inner, channels, window=3, padding=1)
        inner = net.activation(net.batch_normalization(inner), "relu")
        h = net.add(net.convolution(inner, channels, window=3, padding=1), h)
    logits = net.linear(net.global_average(h), 10)
    return net, net.softmax_cross_entropy(logits, net.input("labels", (batch,), "int64"))
