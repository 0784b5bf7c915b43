"""Forms of a convolution that cuDNN computes at all, or computes far faster, on copies of tensors.

Each costs a copy and its room in the workspace, and where there is no room the operation stays as
it is. Measured with cuDNN 9.19 on an H200 (milliseconds for 8 images of 64 channels, 256 x 256, a
window of 3, channels-first and channels-last):

Symmetric rows: a piece at a border has padding before its rows and none after them, or the reverse,
    along whichever axis rows lie.
    cuDNN's good engines for true float32 and float64 want both alike (or silently take them so, see
    `cudnn_engines`). They are made alike by rows of zeros beside x, or by rows of dx that are
    computed and dropped. Filter gradient in float32: 2.4 and 2.0 in place of 15.6 and 15.3.
Widened: half types with a float32 result. cuDNN has no engine where channels are no multiples of 8,
    for depthwise windows, and for strided data gradients; and one that leaves the card idle where
    the filter is small. float32 holds every half and TF32 every bit of its fraction, so tensor
    cores give the same products. Filter gradient in float16: 0.7 and 0.5 in place of 2.6 and 2.5.
Padded: half types, where channels are no multiples of 8: an image's three, a map of classes. Tensor
    cores take zeros beside them, channels-last.
Unfolded: half types, forward and filter gradient of an image of few channels. The columns that a
    window sees are the channels (`Convolution.unfolded`): three of a window of 7 are 21 of 24, not
    3 of 8. By PyTorch's fastest engine for either (bfloat16): the first convolution of R3D-18 (32
    clips) forward 0.68 in place of 2.36, its filter gradient 0.83 for 1.70; of ResNet-50 (128
    images) 0.24 for 0.87, 0.39 for 0.46; of ViT's patches 0.11 for 0.69, 0.21 for 0.36.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_cudnn.devices.cuda.cudnn_engines import is_strict
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.kernels.relayout import fill_zero, relayout
from ooc_cudnn.devices.kernels.unfold import unfold_columns
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution, up_to_tensor_cores
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    forward_of,
    input_shapes,
    replace_forward,
    result_dtype,
    without_epilogue,
)
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_padding, replace_rows
from ooc_cudnn.tensor import DTYPES, packed_strides

WIDENED, PADDED, UNFOLDED = "widened", "padded", "unfolded"
_ALIGNMENT = 256
#: Fewer channels than this are an image's, for which other engines are the good ones.
_SEVERAL_CHANNELS = 16
#: A filter of so many elements gives the engine for half types with float32 results work for the
#: whole card: 64 x 64 x 3 x 3 took 5 times as long as widened, 256 x 256 x 3 x 3 two thirds.
_LARGE_FILTER = 300_000


class Copy(NamedTuple):
    """A tensor as cuDNN gets it: its place in the workspace, its type, its additional rows."""

    offset: int
    dtype: str
    shape: tuple[int, ...]  # with the additional rows
    layout: str
    before: int = 0
    after: int = 0
    row_axis: int = ROW_AXIS
    is_wider: bool = False  # there are additional channels, too: all is filled with zeros first

    @property
    def nbytes(self) -> int:
        """Its room in the workspace, so that what follows is aligned."""
        return _aligned_bytes(self.shape, self.dtype)

    def fill(self, source: DeviceView, workspace: int, stream: Any) -> None:
        """Copy a tensor to its place, between rows of zeros."""
        address, row_bytes = workspace + self.offset, self._row_bytes
        if self.is_wider:
            fill_zero(address, self.nbytes, 1, self.nbytes, stream)
        rows = self.shape[self.row_axis]
        images = math.prod(self.shape) * DTYPES[self.dtype] // (rows * row_bytes)
        for first, count in ((0, self.before), (rows - self.after, self.after)):
            fill_zero(
                address + first * row_bytes, count * row_bytes, images, rows * row_bytes, stream
            )
        if source.dtype == self.dtype:
            relayout(self._inside(source, workspace), source, stream)
        else:
            pointwise(self._inside(source, workspace), source, stream=stream)

    def give_back(self, destination: DeviceView, workspace: int, stream: Any) -> None:
        """Copy a result from its place, without the additional rows and channels."""
        relayout(destination, self._inside(destination, workspace), stream)

    @property
    def _row_bytes(self) -> int:
        return packed_strides(self.shape, self.layout)[self.row_axis] * DTYPES[self.dtype]

    def _inside(self, view: DeviceView, workspace: int) -> DeviceView:
        address = workspace + self.offset + self.before * self._row_bytes
        return DeviceView(address, self.dtype, view.shape, packed_strides(self.shape, self.layout))


class UnfoldedImages(NamedTuple):
    """The images of a convolution, with the columns under a window as channels."""

    offset: int
    forward: Convolution
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its room in the workspace, so that what follows is aligned."""
        return _aligned_bytes(self.shape, self.forward.dtype)

    def fill(self, source: DeviceView, workspace: int, stream: Any) -> None:
        """Unfold images to their place."""
        forward, strides = self.forward, packed_strides(self.shape, "channels_last")
        unfold_columns(
            DeviceView(workspace + self.offset, source.dtype, self.shape, strides), source,
            window=forward.window[-1], stride=forward.stride[-1], before=forward.padding[-1][0],
            stream=stream,
        )  # fmt: skip


class UnfoldedFilter(NamedTuple):
    """A filter, or its gradient, with the columns of its window as channels."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its room in the workspace, so that what follows is aligned."""
        return _aligned_bytes(self.shape, self.dtype)

    def fill(self, source: DeviceView, workspace: int, stream: Any) -> None:
        """Copy a filter to its place, with channels of zeros behind its own."""
        fill_zero(workspace + self.offset, self.nbytes, 1, self.nbytes, stream)
        relayout(self._columns(source, workspace), source, stream)

    def give_back(self, destination: DeviceView, workspace: int, stream: Any) -> None:
        """Copy a gradient from its place."""
        relayout(destination, self._columns(destination, workspace), stream)

    def _columns(self, view: DeviceView, workspace: int) -> DeviceView:
        """The place as a filter of the shape of `view`."""
        *steps, _ = packed_strides(self.shape, "channels_last")
        return DeviceView(workspace + self.offset, self.dtype, view.shape, (*steps, view.shape[1]))


#: What cuDNN gets in place of an operand.
AnyCopy = Copy | UnfoldedImages | UnfoldedFilter


class Form(NamedTuple):
    """Form of an operation that cuDNN computes, and the tensors that are copied for that."""

    operation: AnyConvolution
    inputs: tuple[AnyCopy | None, AnyCopy | None] = (None, None)
    result: Copy | UnfoldedFilter | None = None
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all copies; cuDNN's own workspace follows them."""
        return sum(copy.nbytes for copy in (*self.inputs, self.result) if copy is not None)


def forms(operation: AnyConvolution) -> Iterator[Form]:
    """Yield the forms of an operation, the best first."""
    if _wants_symmetric_rows(operation):
        yield pad_symmetrically(operation)
    unfolded = unfold(operation)
    if unfolded:
        yield unfolded
    padded = pad_channels(operation)
    if result_dtype(operation) == forward_of(operation).dtype:
        yield Form(operation)
        if padded:
            yield padded
    elif padded and forward_of(operation).layout == "channels_last":
        yield from (padded, widen_inputs(operation))
    elif leaves_the_card_idle(operation):
        yield from (widen_inputs(operation), Form(operation))
    else:
        yield from (Form(operation), widen_inputs(operation))


def leaves_the_card_idle(operation: AnyConvolution) -> bool:
    """Tell whether a filter is so small that its gradient, as float32 of halves, is few tiles."""
    elements = math.prod(forward_of(operation).w_shape)
    return isinstance(operation, ConvolutionBackwardFilter) and elements < _LARGE_FILTER


def _wants_symmetric_rows(operation: AnyConvolution) -> bool:
    forward = forward_of(operation)
    uneven = sum(before != after for before, after in forward.padding)
    depthwise = forward.w_shape[1] == 1  # its engines bear any padding
    if uneven != 1 or depthwise:
        return False
    several, strided = forward.w_shape[1] >= _SEVERAL_CHANNELS, max(forward.stride) > 1
    if isinstance(without_epilogue(operation), Convolution):
        return forward.dtype == "float64"
    if isinstance(operation, ConvolutionBackwardData):
        if forward.dtype == "float64":
            return several or strided
        return is_strict(operation) and (strided or not several)
    return is_strict(operation) or (forward.dtype == "float64" and several)


def pad_symmetrically(operation: AnyConvolution) -> Form:
    """Add to x or dx the rows that make up for padding on one side, and take as much on the other.

    Their values are zeros in x and of no meaning in dx.
    """
    forward = forward_of(operation)
    uneven = (axis for axis, (before, after) in enumerate(forward.padding) if before != after)
    index = next(uneven, 0)
    row_axis, (before, after) = ROW_AXIS + index, forward.padding[index]
    both = min(before, after)
    shape = replace_rows(
        forward.x_shape, forward.x_shape[row_axis] + before + after - 2 * both, row_axis
    )
    copy = Copy(0, forward.dtype, shape, forward.layout, before - both, after - both, row_axis)
    padding = replace_padding(forward.padding, (both, both), row_axis)
    padded = replace_forward(operation, replace(forward, x_shape=shape, padding=padding))
    if isinstance(operation, ConvolutionBackwardData):
        copy = copy._replace(dtype=operation.result_dtype)
        return Form(padded, result=copy, name="symmetric rows")
    return Form(padded, (copy, None), name="symmetric rows")


def widen_inputs(operation: AnyConvolution) -> Form:
    """Convert the inputs to float32, and let tensor cores take them as TF32."""
    forward = forward_of(operation)
    shapes = input_shapes(without_epilogue(operation))
    first, second = (Copy(0, "float32", shape, forward.layout) for shape in shapes)
    second = second._replace(offset=first.nbytes)
    wide = replace(forward, dtype="float32", y_dtype="float32", allow_tf32=True)
    return Form(replace_forward(operation, wide), (first, second), name=WIDENED)


def pad_channels(operation: AnyConvolution) -> Form | None:
    """Add channels of zeros up to a multiple of 8; None where that is nothing, or cannot be.

    They are added channels-last, whatever the order of the tensors is: so tensor cores take them.
    """
    forward = forward_of(operation)
    images, channels, *extents = forward.x_shape
    results, _, *window = forward.w_shape
    more, most = (up_to_tensor_cores(number) for number in (channels, results))
    is_half = DTYPES[forward.dtype] == 2
    if not is_half or forward.groups > 1:
        return None
    if (more, most) == (channels, results):
        return None
    is_copied = forward.layout != "channels_last"
    wide = replace(
        forward, x_shape=(images, more, *extents), w_shape=(most, more, *window),
        layout="channels_last",
    )  # fmt: skip
    padded = replace_forward(operation, wide)
    given, taken = input_shapes(operation), input_shapes(padded)
    if given[2:] != taken[2:] or (given[2:] and is_copied):  # of an epilogue: taken as it is
        return None
    copies, offset = list[Copy | None](), 0
    pairs = [*zip(given[:2], taken[:2], strict=True), (operation.output_shape, padded.output_shape)]
    for dtype, (narrow, shape) in zip(
        (forward.dtype, forward.dtype, result_dtype(operation)), pairs, strict=True
    ):
        if shape == narrow and not is_copied:
            copies.append(None)
            continue
        copy = Copy(offset, dtype, shape, wide.layout, is_wider=shape != narrow)
        copies.append(copy)
        offset += copy.nbytes
    return Form(padded, (copies[0], copies[1]), copies[2], PADDED)


def unfold(operation: AnyConvolution) -> Form | None:
    """Take columns under a window for channels; None where that is no faster, or cannot be."""
    forward = forward_of(operation)
    narrow = forward.unfolded
    if narrow is None or isinstance(operation, ConvolutionBackwardData):
        return None
    images = UnfoldedImages(0, forward, narrow.x_shape)
    filters = UnfoldedFilter(images.nbytes, forward.dtype, narrow.w_shape)
    unfolded = replace_forward(operation, narrow)
    if isinstance(operation, ConvolutionBackwardFilter):
        filters = filters._replace(dtype=operation.result_dtype)
        return Form(unfolded, (images, None), filters, UNFOLDED)
    return Form(unfolded, (images, filters), name=UNFOLDED)


def _aligned_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return -(-math.prod(shape) * DTYPES[dtype] // _ALIGNMENT) * _ALIGNMENT
