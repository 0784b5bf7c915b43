"""What the ooc_cuDNN paper reports of its Tesla P100: the figures that others are held to.

Ito, Matsumiya, Endo: "ooc_cuDNN: Accommodating convolutional neural networks over GPU memory
capacity", IEEE Big Data 2017. All convolutions are 3x3, float32, with as many output channels as
input channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

WINDOW_SITES = 9
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Size:
    """The size of a convolution: n images of `channels` x `height` x `width`, in and out."""

    n: int
    channels: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"n={self.n}, {self.channels} channels, {self.height}x{self.width}"

    @property
    def flops(self) -> float:
        """2 * n * cX * cY * (rW * sW) * (hY * wY).

        Examples
        --------
        >>> Size(1, 64, 1, 1).flops
        73728.0
        """
        sites = self.n * self.height * self.width
        return 2.0 * self.channels**2 * WINDOW_SITES * sites

    @property
    def nbytes(self) -> int:
        return FLOAT_BYTES * self.n * self.channels * self.height * self.width

    def shrunk(self, by: int) -> Size:
        """Return the same with images, or the one image, cut by this factor squared.

        Examples
        --------
        >>> Size(512, 64, 256, 256).shrunk(16).n, Size(1, 64, 1024, 1024).shrunk(16).width
        (2, 64)
        """
        if self.n > 1:
            return replace(self, n=-(-self.n // by**2))
        return replace(self, height=-(-self.height // by), width=-(-self.width // by))


class Span(NamedTuple):
    """A figure given as a range."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{100 * self.least:.1f} to {100 * self.most:.1f} %"


#: Table 4: GFLOPS with the features on the host and the filters on the device.
TABLE_4 = {
    Size(1, 64, 8192, 4096): 2574.0,
    Size(1, 256, 1024, 1024): 6787.0,
    Size(512, 64, 256, 256): 2681.0,
}
#: How much slower than the best split of an exhaustive search, over those sizes.
ORDERED_GAP = 0.034
LOCAL_GAP = Span(0.05, 0.27)

#: Figure 9: GFLOPS over the numbers of channels, one image of 1024 x 1024.
CHANNELS = (64, 128, 256, 512, 1024, 2048, 4096)
CHANNEL_GFLOPS = Span(4332.0, 7455.0)
#: cuDNN's best on data that fits the card, and the share of it reached beyond the card's memory.
CUDNN_GFLOPS = 7629.0
SHARE_BEYOND_MEMORY = 0.97

#: Time of the fused convolution + bias + activation over that of the three functions.
FUSED_OVER_UNFUSED = 0.42
