"""Convolutions, linear layers, poolings."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ooc_cudnn.torch.lowering.block_windows import per_axis
from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)

R = TypeVar("R", bound=Callable[..., Any])


def _of_batches(*names: str) -> Callable[[R], R]:
    """Enter a rule for operations over as many spatial axes as their names say, of a batch.

    PyTorch takes a single image, too, (c, spatial...): it has the axes of a batch over fewer.
    """

    def entered(function: R) -> R:
        for name in names:
            axes = int(re.findall(r"(\d)d", name)[0])

            @functools.wraps(function)
            def of_batch(to: GraphLowering, *, axes: int = axes, **arguments: Any) -> Any:
                x = arguments.get("input", arguments.get("self"))
                if isinstance(x, LoweredValue) and len(x.axes) != axes + 2:
                    raise UnsupportedPatternError(
                        f"of {x.shape}, which is an image without a batch"
                    )
                return function(to, **arguments)

            rule(name)(of_batch)
        return function

    return entered


@_of_batches("conv1d", "conv2d", "conv3d")
def convolution(
    to: GraphLowering,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> LoweredValue:
    x = to.plain(input, least=3)
    w = to.parameter(weight)
    axes = len(w.shape) - 2
    dilations = per_axis(dilation, axes)
    around: Any
    if isinstance(padding, str):
        around = tuple(
            _same(size, step) if padding == "same" else (0, 0)
            for size, step in zip(w.shape[2:], dilations, strict=True)
        )
    else:
        around = per_axis(padding, axes)
    b = to.optional(bias)
    return LoweredValue.of(
        to.net.convolution(
            x,
            w.shape[0],
            window=w.shape[2:],
            stride=per_axis(stride, axes),
            padding=around,
            dilation=dilations,
            groups=groups,
            w=w,
            b=b,
            bias=b is not None,
            name=to.name(),
        )
    )


def _same(size: int, dilation: int) -> tuple[int, int]:
    """PyTorch's padding "same": what is odd goes behind."""
    both = dilation * (size - 1)
    return both // 2, both - both // 2


@_of_batches("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(
    to: GraphLowering,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> LoweredValue:
    x, w, b = to.plain(input, least=3), to.parameter(weight), to.optional(bias)
    axes = len(w.shape) - 2
    return LoweredValue.of(
        to.net.transposed_convolution(
            x,
            w.shape[1] * groups,
            window=w.shape[2:],
            stride=per_axis(stride, axes),
            padding=per_axis(padding, axes),
            output_padding=per_axis(output_padding, axes),
            dilation=per_axis(dilation, axes),
            groups=groups,
            w=w,
            b=b,
            bias=b is not None,
            name=to.name(),
        )
    )


@rule("linear")
def linear(to: GraphLowering, input: Any, weight: Any, bias: Any) -> LoweredValue:
    if not isinstance(input, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    x, b = input.tensor, to.optional(bias)
    features, last = weight.shape[0], input.axes[-1]
    if last != 1:
        raise UnsupportedPatternError("its last axis is not that of channels")
    if len(x.shape) == 2:
        y = to.net.linear(
            x, features, w=to.parameter(weight), b=b, bias=b is not None, name=to.name()
        )
        return LoweredValue(y, input.axes)
    ones = (1,) * (len(x.shape) - 2)
    w = to.parameter(weight, (*weight.shape, *ones))
    y = to.net.convolution(x, features, window=ones, w=w, b=b, bias=b is not None, name=to.name())
    return LoweredValue(y, input.axes)


@_of_batches("max_pool1d", "max_pool2d", "max_pool3d")
def max_pooling(
    to: GraphLowering,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> LoweredValue:
    x = to.plain(self, least=3)
    axes = len(x.shape) - 2
    if set(per_axis(dilation, axes)) != {1}:
        raise UnsupportedPatternError(f"dilation {dilation} of a pooling")
    window = per_axis(kernel_size, axes)
    return LoweredValue.of(
        to.net.pooling(
            x,
            window=window,
            stride=per_axis(stride, axes) if stride else window,
            padding=per_axis(padding, axes),
            ceil_mode=ceil_mode,
            name=to.name(),
        )
    )


@_of_batches("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pooling_alone(to: GraphLowering, **arguments: Any) -> tuple[LoweredValue | None, ...]:
    return max_pooling(to, **arguments), None


@_of_batches("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pooling(
    to: GraphLowering,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> LoweredValue:
    x = to.plain(self, least=3)
    axes = len(x.shape) - 2
    if divisor_override is not None:
        raise UnsupportedPatternError("divisor_override")
    window = per_axis(kernel_size, axes)
    return LoweredValue.of(
        to.net.pooling(
            x,
            window=window,
            mode=f"average_{'include' if count_include_pad else 'exclude'}_padding",
            stride=per_axis(stride, axes) if stride else window,
            padding=per_axis(padding, axes),
            ceil_mode=ceil_mode,
            name=to.name(),
        )
    )


@_of_batches("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average(to: GraphLowering, self: Any, output_size: Sequence[int]) -> LoweredValue:
    x = to.plain(self, least=3)
    size = per_axis(output_size, len(x.shape) - 2)
    if math.prod(size) == 1:
        return LoweredValue.of(to.net.global_average(x, name=to.name()))
    return LoweredValue.of(to.net.adaptive_pooling(x, size, name=to.name()))


@_of_batches("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max(
    to: GraphLowering, self: Any, output_size: Sequence[int]
) -> tuple[LoweredValue | None, ...]:
    x = to.plain(self, least=3)
    size = per_axis(output_size, len(x.shape) - 2)
    if math.prod(size) == 1:
        return LoweredValue.of(to.net.global_max(x, name=to.name())), None
    return LoweredValue.of(to.net.adaptive_pooling(x, size, mode="max", name=to.name())), None


@rule("mean")
def mean(
    to: GraphLowering,
    self: Any,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> LoweredValue:
    if not isinstance(self, LoweredValue) or dim is None:
        raise UnsupportedPatternError("a mean over all axes")
    if dtype is not None:
        self = to.cast(self, str(dtype).removeprefix("torch."))
    axes, count = {self.axes[each] for each in dim}, len(self.tensor.shape)
    y, positions = self.tensor, set(range(2, count))
    if axes not in (positions, {1}, positions | {1}) or not axes:
        raise UnsupportedPatternError(
            f"a mean over axes {list(dim)} of {self.shape}: over channels or positions there is one"
        )
    if 1 in axes and not keepdim:
        raise UnsupportedPatternError("a mean over channels that leaves no axis of them")
    if positions and positions <= axes:
        y = to.net.global_average(y, name=to.name("mean"))
    if 1 in axes:
        y = to.net.channel_mean(y, name=to.name("mean"))
    if keepdim:
        return LoweredValue(y, self.axes)
    flat = to.net.flatten(y, name=to.name("mean"))
    return LoweredValue(flat, tuple(axis for axis in self.axes if axis < 2))
