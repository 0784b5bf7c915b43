"""What the ooc_cuDNN paper reports of its Tesla P100: the figures that others are held to.

Ito, Matsumiya, Endo: "ooc_cuDNN: Accommodating convolutional neural networks over GPU memory
capacity", IEEE Big Data 2017. All convolutions are 3x3, float32, with as many output channels as
input channels.
"""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """The size of a convolution: n images of `channels` x `height` x `width`, in and out."""

    n: int
    channels: int
    height: int
    width: int


class Span(NamedTuple):
    """A figure given as a range."""

    least: float
    most: float


#: Table 4: GFLOPS with the features on the host and the filters on the device.
TABLE_4 = {
    Size(1, 64, 8192, 4096): 2574.0,
    Size(1, 256, 1024, 1024): 6787.0,
    Size(512, 64, 256, 256): 2681.0,
}

#: Figure 9: GFLOPS over the numbers of channels, one image of 1024 x 1024.
CHANNELS = (64, 128, 256, 512, 1024, 2048, 4096)
CHANNEL_GFLOPS = Span(4332.0, 7455.0)

#: Time of the fused convolution + bias + activation over that of the three functions.
FUSED_OVER_UNFUSED = 0.42
