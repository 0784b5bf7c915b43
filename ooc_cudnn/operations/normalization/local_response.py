"""Local response normalization across channels: what is launched on a piece, and the calls."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Rounding, Tile
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.operation import Array, Parameter, Shape
from ooc_cudnn.operations.core.pointwise_call import PointwiseCall
from ooc_cudnn.operations.core.ranges import Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows
from ooc_cudnn.operations.core.single_op import ForwardTypedCall, OneTyped
from ooc_cudnn.operations.core.window_arguments import MOST_SIZE, is_int
from perfmodel import Work, pass_work

#: Of so many channels: wider sums are made anew for each of their channels. A lane of a warp has at
#: least one channel, and half of them must be left between both ends.
WIDEST_WINDOW = 17


@dataclass(frozen=True)
class LocalResponse(OneShape):
    """y = x / s ** beta with s = k + alpha / size * (sum of x ** 2), from (x,).

    The sum is over `size` channels around each: ``size // 2`` before it and ``(size - 1) // 2``
    behind, those that there are.

    Parameters
    ----------
    shape : tuple of int
    size : int
    alpha, beta, k : float

    Notes
    -----
    As torch.nn.LocalResponseNorm; for odd sizes cudnnLRNCrossChannelForward with lrnN = size and
    lrnAlpha = alpha. (AlexNet's paper multiplies the sum by alpha alone: its alpha is ours / size.)
    """

    shape: Shape
    size: int
    alpha: float
    beta: float
    k: float
    dtype: str

    name = "local_response_normalization_forward"

    @classmethod
    def of(
        cls, shape: Shape, size: int, alpha: float, beta: float, k: float, dtype: str
    ) -> LocalResponse:
        """Check a user's arguments and return the normalization they describe.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, its value and the rule.
        """
        if not is_int(size):
            raise TypeError(f"size must be an int, not {size!r}")
        if not 1 <= size <= MOST_SIZE:
            raise ValueError(f"size must be at least 1, not {size!r}")
        for name, value in (("alpha", alpha), ("beta", beta), ("k", k)):
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(f"{name} must be a number, not {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, not {value!r}")
        return cls(tuple(shape), int(size), float(alpha), float(beta), float(k), dtype)

    # As an operation of a chain -----------------------------------------------------------------

    @property
    def input_shape(self) -> Shape:
        return self.shape

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        return Rows(*rows, 0, 0)

    def on_piece(
        self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS
    ) -> LocalResponse:
        shape = replace_rows((n, channels, *self.shape[2:]), rows.stop - rows.start, row_axis)
        return replace(self, shape=shape)

    # What it costs and what it computes ---------------------------------------------------------

    @property
    def before(self) -> int:
        """Channels before one that are in its sum."""
        return self.size // 2

    @property
    def behind(self) -> int:
        """Channels behind one that are in its sum."""
        return (self.size - 1) // 2

    def work(self) -> Work:
        """One read and one write, and a power."""
        return self.work_of(2, powers=1)

    def work_of(self, count: int, powers: int) -> Work:
        """Count the reads and writes of the tensor, and powers of sums an element."""
        whole = self.passes("", count)
        elements = math.prod(self.shape)
        return pass_work(
            f"pointwise/{self.dtype}",
            device_bytes=whole.device_bytes,
            elements=elements,
            taps=elements * powers * min(self.size, self.shape[1]),
            exponentials=2 * elements * powers,
            problem=f"local response of {self.size}",
        )

    def sums(self, x: Array) -> Array:
        """S of every channel, in the type of x."""
        squares = x * x
        total = np.zeros_like(squares)
        count = x.shape[1]
        for offset in range(-self.before, self.behind + 1):
            low, high = max(0, -offset), min(count, count - offset)
            if low < high:
                total[:, low:high] += squares[:, low + offset : high + offset]
        total *= x.dtype.type(self.alpha / self.size)
        total += x.dtype.type(self.k)
        return total

    def made(self, x: Array) -> Array:
        """y, in the type of x."""
        return np.asarray(x * self.sums(x) ** x.dtype.type(-self.beta))

    def reference(self, x: Array, *parameters: Array) -> Array:
        return self.made(x.astype(np.float64))

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        """A relative error of s is one of y, beta times."""
        return np.asarray(np.abs(self.reference(x)) * (1 + abs(self.beta)))


@dataclass(frozen=True)
class LocalResponseBackward:
    """dx from (x, dy).

    dx = dy / s ** beta - 2 alpha beta / size * x * (sum of dy x / s ** (beta + 1)),

    the sum over all channels that have this one in their own sum.
    """

    forward: LocalResponse

    name = "local_response_normalization_backward"

    @property
    def dtype(self) -> str:
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return self.forward.shape

    def work(self) -> Work:
        """Two reads and one write; a power, or one for each channel in a wide window."""
        forward = self.forward
        narrow = min(forward.size, forward.shape[1]) <= WIDEST_WINDOW
        return forward.work_of(3, powers=1 if narrow else 1 + forward.size)

    def terms(self, x: Array, dy: Array) -> tuple[Array, Array]:
        """The two that dx is the difference of, in the type of x."""
        forward, count, real = self.forward, x.shape[1], x.dtype.type
        sums = forward.sums(x)
        powers = sums ** real(-forward.beta)
        shares = dy * x * powers / sums
        total = np.zeros_like(shares)
        for offset in range(-forward.behind, forward.before + 1):
            low, high = max(0, -offset), min(count, count - offset)
            if low < high:
                total[:, low:high] += shares[:, low + offset : high + offset]
        total *= x
        total *= real(2 * forward.alpha * forward.beta / forward.size)
        return dy * powers, total

    def reference(self, *inputs: Array) -> Array:
        x, dy = (array.astype(np.float64) for array in inputs)
        own, others = self.terms(x, dy)
        return np.asarray(own - others)


@dataclass(frozen=True)
class LocalResponseCall(ForwardTypedCall, PointwiseCall):
    """y from x: cut along n and rows; all channels of a site stay together."""

    forward: LocalResponse

    takes = ("x",)

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Shape of x and y."""
        return self.forward.shape

    def may_cut(self, axis: str) -> bool:
        return axis in ("n", "h_y") and super().may_cut(axis)

    def _piece(self, piece: Piece, dtype: str) -> LocalResponse:
        return replace(self.forward, shape=self.piece_shape(piece), dtype=dtype)

    def on_tile(self, tile: Tile) -> Self:
        return replace(self, forward=replace(self.forward, shape=tile.shape))

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return self._piece(piece, result_dtype)

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        return value, operation.magnitude(*inputs)  # type: ignore[attr-defined]

    def rounding(self) -> Rounding:
        """A sum of squares, and a power of it."""
        return Rounding(min(self.forward.size, self.shape[1]) + 8, self.dtype, 4)


@dataclass(frozen=True)
class LocalResponseGradientCall(LocalResponseCall):
    """dx from x and dy."""

    lead = "dy"
    takes = ("x", "dy")  # type: ignore[assignment]
    results = ("dx",)

    @property
    def may_be_in_place(self) -> bool:  # type: ignore[override]
        """True where all of dy at a site is read before it is written."""
        return self.forward.size <= WIDEST_WINDOW

    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        return LocalResponseBackward(self._piece(piece, result_dtype))

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """Both terms, without cancellation."""
        x, dy = (np.abs(array.astype(np.float64)) for array in inputs)
        own, others = operation.terms(x, dy)  # type: ignore[attr-defined]
        value = operation.reference(*inputs)  # type: ignore[attr-defined]
        return value, (own + np.abs(others)) * (1 + abs(self.forward.beta))
