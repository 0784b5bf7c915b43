"""Sums or maxima of runs of neighbours: interpolation, adaptive pooling, padding.

`axis_windows` says which runs; here is what is launched on a piece, and how it is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.operation import Array, Parameter, PositionDependent, Shape
from ooc_cudnn.operations.core.ranges import Cycle, Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows
from ooc_cudnn.operations.resampling.axis_windows import (
    AxisWindows,
    cycles,
    is_clipped,
    runs,
    seen_range,
    shift_range,
)
from ooc_cudnn.tensor import DTYPES
from perfmodel import Work, pass_work

Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class Resampling(PositionDependent):
    """y from (x,): sums, or the largest, of runs of neighbours along every spatial axis.

    Parameters
    ----------
    lead : (n, c)
    windows : tuple of AxisWindows, one per spatial axis
        Of the whole tensors.
    dtype : str
    is_max : bool
        Whether the largest of the runs is taken (NaN if there is one) and not their weighted sum.
    value : float
        What y is where a run is empty.
    makes, reads : tuple of (start, stop)
        The part of y that is made, and the part of x that is at hand; all of it when left out.
    title : str
        What it is called: the function that it is part of.
    """

    lead: Shape
    windows: tuple[AxisWindows, ...]
    dtype: str = "float32"
    is_max: bool = False
    value: float = 0.0
    makes: Ranges = ()
    reads: Ranges = ()
    title: str = "interpolation"
    input_shape: Shape = field(init=False, compare=False, repr=False)
    output_shape: Shape = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, whole in (("makes", "count"), ("reads", "extent")):
            if not getattr(self, name):
                object.__setattr__(self, name, tuple((0, getattr(w, whole)) for w in self.windows))
        for name, part in (("output_shape", self.makes), ("input_shape", self.reads)):
            sizes = (stop - start for start, stop in part)
            object.__setattr__(self, name, (*self.lead, *sizes))

    @property
    def name(self) -> str:
        """Name of the operation."""
        return f"{self.title}_forward"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    def input_rows(self, rows: Range, row_axis: int = ROW_AXIS) -> Rows:
        at = row_axis - ROW_AXIS
        start, stop = seen_range(self.windows[at], shift_range(rows, self.makes[at][0]))
        return Rows(*shift_range((start, stop), -self.reads[at][0]), 0, 0)

    def cycle(self, row_axis: int) -> Cycle:
        return self.windows[row_axis - ROW_AXIS].cycle or Cycle(1, 1)

    def phase(self, made: Range, row_axis: int) -> int:
        at = row_axis - ROW_AXIS
        made = shift_range(made, self.makes[at][0])
        return made[0] - cycles(self.windows[at], made) * self.cycle(row_axis).outputs

    def meets_border(self, made: Range, row_axis: int) -> bool:
        at = row_axis - ROW_AXIS
        return is_clipped(self.windows[at], shift_range(made, self.makes[at][0]))

    def on_rows(
        self, n: int, made: Range, needed: Rows, channels: int, row_axis: int = ROW_AXIS
    ) -> Resampling:
        """Return the first of the pieces that look at x in the same way: they launch the same."""
        axis, (outputs, elements) = row_axis - ROW_AXIS, self.cycle(row_axis)
        made = shift_range(made, self.makes[axis][0])
        read = shift_range((needed.start, needed.stop), self.reads[axis][0])
        up = cycles(self.windows[axis], made)
        makes = replace_rows(self.makes, shift_range(made, -up * outputs), axis)
        reads = replace_rows(self.reads, shift_range(read, -up * elements), axis)
        return self.part((n, channels), makes, reads)

    def part(self, lead: Shape, makes: Ranges, reads: Ranges) -> Resampling:
        """The same of other images, channels and parts."""
        return Resampling(
            lead, self.windows, self.dtype, self.is_max, self.value, makes, reads, self.title
        )

    def work(self) -> Work:
        """Read x, write y."""
        return self.work_of("pooling", math.prod(self.input_shape) + math.prod(self.output_shape))

    def work_of(self, kind: str, elements: int) -> Work:
        """Work of so many elements read and written; each value of y looks at a run."""
        return pass_work(
            f"pointwise/{self.dtype}/{kind}",
            device_bytes=elements * DTYPES[self.dtype],
            elements=elements,
            taps=math.prod(self.output_shape) * self.run_elements,
            problem=self.problem,
        )

    @property
    def run_elements(self) -> int:
        """Elements of x that a value of y is made of, at most."""
        return math.prod(windows.longest for windows in self.windows)

    @property
    def problem(self) -> str:
        """Problem that it computes, whatever its extents."""
        return f"{self.title}, runs of up to {self.run_elements}"

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        return np.abs(self.reference(x))

    def reference(self, x: Array, *parameters: Array) -> Array:
        """Axis after axis; an empty run of any makes `value`."""
        x = x.astype(np.float64)
        empty = np.zeros(self.output_shape[2:], bool)
        for axis, (windows, target, read) in enumerate(
            zip(self.windows, self.makes, self.reads, strict=True)
        ):
            taps = runs(windows, target, gradient=False)
            x = np.moveaxis(x, 2 + axis, 0)
            rows = np.split(taps.weights, np.cumsum(taps.stops - taps.starts)[:-1])
            y = np.full((len(taps.starts), *x.shape[1:]), -np.inf if self.is_max else 0.0)
            for o in range(len(y)):  # of no rows, the weights are split into one part still
                weights, part = rows[o], x[taps.starts[o] - read[0] : taps.stops[o] - read[0]]
                if len(part):
                    y[o] = part.max(0) if self.is_max else np.tensordot(weights, part, 1)
            x = np.moveaxis(y, 0, 2 + axis)
            shape = [-1 if at == axis else 1 for at in range(len(self.windows))]
            empty |= (taps.starts == taps.stops).reshape(shape)
        return np.where(empty, self.value, x)


@dataclass(frozen=True)
class ResamplingBackward:
    """dx from (y, dy, x), or of sums from (dy,), for one piece.

    Gathered: each element of dx looks at the outputs that see it, so it is the same every time.

    Parameters
    ----------
    forward : Resampling
        Its `makes` is the part of y and dy that is at hand, its `reads` that of x.
    makes : tuple of (start, stop)
        The part of dx, on each spatial axis.
    """

    forward: Resampling
    makes: Ranges

    @property
    def name(self) -> str:
        """Name of the operation."""
        return f"{self.forward.title}_backward"

    @property
    def dtype(self) -> str:
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return (*self.forward.lead, *(stop - start for start, stop in self.makes))

    def work(self) -> Work:
        """Read y, dy and x, write dx."""
        forward = self.forward
        elements = math.prod(self.output_shape) + math.prod(forward.output_shape)
        if forward.is_max:
            elements += math.prod(forward.input_shape) + math.prod(forward.output_shape)
        return forward.work_of("pooling_backward", elements)

    def gathered(self, dx: Array) -> Array:
        """The part that is made, of a dx of all of x that is at hand."""
        parts = zip(self.makes, self.forward.reads, strict=True)
        inside: tuple[Any, ...] = tuple(slice(a - r[0], b - r[0]) for (a, b), r in parts)
        return dx[(..., *inside)]

    def reference(self, *inputs: Array | None) -> Array:
        """Spread in float64; inputs are (y, dy, x) or (dy,)."""
        forward = self.forward
        if forward.is_max:
            y, dy, x = inputs
            assert y is not None
            assert dy is not None
            assert x is not None
            return self.gathered(scatter_maxima(forward, y, dy, x, np.dtype(np.float64)))
        (gradient,) = inputs
        assert gradient is not None
        result = gradient.astype(np.float64)
        for axis, (windows, outputs, target) in enumerate(
            zip(forward.windows, forward.makes, self.makes, strict=True)
        ):
            matrix = np.zeros((windows.count, windows.extent))
            taps = runs(windows, (0, windows.count), gradient=False)
            of = np.repeat(np.arange(windows.count), taps.stops - taps.starts)
            matrix[of, taps.elements] = taps.weights
            part = matrix[slice(*outputs), slice(*target)]
            result = np.moveaxis(np.tensordot(result, part, (2 + axis, 0)), -1, 2 + axis)
        return result


def scatter_maxima(
    forward: Resampling, y: Array, dy: Array, x: Array, dtype: np.dtype[Any]
) -> Array:
    """Add dy to the first element of each window that equals y (NaN equals NaN), window by window.

    Gives dx of all of x that is at hand.
    """
    dx = np.zeros(forward.input_shape, dtype)
    bounds = [
        np.transpose(window.bounds(np.arange(*made))) - read[0]
        for window, made, read in zip(forward.windows, forward.makes, forward.reads, strict=True)
    ]
    for site in np.ndindex(*forward.output_shape[2:]):
        box: tuple[Any, ...] = (..., *(slice(*bounds[axis][o]) for axis, o in enumerate(site)))
        inside, largest = x[box], y[(..., *site)].reshape(*forward.lead, *[1] * len(site))
        same = (inside == largest) | (np.isnan(inside) & np.isnan(largest))
        first = np.zeros((*forward.lead, math.prod(same.shape[2:])), dtype)
        index = same.reshape(first.shape).argmax(-1)
        np.put_along_axis(first, index[..., None], dy[(..., *site)][..., None].astype(dtype), -1)
        dx[box] += first.reshape(same.shape)
    return dx
