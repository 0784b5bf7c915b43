"""The convolution that the demo runs, and SciPy's answer to it: none of this library's code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_cudnn.demo.photograph import enlarged_size, filter_bank
from ooc_cudnn.errors import VerificationError

Array = np.ndarray[Any, Any]

FUNCTION = "convolution_add_activation_forward"
#: The maps are half as wide and half as high as the picture: 16 of them take 4/3 of its bytes.
STRIDE = 2
PATCH_SIDE = 16
PATCHES = 12


@dataclass(frozen=True)
class Problem:
    """The convolution that the demo runs: what follows from the number of megapixels."""

    x_shape: tuple[int, int, int, int]
    y_shape: tuple[int, int, int, int]
    w: Array
    b: Array
    padding: int
    dilation: int

    @classmethod
    def of(cls, source: Array, megapixels: float) -> Problem:
        """Size the picture and space the filters' taps half a pixel of the photograph apart."""
        height, width = enlarged_size(source.shape[1], source.shape[2], megapixels)
        w, b = filter_bank()
        dilation = max(1, round(width / source.shape[2] / 2))
        padding = dilation * (w.shape[-1] // 2)
        rows, columns = ((extent - 1) // STRIDE + 1 for extent in (height, width))
        x_shape, y_shape = (1, 3, height, width), (1, len(w), rows, columns)
        return cls(x_shape, y_shape, w, b, padding, dilation)

    @property
    def data_bytes(self) -> int:
        """Bytes of input and output."""
        return 4 * (math.prod(self.x_shape) + math.prod(self.y_shape))

    @property
    def options(self) -> dict[str, Any]:
        """The call's keyword arguments."""
        return {"padding": self.padding, "stride": STRIDE, "dilation": self.dilation}


def check_patches(problem: Problem, x: Array, y: Array) -> tuple[int, float]:
    """Compare patches of the output, corners included, with SciPy's correlation in float64.

    Returns
    -------
    values : int
        How many were compared.
    largest_error : float

    Raises
    ------
    VerificationError
        If one differs by more than float32 rounds.
    """
    # Absolute weights sum to one and pixels reach one, so a value is a sum of parts of one.
    tolerance = float(problem.w[0].size * np.finfo(np.float32).eps)
    values, largest = 0, 0.0
    for rows, columns in _patches(problem.y_shape[2:]):
        actual = np.asarray(y[0, :, rows, columns], dtype=np.float64)
        expected = reference(problem, x, rows, columns)
        errors = np.abs(actual - expected)
        errors[np.isnan(errors)] = np.inf
        worst = np.unravel_index(int(errors.argmax()), errors.shape)
        largest, values = max(largest, float(errors[worst])), values + errors.size
        if errors[worst] > tolerance:
            raise VerificationError(
                function=FUNCTION,
                region=f"rows {rows.start}:{rows.stop}, columns {columns.start}:{columns.stop}",
                expected=float(expected[worst]),
                actual=float(actual[worst]),
                error=float(errors[worst]),
                tolerance=tolerance,
            )
    return values, largest


def reference(problem: Problem, x: Array, rows: slice, columns: slice) -> Array:
    """Compute a patch of the output in float64 with SciPy: none of this library's code."""
    from scipy.signal import correlate

    taps = problem.w.shape[-1]
    reach = (taps - 1) * problem.dilation + 1
    window: Any = x[0]
    for axis, part in ((1, rows), (2, columns)):
        first = part.start * STRIDE - problem.padding
        last = (part.stop - 1) * STRIDE - problem.padding + reach
        extent = window.shape[axis]
        inside = [slice(None)] * 3
        inside[axis] = slice(max(first, 0), min(last, extent))
        around = [(0, 0)] * 3
        around[axis] = (max(-first, 0), max(last - extent, 0))
        window = np.pad(np.asarray(window[tuple(inside)], dtype=np.float64), around)
    responses = []
    for weights, bias in zip(problem.w, problem.b, strict=True):
        spread = np.zeros((weights.shape[0], reach, reach))
        spread[:, :: problem.dilation, :: problem.dilation] = weights
        response = correlate(window, spread, mode="valid", method="fft")[0, ::STRIDE, ::STRIDE]
        responses.append(np.maximum(response + float(bias), 0.0))
    return np.array(responses)


def _patches(extents: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """The four corners, and squares anywhere."""
    random = np.random.default_rng()
    side = min(PATCH_SIDE, *extents)
    ends = [extent - side for extent in extents]
    corners = [(top, left) for top in (0, ends[0]) for left in (0, ends[1])]
    anywhere = random.integers(0, [end + 1 for end in ends], (PATCHES - len(corners), 2))
    for top, left in [*corners, *((int(a), int(b)) for a, b in anywhere)]:
        yield slice(top, top + side), slice(left, left + side)
