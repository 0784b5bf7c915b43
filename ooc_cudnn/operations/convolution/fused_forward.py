"""A convolution with the bias and the activation after it, as one launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise import Pointwise
from perfmodel import Work

#: The activations that it may end in, and what it is called then.
EPILOGUES = {"identity": "convolution_bias", "relu": "convolution_bias_relu"}
#: Kinds of arithmetic in which one launch is faster than two, with channels last. On an H200 (cuDNN
#: 9.19, docs/closed-studies.md) VGG-16's layers take 0.77, 0.78 and 0.79 of the time, other windows
#: and strides and a third axis 0.43 to 0.95.
PRECISIONS = ("tf32", "float16", "bfloat16")
#: In bfloat16 three channels took 1.2 times as long: a site's channels are to be whole multiples of
#: the 16 bytes that tensor cores' loads are.
ALIGNED_PRECISION, ALIGNED_CHANNELS = "bfloat16", 8
#: In strict float32 the arithmetic takes as long as ever (1.00, and 1.66 once), but of fewer
#: channels than this, an image's, there is little (0.74 to 0.91).
STRICT_CHANNELS = 16
#: Groups of 4 channels took 0.73, depthwise windows 11 to 17 times as long.
GROUP_CHANNELS = 4


def is_faster_fused(forward: Convolution, layout: str) -> bool:
    """True if a convolution is to be one launch with the bias and the activation after it.

    Examples
    --------
    >>> first = Convolution.of((64, 3, 224, 224), (64, 3, 3, 3), padding=1)
    >>> is_faster_fused(first, "channels_first"), is_faster_fused(first, "channels_last")
    (False, True)
    """
    channels, precision = forward.x_shape[1], forward.precision
    if layout != "channels_last" or math.prod(forward.output_shape[2:]) == 1:
        return False  # of a single site, as in linear layers, there is no pass to save
    if forward.groups > 1 and forward.w_shape[1] < GROUP_CHANNELS:
        return False
    if precision == "float32":
        return forward.groups == 1 and channels < STRICT_CHANNELS
    is_aligned = channels % ALIGNED_CHANNELS == 0
    return precision in PRECISIONS and (is_aligned or precision != ALIGNED_PRECISION)


@dataclass(frozen=True)
class FusedConvolution:
    """y = f(w * x + b), from (x, w, b): b one value per channel of y, f of `EPILOGUES`.

    A device that cannot fuse them goes over y once more (`after`).
    """

    forward: Convolution
    mode: str = "identity"

    def __post_init__(self) -> None:
        if self.mode not in EPILOGUES:
            raise ValueError(f"mode must be one of {', '.join(EPILOGUES)}, not {self.mode!r}")

    @property
    def name(self) -> str:
        """The names of what it does."""
        return EPILOGUES[self.mode]

    @property
    def result_dtype(self) -> str:
        """Dtype of y: that of all operands."""
        return self.forward.y_dtype

    @property
    def dtype(self) -> str:
        """Dtype of all its operands."""
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return self.forward.output_shape

    @property
    def after(self) -> Pointwise:
        """The pass over y that does what comes after the convolution, in place."""
        shape, dtype = self.output_shape, self.dtype
        return Pointwise(shape, dtype, dtype, self.mode, has_shift=True)

    def work(self) -> Work:
        """Work of the convolution: y is written once. Other engines than its compute it."""
        forward = self.forward
        return forward.work_of(forward.line(self.name), forward.y_dtype)

    def reference(self, *inputs: Array) -> Array:
        """Compute in float64."""
        x, w, b = inputs
        value = self.forward.reference(x, w)
        value = value + b.astype(np.float64).reshape(-1, *[1] * (value.ndim - 2))
        return MODES[self.mode].value(value, 0.0)
