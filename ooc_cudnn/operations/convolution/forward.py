"""Convolution (cuDNN's cross-correlation), forward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.ranges import (
    Pair,
    Range,
    Ranges,
    Rows,
    grouped_ranges,
    in_words,
)
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, Windowed, replace_padding, replace_rows
from ooc_cudnn.operations.core.window_arguments import check_padding, convolution_geometry
from ooc_cudnn.tensor import DTYPES
from perfmodel import Direction, Work, convolution_work

#: Tensor cores take channels of half types by multiples of so many.
CHANNELS_OF_TENSOR_CORES = 8


def up_to_tensor_cores(channels: int) -> int:
    """Round a number of channels up to what tensor cores take of half types.

    >>> up_to_tensor_cores(21)
    24
    """
    return -(-channels // CHANNELS_OF_TENSOR_CORES) * CHANNELS_OF_TENSOR_CORES


@dataclass(frozen=True)
class Convolution(Windowed):
    """Cross-correlation of x (n, cX, spatial...) with w (cY, cX / groups, window...).

    Parameters
    ----------
    x_shape, w_shape : tuple of int
        One to three spatial axes, the same number in both.
    padding : tuple of (before, after) pairs, one per spatial axis
    stride, dilation : tuple of int, one per spatial axis
    groups : int
        Divides cX and cY; ``groups == cX`` is a depthwise convolution.
    dtype : str
        Of x and w.
    y_dtype : str, optional
        Of the result; `dtype` when left out (sums over pieces of cX are float32 for half types).
    allow_tf32, deterministic : bool
        cuDNN's math type: whether TF32 (and other lossy float32 paths) may be used, and whether
        results must be bitwise repeatable.
    layout : str
        Memory order the device computes in.

    Notes
    -----
    Source: cudnnConvolutionForward with CUDNN_CROSS_CORRELATION. Any spatial axis may see padding
    alone, and a piece may have no input row at all: padding is zeros, and they are multiplied.

    Examples
    --------
    >>> Convolution.of((1, 3, 32, 32), (8, 3, 3, 3), padding=1, stride=2).output_shape
    (1, 8, 16, 16)
    """

    x_shape: Shape
    w_shape: Shape
    padding: tuple[Pair, ...]
    stride: Shape
    dilation: Shape
    groups: int = 1
    dtype: str = "float32"
    y_dtype: str = ""
    allow_tf32: bool = True
    deterministic: bool = False
    layout: str = "channels_first"
    output_shape: Shape = field(init=False, compare=False, repr=False)

    name = "convolution_forward"

    def __post_init__(self) -> None:
        if not self.y_dtype:
            object.__setattr__(self, "y_dtype", self.dtype)
        shape = (self.x_shape[0], self.w_shape[0], *self.sites())
        object.__setattr__(self, "output_shape", shape)

    @classmethod
    def of(
        cls,
        x_shape: Shape,
        w_shape: Shape,
        *,
        padding: object = 0,
        stride: object = 1,
        dilation: object = 1,
        groups: int = 1,
        dtype: str = "float32",
        allow_tf32: bool = True,
        deterministic: bool = False,
    ) -> Convolution:
        """Check a user's arguments and return the convolution they describe.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, its value and the rule.
        """
        axes = len(x_shape) - 2
        if axes not in (1, 2, 3):
            raise ValueError(
                f"x must have shape (n, cX, 1 to 3 spatial axes), not {tuple(x_shape)}"
            )
        if len(w_shape) != len(x_shape):
            raise ValueError(
                f"w must have as many axes as x ({len(x_shape)}), not shape {tuple(w_shape)}"
            )
        pairs, strides, dilations, groups = convolution_geometry(
            axes, padding, stride, dilation, groups
        )
        c_x, c_y = x_shape[1], w_shape[0]
        if c_x % groups or c_y % groups:
            raise ValueError(f"groups must divide cX={c_x} and cY={c_y}, not {groups}")
        if w_shape[1] * groups != c_x:
            raise ValueError(
                f"w must have shape (cY, cX / groups, window...): cX / groups is {c_x} / {groups}, "
                f"but w has shape {tuple(w_shape)}"
            )
        reaches = tuple((k - 1) * d + 1 for k, d in zip(w_shape[2:], dilations, strict=True))
        check_padding(pairs, tuple(x_shape[2:]), reaches)
        convolution = cls(
            tuple(x_shape),
            tuple(w_shape),
            pairs,
            strides,
            dilations,
            groups,
            dtype,
            allow_tf32=allow_tf32,
            deterministic=deterministic,
        )
        return convolution.fitting(f"w of window {convolution.window} with dilation {dilations}")

    @property
    def window(self) -> Shape:  # type: ignore[override]
        """Its extents."""
        return self.w_shape[2:]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("w", self.w_shape),)

    # How it may be cut ------------------------------------------------------------------------

    @property
    def c_x_extent(self) -> int:
        """Input channels that one output channel sees: the axis cX, per group."""
        return self.w_shape[1]

    def c_y_ranges(self, size: int) -> Ranges:
        """Cut the output channels into pieces of `size`, none of which straddles a group."""
        return grouped_ranges(self.w_shape[0], self.w_shape[0] // self.groups, size)

    def places(self, cut: Ranges) -> int:
        """Number of regions of the other side's channels that pieces see: one a group."""
        return 1 if self.groups == 1 else cut.places

    def c_x_may_be_cut(self, c_y_size: int) -> bool:
        """True if cX can be cut beside pieces of `c_y_size`: not if one holds several groups."""
        return self.groups == 1 or c_y_size <= self.w_shape[0] // self.groups

    def input_channels(self, c_y: Range, c_x: Range) -> Range:
        """Channels of x that output channels `c_y` see through the range `c_x` of their group."""
        per_group = self.w_shape[0] // self.groups
        first, last = c_y[0] // per_group, (c_y[1] - 1) // per_group
        return first * self.c_x_extent + c_x[0], last * self.c_x_extent + c_x[1]

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> Convolution:
        return self.on_channels(n, (0, self.w_shape[0]), (0, self.c_x_extent), rows, "", row_axis)

    def on_channels(
        self,
        n: int,
        c_y: Range,
        c_x: Range,
        rows: Rows,
        layout: str = "",
        row_axis: int = ROW_AXIS,
    ) -> Convolution:
        """Return the convolution of one piece, cut along channels too."""
        channels = self.input_channels(c_y, c_x)
        per_group = self.w_shape[0] // self.groups
        x_shape = (n, channels[1] - channels[0], *self.x_shape[2:])
        return self.resized(
            replace_rows(x_shape, rows.stop - rows.start, row_axis),
            (c_y[1] - c_y[0], c_x[1] - c_x[0], *self.w_shape[2:]),
            replace_padding(self.padding, (rows.before, rows.after), row_axis),
            max(1, (c_y[1] - c_y[0]) // per_group),
            layout,
        )

    def resized(
        self,
        x_shape: Shape,
        w_shape: Shape,
        padding: tuple[Pair, ...],
        groups: int,
        layout: str = "",
        y_dtype: str = "",
    ) -> Convolution:
        """Return the convolution of other extents, with other padding.

        In `layout` and with results of `y_dtype`, where these are given. Planning asks for it of
        every piece it looks at; `dataclasses.replace` takes as long as all the rest.
        """
        return Convolution(
            x_shape, w_shape, padding, self.stride, self.dilation, groups,
            self.dtype, y_dtype or self.y_dtype, self.allow_tf32, self.deterministic,
            layout or self.layout,
        )  # fmt: skip

    # What it costs and what it computes ---------------------------------------------------------

    @property
    def precision(self) -> str:
        """Name of the arithmetic: the dtype, or "tf32" for float32 that may use it."""
        return "tf32" if self.dtype == "float32" and self.allow_tf32 else self.dtype

    def work(self) -> Work:
        """Flops by the paper's section 4.2, those of whole tiles, and the bytes of all operands."""
        return self.work_of(self.line(), self.y_dtype)

    def line(self, of: str = "") -> str:
        """Key of the line that predicts it, or what is made `of` it ("backward_data").

        cuDNN has engines of their own for depthwise windows: of other lines they were 3 to 140
        times as fast on an H200.
        """
        key = f"convolution/{self.precision}/{self.layout}"
        key = f"{key}/{of}" if of else key
        return f"{key}/depthwise" if self.is_depthwise else key

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is convolved by itself."""
        return self.groups > 1 and self.w_shape[1] == 1

    def work_of(
        self,
        key: str,
        y_dtype: str,
        more_bytes: float = 0.0,
        direction: Direction = "forward",
    ) -> Work:
        """The same for whatever reads and writes as much, and so many bytes more.

        Where columns are `unfolded`, the products are those of that, which is written and read.
        """
        item = DTYPES[self.dtype]
        narrow = None if direction == "backward_data" else self.unfolded
        computed, x_elements = self, math.prod(self.x_shape)
        if narrow is not None:
            computed, x_elements = narrow, x_elements + 2 * math.prod(narrow.x_shape)
        return convolution_work(
            key,
            n=self.x_shape[0],
            c_x=computed.x_shape[1],
            c_y=self.w_shape[0],
            output_sites=math.prod(self.output_shape[2:]),
            window_sites=math.prod(computed.window),
            window_extent=max(computed.window),
            groups=self.groups,
            x_bytes=x_elements * item,
            w_bytes=math.prod(self.w_shape) * item + more_bytes,
            y_bytes=math.prod(self.output_shape) * DTYPES[y_dtype],
            problem=self.problem,
            direction=direction,
        )

    @property
    def unfolded(self) -> Convolution | None:
        """The same convolution, of an image whose columns under a window are channels.

        Its x has the shape (n, wW * cX, ..., wY), with channels of zeros up to a multiple of 8, and
        its window one column. None where that is no faster for tensor cores: of half types,
        channels-last, an image of few channels is their multiple only so.
        """
        n, c_x, *outer, _ = self.x_shape
        c_y, _, *window, columns = self.w_shape
        is_apt = (
            DTYPES[self.dtype] == 2 and self.layout == "channels_last" and self.groups == 1
            and c_x < CHANNELS_OF_TENSOR_CORES and c_y % CHANNELS_OF_TENSOR_CORES == 0
            and columns > 1 and self.dilation[-1] == 1
        )  # fmt: skip
        if not is_apt or min(self.output_shape) < 1:
            return None
        channels = up_to_tensor_cores(columns * c_x)
        return replace(
            self,
            x_shape=(n, channels, *outer, self.output_shape[-1]),
            w_shape=(c_y, channels, *window, 1),
            padding=(*self.padding[:-1], (0, 0)),
            stride=(*self.stride[:-1], 1),
        )

    @property
    def is_even(self) -> bool:
        """True if padding is the same on both sides of each axis."""
        return all(before == after for before, after in self.padding)

    @property
    def problem(self) -> str:
        """Problem that it computes, whatever its extents."""
        geometry = in_words(self.window, self.stride, self.dilation)
        return f"{geometry}; {self.x_shape[1]} to {self.w_shape[0]} in {self.groups}"

    def taps(self) -> Iterator[tuple[Any, Any]]:
        """Every tap: its index into w, and the index of padded x that y's sites see through it.

        Both after an ellipsis.
        """
        sites = self.output_shape[2:]
        for tap in itertools.product(*(range(k) for k in self.window)):
            window = [
                slice(k * d, k * d + (o - 1) * s + 1, s)
                for k, d, s, o in zip(tap, self.dilation, self.stride, sites, strict=True)
            ]
            yield (..., *tap), (..., *window)

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        return self.reference(x, *(np.abs(p) for p in parameters))

    def reference(self, x: Array, *parameters: Array) -> Array:
        (w,) = parameters
        x, w = x.astype(np.float64), w.astype(np.float64)
        x = np.pad(x, ((0, 0), (0, 0), *self.padding))
        n, c_y = x.shape[0], w.shape[0]
        sites = self.output_shape[2:]
        if 0 in sites:
            return np.zeros((n, c_y, *sites))
        x = x.reshape(n, self.groups, -1, *x.shape[2:])
        w = w.reshape(self.groups, c_y // self.groups, *w.shape[1:])
        y = np.zeros((n, self.groups, c_y // self.groups, *sites))
        for tap, window in self.taps():
            y += np.einsum("ngc...,gkc->ngk...", x[window], w[tap])
        return y.reshape(n, c_y, *sites)
