"""A convolution with the bias and the activation after it, as one launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.activation import MODES
from ooc_cudnn.operations.base import Array, Shape
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pointwise import Pointwise
from perfmodel import Work

#: The activations that it may end in.
EPILOGUES = ("identity", "relu")


@dataclass(frozen=True)
class FusedConvolution:
    """y = f(w * x + b), from (x, w, b): b one value per channel of y, f of `EPILOGUES`.

    A device that cannot fuse them goes over y once more (`after`).
    """

    forward: Convolution
    mode: str = "identity"

    name = "fused_convolution"

    def __post_init__(self) -> None:
        if self.mode not in EPILOGUES:
            raise ValueError(f"mode must be one of {', '.join(EPILOGUES)}, not {self.mode!r}")

    @property
    def dtype(self) -> str:
        """Of all its operands."""
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
        """That of the convolution: y is written once."""
        return self.forward.work()

    def reference(self, *inputs: Array) -> Array:
        """In float64."""
        x, w, b = inputs
        value = self.forward.reference(x, w)
        value = value + b.astype(np.float64).reshape(-1, *[1] * (value.ndim - 2))
        return MODES[self.mode][0](value, 0.0)
