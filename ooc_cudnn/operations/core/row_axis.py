"""Rows of a tensor: positions along the spatial axis that hY is, whichever that is."""

from __future__ import annotations

from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from ooc_cudnn.operations.core.ranges import (
    Pair,
    Range,
    Rows,
    contributing_rows,
    input_rows,
    output_extent,
)

Shape = tuple[int, ...]
T = TypeVar("T")

#: The first spatial axis: what rows lie along unless a call says otherwise.
ROW_AXIS = 2


def height(shape: Shape, row_axis: int = ROW_AXIS) -> int:
    """Rows of a tensor; 1 for one without spatial axes.

    >>> height((2, 3, 5, 7)), height((2, 3, 5, 7), 3), height((2, 3))
    (5, 7, 1)
    """
    return shape[row_axis] if len(shape) > row_axis else 1


def replace_rows(shape: tuple[T, ...], rows: T, row_axis: int = ROW_AXIS) -> tuple[T, ...]:
    """The same shape, or region, with other rows; one without spatial axes stays as it is.

    >>> replace_rows((2, 3, 5, 7), 4), replace_rows((2, 3, 5, 7), 4, row_axis=3)
    ((2, 3, 4, 7), (2, 3, 5, 4))
    >>> replace_rows((2, 3), 4)
    (2, 3)
    """
    if len(shape) <= row_axis:
        return shape
    return (*shape[:row_axis], rows, *shape[row_axis + 1 :])


def tensor_region(
    shape: Shape, n: Range, channels: Range, rows: Range, row_axis: int = ROW_AXIS
) -> tuple[Range, ...]:
    """Images, channels and rows of a tensor, all of its other axes.

    >>> tensor_region((2, 3, 5, 7), (0, 1), (0, 3), (4, 6), row_axis=3)
    ((0, 1), (0, 3), (0, 5), (4, 6))
    """
    whole = (n, channels, *((0, extent) for extent in shape[2:]))
    return replace_rows(whole, rows, row_axis)


def cut_axes(shape: Shape, row_axis: int = ROW_AXIS) -> frozenset[str]:
    """The axes that cut a tensor which is broadcast where its extent is 1; a vector has channels.

    >>> sorted(cut_axes((2, 1, 5, 1))), sorted(cut_axes((2, 1, 5, 1), row_axis=3))
    (['h_y', 'n'], ['n'])
    >>> sorted(cut_axes((3,))), sorted(cut_axes((1,)))
    (['c_y'], [])
    """
    if len(shape) == 1:
        shape = (1, *shape)
    extents = {"n": shape[0], "c_y": shape[1], "h_y": height(shape, row_axis)}
    return frozenset(axis for axis, extent in extents.items() if extent > 1)


def broadcast_region(shape: Shape, region: tuple[Range, ...]) -> tuple[Range, ...]:
    """The part of a broadcast operand that meets a region; a vector has one value per channel.

    >>> region = ((0, 2), (1, 3), (4, 6))
    >>> broadcast_region((1, 3, 1), region), broadcast_region((3,), region)
    (((0, 1), (1, 3), (0, 1)), ((1, 3),))
    """
    if len(shape) == 1:
        region = region[1:2]
    return tuple((0, 1) if own == 1 else part for own, part in zip(shape, region, strict=True))


class WindowRows(NamedTuple):
    """A window along the axis that rows lie along, and the rows that it slides over."""

    extent: int
    window: int
    stride: int
    padding: Pair
    dilation: int

    def needed(self, rows: Range) -> Rows:
        """The input rows behind output rows: `window.input_rows`."""
        return input_rows(rows, *self)

    def contributing(self, rows: Range, count: int) -> Rows:
        """Range of `count` output rows that see input rows: `window.contributing_rows`."""
        return contributing_rows(rows, count, self.window, self.stride, self.padding, self.dilation)

    def reaching(self, rows: Range, count: int) -> Range:
        """Range of `count` output rows whose windows reach input rows, and none beside them."""
        reach, before = (self.window - 1) * self.dilation, self.padding[0]
        start = min(max(0, -((reach - before - rows[0]) // self.stride)), count)
        return start, max(start, min(count, (rows[1] - 1 + before) // self.stride + 1))


class Windowed:
    """An operation with a window over the spatial axes of x: a convolution, or a pooling."""

    x_shape: Shape
    window: Shape
    stride: Shape
    padding: tuple[Pair, ...]
    dilation: Shape
    output_shape: Shape

    @property
    def input_shape(self) -> Shape:
        return self.x_shape

    def sites(self) -> Shape:
        """Number of windows along each axis."""
        of = (self.x_shape[2:], self.window, self.stride, self.padding, self.dilation)
        return tuple(output_extent(*axis) for axis in zip(*of, strict=True))

    def fitting(self, window: str) -> Self:
        """Return it, or refuse a window that fits nowhere."""
        if min(self.output_shape) < 1:
            raise ValueError(
                f"{window} is larger than x of {self.x_shape[2:]} padded by {self.padding}: "
                "nothing fits"
            )
        return self

    def window_rows(self, row_axis: int) -> WindowRows:
        """The window along the axis that rows lie along."""
        at = row_axis - ROW_AXIS
        return WindowRows(
            self.x_shape[row_axis], self.window[at], self.stride[at], self.padding[at],
            self.dilation[at],
        )  # fmt: skip

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        return self.window_rows(row_axis).needed(rows)


def replace_padding(
    padding: tuple[Pair, ...], of_rows: Pair, row_axis: int = ROW_AXIS
) -> tuple[Pair, ...]:
    """The paddings of all spatial axes, with another one along the rows.

    >>> replace_padding(((1, 1), (2, 2)), (0, 1), row_axis=3)
    ((1, 1), (0, 1))
    """
    at = row_axis - ROW_AXIS
    return (*padding[:at], of_rows, *padding[at + 1 :])


def per_channel(vector: np.ndarray[Any, Any], ndim: int) -> np.ndarray[Any, Any]:
    """A vector of one value per channel, in float64, shaped to meet a tensor of `ndim` axes."""
    return vector.astype(np.float64).reshape(1, -1, *[1] * (ndim - 2))
