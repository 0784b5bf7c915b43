"""The layers of VGG-16, and the memory of their parameters and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import ooc_cudnn

#: Elements that parameters are padded to, so that their gradients beside them start aligned.
ALIGNED_ELEMENTS = 64


def shaped(buffer: Any, shape: tuple[int, ...], order: str) -> Any:
    """Return the first elements of a flat array as a tensor of `shape` in a memory order."""
    flat = buffer[: math.prod(shape)]
    if order == "channels_last" and len(shape) == 4:
        n, c, h, w = shape
        return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return flat.reshape(shape)


class Parameter:
    """A parameter and its gradient: halves of one array, so that both are in one place."""

    def __init__(self, initial: np.ndarray[Any, Any], order: str) -> None:
        half = math.ceil(initial.size / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
        both = ooc_cudnn.empty((2 * half,), initial.dtype)
        self.value = shaped(both, initial.shape, order)
        self.gradient = shaped(both[half:], initial.shape, order)
        ooc_cudnn.memcpy(self.value, initial)

    def descend(self, rate: float) -> None:
        """Take one step of gradient descent; in place, so the gradient is scaled by `rate`."""
        self.gradient *= rate
        self.value -= self.gradient


class GradientPool:
    """Two buffers that hold the gradients of all feature maps, in turn."""

    def __init__(self, elements: int, dtype: Any, order: str) -> None:
        self.order = order
        self.buffers = [ooc_cudnn.empty((elements,), dtype) for _ in range(2)]

    def take(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor in the buffer that was taken longer ago: the last one stays valid."""
        self.buffers.reverse()
        return self.again(shape)

    def again(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor in the buffer that was taken last, in place of what is there."""
        return shaped(self.buffers[0], shape, self.order)


@dataclass
class Convolution:
    """Convolution, bias and activation."""

    name: str
    w: Parameter
    b: Parameter
    padding: int
    activation: str

    def forward(self, x: Any, y: Any) -> None:
        """Write y."""
        ooc_cudnn.convolution_add_activation_forward(
            x, self.w.value, self.b.value, activation=self.activation, padding=self.padding, out=y
        )

    def backward(self, x: Any, y: Any, dy: Any, pool: GradientPool) -> Any:
        """Write the gradients of the parameters, and return dx."""
        w, dw, db = self.w.value, self.w.gradient, self.b.gradient
        dx = pool.take(x.shape)
        try:
            ooc_cudnn.convolution_add_activation_backward(
                x, w, y, dy, activation=self.activation, padding=self.padding, out=(dx, dw, db)
            )
        except ooc_cudnn.PlanInfeasibleError:
            # Filters too large to stay on the device whole. The single functions cut them, too.
            # dz goes where dx would have gone, and then dx where dy was.
            dz = pool.again(y.shape)
            ooc_cudnn.activation_backward(y, dy, mode=self.activation, out=dz)
            ooc_cudnn.convolution_backward_filter(x, dz, padding=self.padding, out=dw)
            ooc_cudnn.convolution_backward_bias(dz, out=db)
            dx = pool.take(x.shape)
            ooc_cudnn.convolution_backward_data(w, dz, padding=self.padding, out=dx)
        return dx


@dataclass
class MaxPooling:
    """The largest of each 2x2 window."""

    name: str

    def forward(self, x: Any, y: Any) -> None:
        """Write y."""
        ooc_cudnn.pooling_forward(x, window=2, out=y)

    def backward(self, x: Any, y: Any, dy: Any, pool: GradientPool) -> Any:
        """Return dx."""
        dx = pool.take(x.shape)
        ooc_cudnn.pooling_backward(y, dy, x, window=2, out=dx)
        return dx


@dataclass
class LogSoftmax:
    """Logarithms of the classes' probabilities."""

    name: str

    def forward(self, x: Any, y: Any) -> None:
        """Write y."""
        ooc_cudnn.softmax_forward(x, algorithm="log", out=y)

    def backward(self, x: Any, y: Any, dy: Any, pool: GradientPool) -> Any:
        """Return dx."""
        dx = pool.take(x.shape)
        ooc_cudnn.softmax_backward(y, dy, algorithm="log", out=dx)
        return dx
