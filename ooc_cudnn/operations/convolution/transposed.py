"""Transposed convolution: the data gradient of a convolution, used forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardData
from ooc_cudnn.operations.core.operation import Array, Parameter, PositionDependent, Shape
from ooc_cudnn.operations.core.ranges import Cycle, Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_padding, replace_rows
from ooc_cudnn.operations.core.window_arguments import convolution_geometry, per_axis
from perfmodel import Work


@dataclass(frozen=True)
class TransposedConvolution(PositionDependent):
    """y (n, cY, spatial...) from x (n, cX, spatial...) and w (cX, cY / groups, window...).

    Parameters
    ----------
    forward : Convolution
        From y to x. Of itself, this operation is `DataGradientCall(forward)`, which can be cut
        along channels too; of its gradients, that of x is `forward` on dy, that of w
        `FilterGradientCall(forward)` from (dy, x).

    Notes
    -----
    As torch.nn.ConvTranspose1d to 3d, with cuDNN's paddings of two sides.

    Examples
    --------
    >>> TransposedConvolution.of((1, 8, 16, 16), (8, 3, 2, 2), stride=2).output_shape
    (1, 3, 32, 32)
    """

    forward: Convolution

    name = "transposed_convolution_forward"

    @classmethod
    def of(
        cls,
        x_shape: Shape,
        w_shape: Shape,
        *,
        padding: object = 0,
        output_padding: object = 0,
        stride: object = 1,
        dilation: object = 1,
        groups: int = 1,
        dtype: str = "float32",
        allow_tf32: bool = True,
        deterministic: bool = False,
    ) -> TransposedConvolution:
        """Check a user's arguments and return the transposed convolution they describe.

        `output_padding` rows of y more, at the end, of those that the strides leave open.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, its value and the rule.
        """
        axes = len(x_shape) - 2
        if axes not in (1, 2, 3) or len(w_shape) != len(x_shape):
            raise ValueError(
                f"x must have shape (n, cX, 1 to 3 spatial axes) and w as many axes, not "
                f"{tuple(x_shape)} and {tuple(w_shape)}"
            )
        if w_shape[0] != x_shape[1]:
            raise ValueError(
                f"w must have shape (cX, cY / groups, window...): cX is {x_shape[1]}, but w has "
                f"shape {tuple(w_shape)}"
            )
        pairs, strides, dilations, groups = convolution_geometry(
            axes, padding, stride, dilation, groups
        )
        more = per_axis(output_padding, axes, name="output_padding", least=0)
        if any(extra >= step for extra, step in zip(more, strides, strict=True)):
            raise ValueError(
                f"output_padding must be smaller than the stride on every axis, not "
                f"{output_padding!r} with stride={stride!r}"
            )
        of = (x_shape[2:], strides, pairs, w_shape[2:], dilations, more)
        extents = tuple(
            (extent - 1) * step - sum(pair) + (size - 1) * apart + 1 + extra
            for extent, step, pair, size, apart, extra in zip(*of, strict=True)
        )
        if min(extents) < 1:
            raise ValueError(
                f"padding must leave at least 1 element on every axis: padding={padding!r} leaves "
                f"{extents}"
            )
        forward = Convolution.of(
            (x_shape[0], w_shape[1] * groups, *extents),
            tuple(w_shape),
            padding=pairs,
            stride=strides,
            dilation=dilations,
            groups=groups,
            dtype=dtype,
            allow_tf32=allow_tf32,
            deterministic=deterministic,
        )
        return cls(forward)

    @property
    def dtype(self) -> str:
        """Dtype of x, w and y."""
        return self.forward.dtype

    @property
    def input_shape(self) -> Shape:
        return self.forward.output_shape

    @property
    def output_shape(self) -> Shape:
        return self.forward.x_shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("w", self.forward.w_shape),)

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        """Rows of x that output rows are made of, and the padding of the convolution back."""
        count = self.input_shape[row_axis]
        needed = self.forward.window_rows(row_axis).contributing(rows, count)
        return needed if rows[0] < rows[1] else Rows(needed.start, needed.start, 0, 0)

    def on_rows(
        self, n: int, made: Range, needed: Rows, channels: int, row_axis: int = ROW_AXIS
    ) -> TransposedConvolution:
        forward = self.forward
        shape = replace_rows((n, *forward.x_shape[1:]), made[1] - made[0], row_axis)
        padding = replace_padding(forward.padding, (needed.before, needed.after), row_axis)
        return TransposedConvolution(
            forward.resized(shape, forward.w_shape, padding, forward.groups)
        )

    def launched(self, layout: str, result_dtype: str) -> ConvolutionBackwardData:
        """Operation that a device runs: y from (w, x)."""
        forward = self.forward
        part = forward.resized(
            forward.x_shape, forward.w_shape, forward.padding, forward.groups, layout
        )
        return ConvolutionBackwardData(part, result_dtype)

    def cycle(self, row_axis: int) -> Cycle:
        return Cycle(self.forward.window_rows(row_axis).stride, 1)

    def meets_border(self, made: Range, row_axis: int) -> bool:
        rows = self.input_rows(made, row_axis)
        return rows.start == 0 or rows.stop == self.input_shape[row_axis]

    def work(self) -> Work:
        """Work of the convolution back."""
        return self.launched("", self.dtype).work()

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        return self.reference(x, *(np.abs(p) for p in parameters))

    def reference(self, x: Array, *parameters: Array) -> Array:
        (w,) = parameters
        return self.launched("", self.dtype).reference(w, x)
