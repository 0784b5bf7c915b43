"""A U-Net that joins maps of all of its positions, as VoxelMorph's does."""

from __future__ import annotations

import ooc_cudnn


def unet(side, dtype="float32", *, levels=4, axes=3):
    """Return a network that makes maps half as large so many times, and its loss."""
    net = ooc_cudnn.Network(seed=1)

    def stage(x, channels):
        return net.activation(net.convolution(x, channels, window=3, padding=1))

    x, skips = net.input("x", (1, 2, *(side,) * axes), dtype), []
    for level in range(levels):
        x = stage(x, 16 if level == 0 else 32)
        skips.append(x)
        x = net.pooling(x, window=2)
    for skip in reversed(skips):
        x = net.interpolation(stage(x, 32), scale_factor=2)
        x = net.concatenate([x, skip])
    y = net.convolution(stage(x, 16), 3, window=3, padding=1)
    return net, net.mean_squared_error(y, net.input("target", y.shape, dtype))
