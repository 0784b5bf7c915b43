"""All three gradients of convolution, bias and activation, while each piece is on the device."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooc_cudnn.operations.convolution.data_gradient import make_data_gradient
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardData
from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding, random_range
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.ranges import Range, Rows
from ooc_cudnn.operations.core.row_axis import replace_padding, tensor_region
from ooc_cudnn.operations.core.single_op import ForwardTypedCall, linear, sum_images
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.elementwise.gradient_reductions import SUMMED_BESIDE, GradientSums
from perfmodel import Split
from perfmodel.cached import cached_property


class GradientRows(NamedTuple):
    """The rows of a piece that owns some rows of dy.

    `read` are the rows of y and dy, those owned last; `data` the rows of dx, and `seen` the rows of
    dy that they are made of, with the padding of the convolution from one to the other; `inputs`
    the rows of x behind the owned ones.
    """

    read: Range
    data: Range
    seen: Rows
    inputs: Rows


@dataclass(frozen=True)
class FusedGradientCall(ForwardTypedCall, BuiltCall):
    """dx, dw and db from x, w, y and dy: cut along n and the rows of dy, all channels in a piece.

    The gradient dz before the activation is made once for a piece, and all three are made of it; db
    in the same pass, where the piece owns all rows that it reads, and the type is of
    `SUMMED_BESIDE`.
    dw and db are summed over n and hY on the device and leave once.
    """

    forward: Convolution
    mode: str
    coef: float

    lead = "dy"
    results = ("dx", "dw", "db")
    reduced = ("n", "h_y")
    loop_order = ("c_y", "c_x", "n", "h_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        forward, cut = self.forward, frozenset({"n", "h_y"})
        whole: frozenset[str] = frozenset()
        return {
            "x": Operand(forward.x_shape, self.dtype, cut),
            "w": Operand(forward.w_shape, self.dtype, whole),
            "y": Operand(forward.output_shape, self.dtype, cut),
            "dy": Operand(forward.output_shape, self.dtype, cut),
            "dx": Operand(forward.x_shape, self.dtype, cut),
            "dw": Operand(forward.w_shape, self.dtype, whole),
            "db": Operand(forward.w_shape[:1], self.dtype, whole),
        }

    @cached_property
    def of_filter(self) -> FilterGradientCall:
        """The gradient of the filter by itself, cut alike."""
        return FilterGradientCall(self.forward, row_axis=self.row_axis)

    @property
    def extents(self) -> Split:
        return self.of_filter.extents

    def may_cut(self, axis: str) -> bool:
        return axis in ("n", "h_y") and super().may_cut(axis)

    def rows(self, h_y: Range) -> GradientRows:
        """The rows of a piece that owns rows `h_y` of dy; every operand of it asks."""
        found = self._known_rows.get(h_y)
        if found is None:
            found = self._known_rows[h_y] = self._rows(h_y)
        return found

    @cached_property
    def _known_rows(self) -> dict[Range, GradientRows]:
        return {}

    def _rows(self, h_y: Range) -> GradientRows:
        forward, count = self.forward, self.forward.output_shape[self.row_axis]
        window = forward.window_rows(self.row_axis)

        def boundary(row: int) -> int:
            """First of the rows of dx that belong to dy's from `row` on."""
            if row == 0:
                return 0
            if row == count:
                return window.extent
            return min(max(row * window.stride - window.padding[0], 0), window.extent)

        data = (boundary(h_y[0]), boundary(h_y[1]))
        seen = Rows(h_y[0], h_y[0], 0, 0)
        if data[0] < data[1]:
            seen = window.contributing(data, count)
        start = min(seen.start, h_y[0]) if seen.start < seen.stop else h_y[0]
        return GradientRows((start, h_y[1]), data, seen, forward.input_rows(h_y, self.row_axis))

    def row_key(self, piece: Piece) -> Hashable:
        rows = self.rows(piece.h_y)
        first = rows.read[0]
        return (
            piece.h_y[0] - first,
            rows.data[1] - rows.data[0],
            (rows.seen.start - first, rows.seen.stop - first, *rows.seen[2:]),
            (rows.inputs.stop - rows.inputs.start, *rows.inputs[2:]),
        )

    def meets_border(self, piece: Piece) -> bool:
        rows = self.rows(piece.h_y)
        clipped = rows.data[0] == 0 or rows.data[1] == self.forward.x_shape[self.row_axis]
        return clipped or rows.seen.start == 0 or bool(rows.inputs.before or rows.inputs.after)

    def region(self, name: str, piece: Piece) -> Region:
        """Region of an operand that a piece touches; channels are cut for `verify` alone."""
        shape = self.operands[name].shape
        rows = self.rows(piece.h_y)
        if name == "db":
            return (piece.c_y,)
        if name in ("y", "dy"):
            return tensor_region(shape, piece.n, piece.c_y, rows.read, self.row_axis)
        if name == "dx":
            return tensor_region(shape, piece.n, (0, shape[1]), rows.data, self.row_axis)
        return self.of_filter.region("dw" if name == "w" else name, piece)

    # Launching --------------------------------------------------------------------------------

    def build(self, build: Builder) -> None:
        """The gradient before the activation, then the three that are made of it."""
        piece = build.piece
        accumulating, rows = build.accumulating, self.rows(piece.h_y)
        beside = rows.read == piece.h_y and self.dtype in SUMMED_BESIDE
        dz = self._before_activation(build, summed=beside)
        build.accumulating = False

        part = self._rows_of(build, dz, (rows.seen.start, rows.seen.stop), rows.read[0], "seen")
        w = build.in_order("w", build.layout)
        dx = self.data_gradient(piece, build.layout, build.product_dtype("dx"))
        make_data_gradient(build, dx, (w, part), build.layout)
        build.release(w)
        if part != dz:
            build.release(part)

        build.accumulating = accumulating
        piece_dz = self._rows_of(build, dz, piece.h_y, rows.read[0], "own")
        x = build.in_order("x", build.layout)
        dtype = build.product_dtype("dw")
        dw = self.of_filter.on_piece(piece, layout=build.layout, result_dtype=dtype)
        build.make(dw, (x, piece_dz), "dw", build.layout, sums="dw sums")
        build.release(x)
        if not beside:
            shape = build.buffers[piece_dz].shape
            db = BroadcastSum(shape, shape[1:2], self.dtype, build.product_dtype("db"))
            build.make(db, (piece_dz,), "db", build.layout, sums="db sums")
        build.release(piece_dz, dz)

    def _before_activation(self, build: Builder, *, summed: bool) -> str:
        """dz = dy * f'(x), in the plan's layout; if `summed`, db beside it."""
        dy = build.in_order("dy", build.layout)
        shape = build.buffers["dy"].shape
        dz = build.scratch("dz", shape, self.dtype, build.layout)
        y = build.in_order("y", build.layout)
        if summed:
            sums = build.product_dtype("db")
            operation = GradientSums(shape, self.mode, self.coef, self.dtype, sums)
            build.make(operation, (y, dy, "", dz, "", ""), "db", build.layout, sums="db sums")
        else:
            backward = ActivationBackward(shape, self.mode, self.coef, self.dtype)
            build.launch(backward, (y, dy, ""), dz)
        build.release(y, dy)
        return dz

    def _rows_of(self, build: Builder, dz: str, rows: Range, first: int, name: str) -> str:
        """Some rows of dz as a tensor of their own; dz itself if they are all of it."""
        have, count = build.buffers[dz], rows[1] - rows[0]
        if count == have.shape[self.row_axis]:
            return dz
        part = build.rows_of(dz, f"{name} of dz", rows[0] - first, count)
        packed = build.scratch(f"{name} rows", build.buffers[part].shape, have.dtype, have.order)
        build.copy(part, packed)
        return packed

    def data_gradient(self, piece: Piece, layout: str, dtype: str) -> ConvolutionBackwardData:
        """The gradient of the data of a piece, all channels."""
        rows = self.rows(piece.h_y)
        dx = tuple(stop - start for start, stop in self.region("dx", piece))
        whole = self.forward
        padding = replace_padding(whole.padding, (rows.seen.before, rows.seen.after), self.row_axis)
        forward = whole.resized(dx, whole.w_shape, padding, whole.groups, layout)
        return ConvolutionBackwardData(forward, dtype)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """Draw either a few rows of dx, or a few filters over the whole batch."""
        whole = self.extents
        n, rows = random_range(random, whole.n, 1), random_range(random, whole.h_y, 2)
        if random.integers(2):
            return Piece(n, (0, whole.c_y), rows, (0, whole.c_x))
        c_y, c_x = random_range(random, whole.c_y, 1), random_range(random, whole.c_x, 2)
        return Piece((0, whole.n), c_y, (0, whole.h_y), c_x)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Expected dx of rows; dw and db of the whole batch, image after image."""
        whole, results = self.extents, dict[str, tuple[Array, Array]]()
        if piece.c_y == (0, whole.c_y) and piece.c_x == (0, whole.c_x):
            rows = self.rows(piece.h_y)
            dz = self._dz(piece, read)
            seen = slice(rows.seen.start - rows.read[0], rows.seen.stop - rows.read[0])
            dz = dz[(*(slice(None),) * self.row_axis, seen)]
            operation = self.data_gradient(piece, "channels_first", "float64")
            w = read("w", self.region("w", piece))
            results["dx"] = linear(operation, w, dz)
        if piece.n == (0, whole.n) and piece.h_y == (0, whole.h_y):
            dw, dw_size, db, db_size = sum_images(piece, lambda image: self._sums(image, read))
            results |= {"dw": (dw, dw_size), "db": (db, db_size)}
        return results

    def _sums(self, piece: Piece, read: Read) -> tuple[Array, Array, Array, Array]:
        """Terms that one image adds to dw and db, and the sizes of the sums."""
        dz, x = self._dz(piece, read), read("x", self.region("x", piece))
        part = self.of_filter.on_piece(piece, layout="channels_first", result_dtype="float64")
        bias = BroadcastSum(dz.shape, dz.shape[1:2], self.dtype, "float64")
        return *linear(part, x, dz), *linear(bias, dz)

    def _dz(self, piece: Piece, read: Read) -> Array:
        region = self.region("dy", piece)
        shape = tuple(stop - start for start, stop in region)
        operation = ActivationBackward(shape, self.mode, self.coef, self.dtype)
        return operation.reference(read("y", region), read("dy", region))

    def rounding(self) -> Rounding:
        taps = self.forward.w_shape[0] * math.prod(self.forward.w_shape[2:])
        of_filter = self.of_filter.rounding()
        return of_filter._replace(terms=max(taps, of_filter.terms), operations=2)
