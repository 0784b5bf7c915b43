"""Checks of users' arguments of interpolation, adaptive pooling, padding and cropping."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.ranges import Pair
from ooc_cudnn.operations.core.window_arguments import MOST_SIZE, per_axis, signed_pairs
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall
from ooc_cudnn.operations.resampling.axis_windows import AxisWindows, Linear, Nearest, Windows
from ooc_cudnn.operations.resampling.forward import Resampling
from ooc_cudnn.operations.resampling.gradient import ResamplingGradientCall

#: Denominator of a scale, at most: then places in tensors of 2**31 elements are 64-bit integers,
#: and no scale is further from what was given than float64 rounds.
FINEST = 2**28
#: Outputs of which PyTorch's places are compared with fractions.
MOST_COMPARED = 2**20
INTERPOLATIONS = ("nearest", "linear")
ADAPTIVE = ("average", "max")


def spatial_axes(x_shape: Shape) -> int:
    """Number of spatial axes of x: one to three.

    Raises
    ------
    ValueError
        If it is another number.
    """
    axes = len(x_shape) - 2
    if axes not in (1, 2, 3):
        raise ValueError(f"x must have shape (n, c, 1 to 3 spatial axes), not {tuple(x_shape)}")
    return axes


def interpolation(
    x_shape: Shape,
    *,
    size: Any = None,
    scale_factor: Any = None,
    mode: object = "nearest",
    align_corners: bool = False,
    recompute_scale_factor: bool = False,
    dtype: str = "float32",
) -> Resampling:
    """Describe the interpolation of x to a size, or by a factor, on every spatial axis.

    Parameters
    ----------
    size, scale_factor : one for all spatial axes, or one each
        One of the two. A factor gives ``floor(extent * factor)`` elements, and is used as it is in
        the arithmetic of places, unless `recompute_scale_factor`: then the sizes tell it.
    mode : str
        nearest or linear: on two axes bilinear, on three trilinear.
    align_corners : bool
        Linear alone: whether the centres of the corner elements meet, or the corners themselves.

    Notes
    -----
    As torch.nn.functional.interpolate; where a linear one does not change an axis, that is copied.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    axes = spatial_axes(x_shape)
    if not isinstance(mode, str) or mode not in INTERPOLATIONS:
        raise ValueError(f"mode must be one of {', '.join(INTERPOLATIONS)}, not {mode!r}")
    if align_corners and mode == "nearest":
        raise ValueError("align_corners has no meaning for mode 'nearest'; leave it out")
    if (size is None) == (scale_factor is None):
        raise ValueError("one of size and scale_factor must be given, and not both")
    if recompute_scale_factor and scale_factor is None:
        raise ValueError("recompute_scale_factor needs scale_factor")
    extents = x_shape[2:]
    factors: tuple[float | None, ...] = (None,) * axes
    if size is not None:
        sizes = per_axis(size, axes, name="size", least=1)
    else:
        user_factors = _factors(scale_factor, axes)
        sizes = tuple(math.floor(e * f) for e, f in zip(extents, user_factors, strict=True))
        if min(sizes) < 1 or max(sizes) > MOST_SIZE:
            raise ValueError(
                f"scale_factor must leave 1 to {MOST_SIZE} elements on every axis: "
                f"scale_factor={scale_factor!r} makes {sizes} of {extents}"
            )
        if not recompute_scale_factor:
            factors = user_factors
    scales = tuple(
        Fraction(extent, count) if factor is None else 1 / Fraction(factor)
        for extent, count, factor in zip(extents, sizes, factors, strict=True)
    )
    windows: tuple[AxisWindows, ...]
    if mode == "linear":
        corners = (align_corners,) * axes
        windows = tuple(map(_linear, extents, sizes, scales, corners))
    else:
        windows = tuple(map(Nearest, extents, sizes, map(float, scales)))
        exact = tuple(map(_nearest, extents, sizes, scales))
        if all(map(_same, windows, exact)):
            windows = exact
    return Resampling(tuple(x_shape[:2]), windows, dtype)


def _nearest(extent: int, count: int, scale: Fraction) -> Windows:
    """The places of a scale as fractions: of most scales PyTorch's rounding comes to the same."""
    scale = scale.limit_denominator(FINEST)
    return Windows(extent, count, scale.numerator, scale.denominator)


def _same(one: AxisWindows, other: Windows) -> bool:
    """True if all outputs have the same runs; False if there are too many to compare."""
    if one.count > MOST_COMPARED or other.unclipped != (0, other.count):
        return False
    outputs = np.arange(one.count)
    return np.array_equal(one.bounds(outputs), other.bounds(outputs))


def _linear(extent: int, count: int, scale: Fraction, align_corners: bool) -> Linear:
    if extent == count:
        return Linear(extent, count, 1, 1, 0)
    if align_corners:
        scale = Fraction(extent - 1, max(count - 1, 1)) if count > 1 else Fraction(0)
    scale = scale.limit_denominator(FINEST)
    return Linear(extent, count, scale.numerator, scale.denominator, int(not align_corners))


def _factors(value: object, axes: int) -> tuple[float, ...]:
    every = (value,) * axes if isinstance(value, numbers.Real) else value
    if (
        not isinstance(every, Sequence)
        or len(every) != axes
        or not all(isinstance(f, numbers.Real) and 0 < float(f) < math.inf for f in every)
    ):
        raise ValueError(
            f"scale_factor must be a positive number or one per spatial axis ({axes}), "
            f"not {value!r}"
        )
    return tuple(float(factor) for factor in every)


def any_pooling(
    x_shape: Shape,
    *,
    window: Any,
    mode: object = "max",
    padding: Any = 0,
    stride: Any = None,
    ceil_mode: bool = False,
    dtype: str = "float32",
) -> Pooling | Resampling:
    """Describe a pooling, as `Pooling.of`; with `ceil_mode` one window more where x goes on.

    That window must begin in x or in the padding before it: PyTorch's rule. A mean that counts
    padding counts none beyond what was given.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    pooling = Pooling.of(
        x_shape, window=window, mode=mode, padding=padding, stride=stride, dtype=dtype
    )
    if not ceil_mode:
        return pooling
    windows, pairs = [], []
    of = (x_shape[2:], pooling.window, pooling.stride, pooling.padding)
    for extent, size, step, (before, after) in zip(*of, strict=True):
        count = -(-(extent + before + after - size) // step) + 1
        if (count - 1) * step >= extent + before:
            count -= 1
        windows.append(Windows(extent, count, step, reach=size, before=before, after=after))
        pairs.append((before, max(after, (count - 1) * step + size - before - extent)))
    if pooling.mode == "average_include_padding" and tuple(pairs) != pooling.padding:
        return Resampling(tuple(x_shape[:2]), tuple(windows), dtype, title="pooling")
    return replace(pooling, padding=tuple(pairs))


def adaptive_pooling(
    x_shape: Shape, output: Any, *, mode: object = "average", dtype: str = "float32"
) -> Pooling | Resampling:
    """Describe a pooling to a given output: windows from floor(o I / O) to ceil((o + 1) I / O).

    Where the output divides x, that is a pooling.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    axes = spatial_axes(x_shape)
    if not isinstance(mode, str) or mode not in ADAPTIVE:
        raise ValueError(f"mode must be one of {', '.join(ADAPTIVE)}, not {mode!r}")
    extents, sizes = x_shape[2:], per_axis(output, axes, name="output", least=1)
    if all(extent % count == 0 for extent, count in zip(extents, sizes, strict=True)):
        window = tuple(extent // count for extent, count in zip(extents, sizes, strict=True))
        plain = "max" if mode == "max" else "average_include_padding"
        return Pooling(tuple(x_shape), window, window, ((0, 0),) * axes, plain, dtype)
    windows = tuple(
        Windows(extent, count, step=extent, per=count, reach=extent)
        for extent, count in zip(extents, sizes, strict=True)
    )
    lead = tuple(x_shape[:2])
    return Resampling(lead, windows, dtype, is_max=mode == "max", title="adaptive_pooling")


def pooling_gradient(
    forward: Pooling | Resampling, *, alpha: float = 1.0, beta: float = 0.0
) -> PoolingGradientCall | ResamplingGradientCall:
    """The call that makes the gradient of any of these."""
    if isinstance(forward, Resampling):
        return ResamplingGradientCall(forward, alpha=alpha, beta=beta)
    return PoolingGradientCall(forward, alpha=alpha, beta=beta)


def describe_padding(
    x_shape: Shape, padding: Any, *, value: float = 0.0, dtype: str = "float32"
) -> Resampling:
    """Describe x with so many elements of `value` around it; where negative, with fewer.

    `padding` is an int, one per spatial axis, or a (before, after) pair per axis.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    axes = spatial_axes(x_shape)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"value must be a number, not {value!r}")
    windows = tuple(
        _around(extent, pair)
        for extent, pair in zip(x_shape[2:], signed_pairs(padding, axes), strict=True)
    )
    return Resampling(tuple(x_shape[:2]), windows, dtype, value=float(value), title="pad")


def _around(extent: int, pair: Pair) -> Windows:
    before, after = pair
    count = extent + before + after
    if count < 1:
        raise ValueError(f"padding {pair} leaves {count} of {extent} elements: at least 1 must be")
    return Windows(extent, count, step=1, before=before, after=max(after, 0))


def zeros_around(operation: Pooling | Resampling) -> tuple[Pair, ...] | None:
    """Return the zeros an operation puts around x on each axis; None if it does anything else."""
    if not isinstance(operation, Resampling) or operation.value or operation.is_max:
        return None
    pairs = []
    for windows in operation.windows:
        if not isinstance(windows, Windows) or windows.before < 0:
            return None
        pairs.append((windows.before, windows.after))
        if windows != _around(windows.extent, pairs[-1]):
            return None
    return tuple(pairs)


def describe_crop(x_shape: Shape, start: Any, size: Any, *, dtype: str = "float32") -> Resampling:
    """Describe the part of x of `size` that begins at `start`, on every spatial axis.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """
    axes = spatial_axes(x_shape)
    starts = per_axis(start, axes, name="start", least=0)
    sizes = per_axis(size, axes, name="size", least=1)
    if any(a + b > e for a, b, e in zip(starts, sizes, x_shape[2:], strict=True)):
        raise ValueError(f"start {starts} and size {sizes} reach beyond x of {x_shape[2:]}")
    pairs = tuple((-a, a + b - e) for a, b, e in zip(starts, sizes, x_shape[2:], strict=True))
    return describe_padding(x_shape, pairs, dtype=dtype)
