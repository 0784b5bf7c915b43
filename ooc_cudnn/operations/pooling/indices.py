"""Max pooling that saves a byte an element of y for its gradient, in place of x and y.

The byte is the place of the maximum in its window, in row-major order, padding counted. Behind a
ReLU only a maximum above 0 has a place: the gradient of another one goes nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.call import (
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    random_range,
)
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Rows
from ooc_cudnn.operations.core.row_axis import height, tensor_region
from ooc_cudnn.operations.core.single_op import CUT, ForwardTypedCall
from ooc_cudnn.operations.pooling.forward import Pooling
from perfmodel import Split, Work
from perfmodel.cached import cached_property

#: In place of a place: the gradient of this maximum goes nowhere.
NOWHERE = 255
#: Places that a byte tells apart.
MOST_TAPS = 255


@dataclass(frozen=True)
class PoolingIndices:
    """Index of each window's maximum, from (x, y): uint8, the first one, NaN before all numbers.

    With `positive`, `NOWHERE` for one that is not above 0 (a NaN). y, the maxima, is written
    beside; it may be absent.
    """

    forward: Pooling
    positive: bool = False

    name = "pooling_indices"
    any_strides = True

    @property
    def dtype(self) -> str:
        return self.forward.dtype

    @property
    def output_shape(self) -> Shape:
        return self.forward.output_shape

    def work(self) -> Work:
        """Read x, write y."""
        elements = math.prod(self.forward.x_shape) + math.prod(self.forward.output_shape)
        return self.forward.work_of("pooling", elements)

    def reference(self, *inputs: Array | None) -> Array:
        assert inputs[0] is not None
        x = inputs[0].astype(np.float64)
        best = np.full(self.output_shape, -np.inf)
        known = np.zeros(self.output_shape, bool)
        indices = np.zeros(self.output_shape, np.uint8)
        for number, (outputs, seen) in enumerate(self.forward.taps()):
            value, old = x[seen], best[outputs]
            better = ~known[outputs] | (value > old) | (np.isnan(value) & ~np.isnan(old))
            best[outputs] = np.where(better, value, old)
            indices[outputs] = np.where(better, number, indices[outputs])
            known[outputs] = True
        return np.where(best > 0, indices, NOWHERE).astype(np.uint8) if self.positive else indices


def indexable(forward: Pooling) -> bool:
    """True if a byte says where a window's maximum is."""
    return forward.is_max and math.prod(forward.window) <= MOST_TAPS


@dataclass(frozen=True)
class IndexedPoolingCall(ForwardTypedCall, BuiltCall):
    """y and the index of each maximum from x: cut along n, channels and rows of y.

    With `positive`, of each maximum above 0.
    """

    forward: Pooling
    positive: bool = False

    results = ("y", "index")
    reduced = ()

    def __post_init__(self) -> None:
        if not indexable(self.forward):
            raise ValueError(
                f"indices of one byte are for maxima of at most {MOST_TAPS} elements, not for mode "
                f"{self.forward.mode} with window {self.forward.window}"
            )

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        forward = self.forward
        return {
            "x": Operand(forward.x_shape, self.dtype, CUT),
            "y": Operand(forward.output_shape, self.dtype, CUT),
            "index": Operand(forward.output_shape, "uint8", CUT),
        }

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return ("x", "y") if self.beta else ("x",)

    def scaling(self, result: str) -> tuple[float, float]:
        return (self.alpha, self.beta) if result == "y" else (1.0, 0.0)

    @cached_property
    def extents(self) -> Split:
        n, c = self.forward.output_shape[:2]
        return Split(n=n, c_y=c, c_x=1, h_y=height(self.forward.output_shape, self.row_axis))

    def _needed(self, piece: Piece) -> Rows:
        return self.forward.input_rows(piece.h_y, self.row_axis)

    def row_key(self, piece: Piece) -> Hashable:
        needed = self._needed(piece)
        return needed.stop - needed.start, needed.before, needed.after

    def meets_border(self, piece: Piece) -> bool:
        needed = self._needed(piece)
        return bool(needed.before or needed.after)

    def region(self, name: str, piece: Piece) -> Region:
        rows = piece.h_y
        if name == "x":
            needed = self._needed(piece)
            rows = (needed.start, needed.stop)
        return tensor_region(self.operands[name].shape, piece.n, piece.c_y, rows, self.row_axis)

    def _on_piece(self, piece: Piece) -> Pooling:
        images, channels = (stop - start for start, stop in (piece.n, piece.c_y))
        return self.forward.on_piece(images, self._needed(piece), channels, self.row_axis)

    def build(self, build: Builder) -> None:
        pooling, order = self._on_piece(build.piece), build.buffers["x"].order
        indices = PoolingIndices(pooling, self.positive)
        if build.may_write("y", self.dtype, order):
            build.launch(indices, ("x", "y"), "index")
            return
        build.launch(indices, ("x", ""), "index")
        dtype = build.product_dtype("y")
        x = build.taken("x", order, dtype)
        build.make(replace(pooling, dtype=dtype), (x,), "y", order, done=(x,))

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one channel of one image."""
        whole = self.extents
        n, c_y = random_range(random, whole.n, 1), random_range(random, whole.c_y, 1)
        return Piece(n, c_y, random_range(random, whole.h_y, 2), (0, 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        x, pooling = read("x", self.region("x", piece)), self._on_piece(piece)
        y, index = pooling.reference(x), PoolingIndices(pooling, self.positive).reference(x)
        return {
            "y": (y, np.abs(y)),
            "index": (index.astype(np.float64), np.zeros(index.shape)),
        }

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype)
