"""Batch normalisation and the activation after it in backward, in the passes of either.

The slope is that of y = f(v), v the normalised x plus what was added to it. Where nothing was added
y is made again of x, and nobody reads it; else the pass that makes the gradient of v sums it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.call import Piece, Read
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward, HasActivation
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.normalization.channel_reduction import SAVED, PerChannel
from ooc_cudnn.tensor import ACCUMULATOR, SMALLEST_STEP, UNIT_ROUNDOFF


@dataclass(frozen=True)
class ActivationSumsCall(PerChannel):
    """dx = (dy + more) * f'(y), and the `GradientSums` of that with an x of before the activation.

    x was normalised, added to, and rectified: y. In one pass; dx is the gradient of what was added,
    too. The gradient of y comes in two parts: of one, two passes are faster.
    """

    shape: Shape
    mode: str
    coef: float
    dtype: str

    inputs = ("x", "y", "dy", "more", *SAVED)
    may_be_in_place = True
    results = ("dx", "sums")
    sweeps = 1
    loop_order = ("c_y", "c_x", "n", "h_y")

    def scaling(self, result: str) -> tuple[float, float]:
        """There is none."""
        return 1.0, 0.0

    def build(self, build: Builder) -> None:
        """Make a piece of dx, and add up its sums."""
        build.accumulating = False
        order = build.buffers["dx"].order
        x, y, dy, more = (build.in_order(name, order) for name in ("x", "y", "dy", "more"))
        shape = self.piece_shape(build.piece)
        operation = GradientSums(shape, self.mode, self.coef, self.dtype, products=True)
        self.add_sums(build, operation, (y, dy, more, "dx", x, SAVED[0]), SAVED[1])

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Dx of a few rows, the sums over all images of a channel."""
        operation = ActivationBackward(self.shape, self.mode, self.coef, self.dtype)
        parts = ("dy", "more")
        y, *of_dy = (read(name, self.region(name, piece) or ()) for name in ("y", *parts))
        dy = np.add.reduce(of_dy)
        dx = operation.reference(y, dy)
        x, y, *all_dy = (np.stack(self.images(name, piece, read)) for name in ("x", "y", *parts))
        dys = np.add.reduce(all_dy)
        vectors = {n: float(read(n, (piece.c_y,))[0]) for n in SAVED}
        of_all = operation.reference(y, dys)
        steep = 4.0 + abs(self.coef) + np.abs(y)
        sums = sums_of_a_channel(x, of_all, np.abs(dys) * steep, vectors)
        return {"dx": (dx, np.abs(dx) + 4 * np.abs(dy)), "sums": sums}


def sums_of_a_channel(
    x: Array, dy: Array, size: Array, vectors: Mapping[str, float]
) -> tuple[Array, Array]:
    """Sums of dy and of dy * xhat, and their sizes, of a channel's images, with dy's own size."""
    mean, inverse = (vectors[name] for name in SAVED)
    parts = np.stack([dy, dy * (x - mean) * inverse]).reshape(2, -1)
    sizes = np.stack([size, size * (np.abs(x) + abs(mean)) * inverse]).reshape(2, -1)
    return parts.sum(axis=1)[:, np.newaxis], np.abs(sizes).sum(axis=1)[:, np.newaxis]


def activation_slope(
    call: HasActivation, x: Array, dy: Array, vectors: Mapping[str, Any]
) -> tuple[Array, Array]:
    """Dy times the slope of the activation after a normalisation of x, and the size of that.

    Where rounding decides on which side of a kink an element lies, nothing is known of its slope.
    """
    mean, inverse = (vectors[name] for name in SAVED)
    factor, bias = vectors["scale"] * inverse, vectors["bias"]
    before = factor * (x - mean) + bias
    reach = np.abs(factor) * (np.abs(x) + np.abs(mean)) + np.abs(bias)
    y = MODES[call.mode].value(before, call.coef)
    dz = ActivationBackward(dy.shape, call.mode, call.coef, call.dtype).reference(y, dy, before)
    unit, stored = UNIT_ROUNDOFF[ACCUMULATOR[call.dtype]], UNIT_ROUNDOFF[call.dtype]
    away = np.abs(before)
    if call.mode == "clipped_relu":
        away = np.minimum(away, np.abs(before - call.coef))
    least = SMALLEST_STEP.get(call.dtype, 0.0)
    size = np.abs(dy) * max(1.0, abs(call.coef))
    if MODES[call.mode].needs_x:  # the slope is as uncertain as what it is of
        size = size * (2 + reach)
        away = np.abs(away - 3) if call.mode == "hardswish" else np.full_like(away, np.inf)
    near = away <= 16 * unit * reach + 2 * stored * abs(call.coef) + least
    return dz, np.where(near, size / unit, size)
