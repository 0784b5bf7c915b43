"""Pooling: the largest or the mean value of each window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.ranges import Pair, Rows, in_words, valid_indices
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, Windowed, replace_padding, replace_rows
from ooc_cudnn.operations.core.window_arguments import padding_pairs, per_axis
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work

#: "max_deterministic" computes what "max" does: both are deterministic here.
MODES = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")


@dataclass(frozen=True)
class Pooling(Windowed):
    """Pool x (n, c, spatial...) over windows.

    Parameters
    ----------
    x_shape : tuple of int
    window, stride : tuple of int, one per spatial axis
    padding : tuple of (before, after) pairs, one per spatial axis
        Smaller than the window. Padding is never a maximum. `average_include_padding` divides by
        the whole window, `average_exclude_padding` by the elements of x in it. (In a piece of a
        backward pass they may be negative: the first window starts inside.)
    mode : str
        One of `MODES`.

    Notes
    -----
    Source: cudnnPoolingForward. NaN in a window gives NaN (CUDNN_PROPAGATE_NAN). Averages are
    summed in the arithmetic type (float32 for half types).

    Examples
    --------
    >>> Pooling.of((1, 3, 32, 32), window=3, stride=2, padding=1).output_shape
    (1, 3, 16, 16)
    """

    x_shape: Shape
    window: Shape
    stride: Shape
    padding: tuple[Pair, ...]
    mode: str = "max"
    dtype: str = "float32"
    output_shape: Shape = field(init=False, compare=False, repr=False)

    name = "pooling_forward"
    any_strides = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_shape", (*self.x_shape[:2], *self.sites()))

    @classmethod
    def of(
        cls,
        x_shape: Shape,
        *,
        window: object,
        mode: object = "max",
        padding: object = 0,
        stride: object = None,
        dtype: str = "float32",
        prefix: str = "",
    ) -> Pooling:
        """Check a user's arguments and return the pooling they describe; stride None is window.

        `prefix` is what the user's names of padding and stride begin with.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, its value and the rule.
        """
        axes = len(x_shape) - 2
        if axes not in (1, 2, 3):
            raise ValueError(f"x must have shape (n, c, 1 to 3 spatial axes), not {tuple(x_shape)}")
        if not isinstance(mode, str) or mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        sizes = per_axis(window, axes, name="window", least=1)
        pairs = padding_pairs(padding, axes, name=f"{prefix}padding")
        for size, pair in zip(sizes, pairs, strict=True):
            if max(pair) >= size:
                raise ValueError(
                    f"{prefix}padding must be smaller than the window on every axis, so that each "
                    f"window sees x; {prefix}padding={padding!r} with window={window!r}"
                )
        strides = sizes
        if stride is not None:
            strides = per_axis(stride, axes, name=f"{prefix}stride", least=1)
        pooling = cls(tuple(x_shape), sizes, strides, pairs, mode, dtype)
        return pooling.fitting(f"window {sizes}")

    @property
    def dilation(self) -> Shape:  # type: ignore[override]
        """None."""
        return (1,) * len(self.window)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    @property
    def is_max(self) -> bool:
        """True if the largest value is taken, and not the mean."""
        return self.mode.startswith("max")

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> Pooling:
        shape = replace_rows((n, channels, *self.x_shape[2:]), rows.stop - rows.start, row_axis)
        padding = replace_padding(self.padding, (rows.before, rows.after), row_axis)
        return Pooling(shape, self.window, self.stride, padding, self.mode, self.dtype)

    def work(self) -> Work:
        """Read x, write y."""
        return self.work_of("pooling", math.prod(self.x_shape) + math.prod(self.output_shape))

    def work_of(self, kind: str, elements: int) -> Work:
        """Work of so many elements read and written; each value of y looks at a window."""
        return pass_work(
            f"pointwise/{self.dtype}/{kind}",
            device_bytes=elements * DTYPES[self.dtype],
            elements=elements,
            taps=math.prod(self.output_shape) * math.prod(self.window),
            problem=self.problem,
        )

    @property
    def problem(self) -> str:
        """Problem that it computes, whatever its extents."""
        return f"{self.mode}, {in_words(self.window, self.stride)}"

    def taps(self) -> Iterator[tuple[Any, Any]]:
        """Every tap of the window: (slices of y, slices of x) of the windows whose tap is on x."""
        for tap in itertools.product(*(range(k) for k in self.window)):
            offsets = (at - before for at, (before, _) in zip(tap, self.padding, strict=True))
            yield valid_indices(offsets, self.stride, self.x_shape[2:], self.output_shape[2:])

    def divisors(self) -> Array:
        """Divisors of each window's sum for the mean, of the spatial shape of y."""
        sites = self.output_shape[2:]
        if self.mode == "average_include_padding":
            return np.full(sites, float(math.prod(self.window)))
        count = np.zeros(sites)
        for outputs, _ in self.taps():
            count[outputs[1:]] += 1
        return count

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        return self.reference(x)

    def reference(self, x: Array, *parameters: Array) -> Array:
        x = x.astype(np.float64)
        y = np.full(self.output_shape, -np.inf if self.is_max else 0.0)
        for outputs, inputs in self.taps():
            y[outputs] = np.maximum(y[outputs], x[inputs]) if self.is_max else (
                y[outputs] + x[inputs]
            )  # fmt: skip
        return y if self.is_max else y / self.divisors()
