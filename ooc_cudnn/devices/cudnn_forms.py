"""Forms of a convolution that cuDNN computes as it stands, or computes faster, by copying inputs.

Two copies are worth their place in the workspace; both are far cheaper than what they avoid:

- Half types with a float32 result: cuDNN has engines for channels in multiples of 8 and stride 1
  only. float32 holds every half and TF32 every bit of its fraction, so that widened inputs give the
  products exactly, on tensor cores.
- The filter gradient in true float32 or float64 where a piece has padding before its rows and none
  after them, or the reverse: all its good engines are wrong there, and the others take 5 to 300
  times as long. With rows of zeros beside x the padding is the same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_cudnn.devices import kernels
from ooc_cudnn.devices.cudnn_engines import is_strict
from ooc_cudnn.devices.cudnn_graphs import AnyConvolution, forward_of, result_dtype
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.convolution_backward import ConvolutionBackwardFilter
from ooc_cudnn.tensor import DTYPES, packed_strides

_ALIGNMENT = 256


class InputCopy(NamedTuple):
    """An input as cuDNN gets it: its place in the workspace, its type, its rows of zeros."""

    offset: int
    dtype: str
    shape: tuple[int, ...]  # with the rows of zeros
    layout: str
    before: int
    after: int

    def make(self, source: DeviceView, workspace: int, stream: Any) -> int:
        """Copy an input to the workspace; returns its address there."""
        address, item = workspace + self.offset, DTYPES[self.dtype]
        strides = packed_strides(self.shape, self.layout)
        row_bytes = math.prod(self.shape[3:]) * item
        batch, channels, rows = self.shape[:3]
        if self.layout == "channels_first":
            images = batch * channels
        else:
            images, row_bytes = batch, row_bytes * channels
        for first, count in ((0, self.before), (rows - self.after, self.after)):
            kernels.fill_zero(
                address + first * row_bytes, count * row_bytes, images, rows * row_bytes, stream
            )
        inside = DeviceView(address + self.before * row_bytes, self.dtype, source.shape, strides)
        if source.dtype == self.dtype:
            kernels.relayout(inside, source, stream)
        else:
            kernels.pointwise(inside, source, stream=stream)
        return address


class Form(NamedTuple):
    """What cuDNN computes in place of an operation, and the copies of inputs it needs for that."""

    operation: AnyConvolution
    copies: tuple[InputCopy | None, InputCopy | None] = (None, None)
    nbytes: int = 0  # of all copies
    name: str = ""


def forms(operation: AnyConvolution) -> Iterator[Form]:
    """Yield the forms of an operation, the best first."""
    if _wants_zero_rows(operation):
        yield _with_zero_rows(operation)
    yield Form(operation)
    if result_dtype(operation) == "float32" and forward_of(operation).dtype != "float32":
        yield _widened(operation)


def _wants_zero_rows(operation: AnyConvolution) -> bool:
    forward = forward_of(operation)
    (before, after), *others = forward.padding
    return (
        isinstance(operation, ConvolutionBackwardFilter)
        and (forward.dtype == "float64" or is_strict(operation))
        and before != after
        and all(a == b for a, b in others)
    )


def _with_zero_rows(operation: AnyConvolution) -> Form:
    forward = forward_of(operation)
    (before, after), *others = forward.padding
    both = min(before, after)
    batch, channels, rows, *columns = forward.x_shape
    shape = (batch, channels, rows + before + after - 2 * both, *columns)
    copy = InputCopy(0, forward.dtype, shape, forward.layout, before - both, after - both)
    padded = replace(forward, x_shape=shape, padding=((both, both), *others))
    nbytes = _aligned(math.prod(shape) * DTYPES[forward.dtype])
    return Form(_with_forward(operation, padded), (copy, None), nbytes, "zero rows")


def _widened(operation: AnyConvolution) -> Form:
    forward = forward_of(operation)
    shapes = {
        "convolution_forward": (forward.x_shape, forward.w_shape),
        "convolution_backward_data": (forward.w_shape, forward.output_shape),
        "convolution_backward_filter": (forward.x_shape, forward.output_shape),
    }[operation.name]
    first, second = (
        InputCopy(0, "float32", shape, forward.layout, before=0, after=0) for shape in shapes
    )
    second = second._replace(offset=_aligned(math.prod(first.shape) * DTYPES["float32"]))
    nbytes = second.offset + _aligned(math.prod(second.shape) * DTYPES["float32"])
    wide = replace(forward, dtype="float32", y_dtype="float32", allow_tf32=True)
    return Form(_with_forward(operation, wide), (first, second), nbytes, "widened")


def _with_forward(operation: AnyConvolution, forward: Convolution) -> AnyConvolution:
    if isinstance(operation, Convolution):
        return forward
    return replace(operation, forward=forward)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
