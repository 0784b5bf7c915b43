"""Gradients of a convolution with respect to its data and to its filter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.tensor import ACCUMULATOR, DTYPES
from perfmodel import Direction, Work


@dataclass(frozen=True)
class _Gradient:
    """A gradient of a convolution, for one piece.

    Parameters
    ----------
    forward : Convolution
        The forward convolution of the piece, in its `layout`: its `x_shape` and `w_shape` are those
        of the data and the filter or their gradients, its `output_shape` is dy's.
    result_dtype : str
        Of the result; sums over pieces are float32 for half types.
    """

    forward: Convolution
    result_dtype: str

    direction: ClassVar[Direction]

    @property
    def dtype(self) -> str:
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        raise NotImplementedError

    def work(self) -> Work:
        """Work of the forward convolution."""
        forward, elements = self.forward, math.prod(self.output_shape)
        key = forward.line(self.direction)
        if min(forward.output_shape) < 1:  # no window reaches the piece: its result is zeros
            return Work(key, 0.0, float(elements * DTYPES[self.result_dtype]))
        extra = elements * (DTYPES[self.result_dtype] - DTYPES[forward.dtype])
        return forward.work_of(key, forward.dtype, extra, self.direction)


class ConvolutionBackwardData(_Gradient):
    """dx from (w, dy); a dy of no rows gives zeros. Source: cudnnConvolutionBackwardData."""

    name = "convolution_backward_data"
    direction = "backward_data"

    @property
    def output_shape(self) -> Shape:
        return self.forward.x_shape

    def reference(self, *inputs: Array) -> Array:
        """Scatter dy through every tap of the window, in float64."""
        w, dy = (array.astype(np.float64) for array in inputs)
        forward = self.forward
        n, groups = forward.x_shape[0], forward.groups
        padded = [e + a + b for e, (a, b) in zip(forward.x_shape[2:], forward.padding, strict=True)]
        dx = np.zeros((n, groups, forward.w_shape[1], *padded))
        if 0 not in dy.shape:
            dy = dy.reshape(n, groups, -1, *dy.shape[2:])
            w = w.reshape(groups, -1, *w.shape[1:])
            for tap, window in forward.taps():
                dx[window] += np.einsum("ngk...,gkc->ngc...", dy, w[tap])
        inside: tuple[Any, ...] = tuple(
            slice(before, before + extent)
            for extent, (before, _) in zip(forward.x_shape[2:], forward.padding, strict=True)
        )
        return np.ascontiguousarray(dx[(..., *inside)]).reshape(forward.x_shape)


class AddedBackwardData(ConvolutionBackwardData):
    """dx + a from (w, dy, a): a data gradient added to another one in its epilogue, rounded once.

    `a` has the shape and the type of dx, and may be the same memory. Source: cuDNN's graphs
    (``conv_dgrad`` and ``add``).
    """

    name = "convolution_backward_data_add"

    @property
    def alone(self) -> ConvolutionBackwardData:
        """The gradient by itself, as a device makes it that cannot add it at once."""
        return ConvolutionBackwardData(self.forward, ACCUMULATOR[self.result_dtype])

    @property
    def after(self) -> Pointwise:
        """The pass that adds it then."""
        dtype = self.alone.result_dtype
        return Pointwise(self.output_shape, dtype, self.result_dtype, beta=1.0)

    @property
    def alone_bytes(self) -> int:
        """Bytes of the gradient by itself."""
        return math.prod(self.output_shape) * DTYPES[self.alone.result_dtype]

    def work(self) -> Work:
        """Work of the gradient, with `a` read: other engines than the gradient's compute it.

        Raises
        ------
        ValueError
            If no window reaches the piece: there is nothing to add.
        """
        forward = self.forward
        if min(forward.output_shape) < 1:
            raise ValueError("no window reaches it, so there is nothing to add")
        key = forward.line(f"{self.direction}/added")
        extra = math.prod(self.output_shape) * DTYPES[self.result_dtype]
        return forward.work_of(key, forward.dtype, extra, self.direction)

    def reference(self, *inputs: Array) -> Array:
        """Compute in float64."""
        *of_gradient, addend = inputs
        return super().reference(*of_gradient) + addend.astype(np.float64)


class ConvolutionBackwardFilter(_Gradient):
    """dw from (x, dy): the part of the sum over n and hY that the piece holds.

    An x of no rows is zeros, by which dy is multiplied. Source: cudnnConvolutionBackwardFilter.
    """

    name = "convolution_backward_filter"
    direction = "backward_filter"

    @property
    def output_shape(self) -> Shape:
        return self.forward.w_shape

    def reference(self, *inputs: Array) -> Array:
        """Correlate x with dy at every tap of the window, in float64."""
        x, dy = (array.astype(np.float64) for array in inputs)
        forward = self.forward
        if 0 in dy.shape:
            return np.zeros(forward.w_shape)
        x = np.pad(x, ((0, 0), (0, 0), *forward.padding))
        n, groups = x.shape[0], forward.groups
        x = x.reshape(n, groups, -1, *x.shape[2:])
        dy = dy.reshape(n, groups, -1, *dy.shape[2:])
        dw = np.zeros((groups, dy.shape[2], *forward.w_shape[1:]))
        flat = dy.reshape(n, groups, dy.shape[2], -1)
        for tap, window in forward.taps():
            seen = x[window].reshape(n, groups, x.shape[2], -1)
            dw[tap] = np.einsum("ngks,ngcs->gkc", flat, seen, optimize=True)
        return dw.reshape(forward.w_shape)


#: What the inputs of a convolution are called where it is measured by itself.
INPUTS = ("first", "second", "third")
#: A convolution, perhaps with what comes after it, or one of its gradients.
AnyConvolution = (
    Convolution | FusedConvolution | ConvolutionBackwardData | ConvolutionBackwardFilter
)


def forward_of(operation: AnyConvolution) -> Convolution:
    """The forward convolution that an operation is, begins with, or is a gradient of."""
    return operation if isinstance(operation, Convolution) else operation.forward


def without_epilogue(
    operation: AnyConvolution,
) -> Convolution | ConvolutionBackwardData | ConvolutionBackwardFilter:
    """The convolution or gradient, without what comes after it."""
    if isinstance(operation, AddedBackwardData):
        return operation.alone
    return operation.forward if isinstance(operation, FusedConvolution) else operation


def replace_forward(operation: AnyConvolution, forward: Convolution) -> AnyConvolution:
    """The same operation, or gradient, of another forward convolution."""
    return forward if isinstance(operation, Convolution) else replace(operation, forward=forward)


def in_memory_order(operation: AnyConvolution, layout: str) -> AnyConvolution:
    """An operation in another memory order; what comes after it is a pass of its own there."""
    return replace_forward(
        without_epilogue(operation), replace(forward_of(operation), layout=layout)
    )


def result_dtype(operation: AnyConvolution) -> str:
    """The type of an operation's result."""
    return operation.y_dtype if isinstance(operation, Convolution) else operation.result_dtype


def input_shapes(operation: AnyConvolution) -> tuple[tuple[int, ...], ...]:
    """Shapes of an operation's inputs, in their order."""
    forward = forward_of(operation)
    if isinstance(operation, FusedConvolution):
        return forward.x_shape, forward.w_shape, forward.w_shape[:1]
    if isinstance(operation, Convolution):
        return forward.x_shape, forward.w_shape
    if isinstance(operation, AddedBackwardData):
        return forward.w_shape, forward.output_shape, forward.x_shape
    if isinstance(operation, ConvolutionBackwardData):
        return forward.w_shape, forward.output_shape
    return forward.x_shape, forward.output_shape
