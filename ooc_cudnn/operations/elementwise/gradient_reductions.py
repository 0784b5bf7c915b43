"""The gradient before an activation, and what is summed of it, in one pass over memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding, random_range
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import per_channel, tensor_region
from ooc_cudnn.operations.core.single_op import CUT, OneShapeCall
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from perfmodel import Work
from perfmodel.cached import cached_property

#: Types of which sums are made beside gradients. Of half types the arithmetic on elements binds,
#: not memory: on an H200 the two passes by themselves were faster.
SUMMED_BESIDE = ("float32", "float64")


@dataclass(frozen=True)
class GradientSums(OneShape):
    """Sums of dz = dy * f'(y) over all but the channels, from (y, dy, more, dz, x, mean).

    dz is written beside the sums; it may be the same memory as y, dy, more or x. The sums, in
    float64, are of what is written.

    Parameters
    ----------
    shape : tuple of int
        Of y, dy, more, dz and x.
    mode, coef : str, float
        The activation; one whose y tells the slope.
    result_dtype : str
        Of the sum of dz, (c,).
    products : bool
        Whether the sums are two, (2, c) float64: of dz, and of dz * (x - mean). Then dy comes in
        two parts, `more` the second one. (Of one part, on an H200 in float32, two passes are
        faster, by a tenth.) Without, more, x and mean are absent.
    """

    shape: Shape
    mode: str
    coef: float
    dtype: str
    result_dtype: str = "float64"
    products: bool = False

    name = "gradient_sums"
    any_strides = True

    def __post_init__(self) -> None:
        if needs_x(self.mode, self.coef):
            raise ValueError(f"y does not tell the slope of {self.mode} with coef {self.coef}")

    @property
    def output_shape(self) -> Shape:
        return (2, self.shape[1]) if self.products else (self.shape[1],)

    def work(self) -> Work:
        """Reads of y, dy, and what else there is, and a write."""
        kind = "/batch_normalization/sums" if self.products else "/channel_sum"
        count = 3 + 2 * self.products
        return self.passes(kind, count, problem=f"{self.name}; {self.shape[1]} channels")

    def reference(self, *inputs: Array) -> tuple[Array, Array]:
        """Dz and the sums, those of dz before it is rounded."""
        y, dy, more, x, mean = inputs
        if self.products:
            dy = dy.astype(np.float64) + more
        dz = ActivationBackward(self.shape, self.mode, self.coef, self.dtype).reference(y, dy)
        terms = [dz]
        if self.products:
            terms.append(dz * (x.astype(np.float64) - per_channel(mean, x.ndim)))
        sums = np.stack([term.sum(axis=(0, *range(2, dz.ndim))) for term in terms])
        return dz, sums if self.products else sums[0]


@dataclass(frozen=True)
class BiasActivationGradientCall(OneShapeCall):
    """dx and db from y and dy: through an activation, and of the bias that was added before it.

    Cut along images, channels and rows; db is summed on the device and leaves once. Alpha and beta
    are those of db.
    """

    shape: Shape
    mode: str
    coef: float
    dtype: str

    lead = "dy"
    may_be_in_place = True
    results = ("dx", "db")
    reduced = ("n", "h_y")
    loop_order = ("c_y", "c_x", "n", "h_y")

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        data = Operand(self.shape, self.dtype, CUT)
        vector = Operand(self.shape[1:2], self.dtype, frozenset({"c_y"}))
        return {"y": data, "dy": data, "dx": data, "db": vector}

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return ("y", "dy", "db") if self.beta else ("y", "dy")

    def scaling(self, result: str) -> tuple[float, float]:
        return (self.alpha, self.beta) if result == "db" else (1.0, 0.0)

    def region(self, name: str, piece: Piece) -> Region:
        if name == "db":
            return (piece.c_y,)
        return tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)

    def build(self, build: Builder) -> None:
        """One launch makes both."""
        order = build.buffers["dx"].order
        y, dy = build.in_order("y", order), build.in_order("dy", order)
        operation = GradientSums(
            self.piece_shape(build.piece), self.mode, self.coef, self.dtype,
            build.product_dtype("db"),
        )  # fmt: skip
        build.make(operation, (y, dy, "", "dx", "", ""), "db", order, done=(y, dy))

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """Draw either a few rows of dx, or a channel over the whole batch."""
        whole = self.extents
        c_y = random_range(random, whole.c_y, 1)
        if random.integers(2):
            return Piece((0, whole.n), c_y, (0, whole.h_y), (0, 1))
        n, rows = random_range(random, whole.n, 1), random_range(random, whole.h_y, 2)
        return Piece(n, c_y, rows, (0, 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Expected dx of rows; db of the whole batch, image after image."""
        parts = [self._of_image(piece._replace(n=(at, at + 1)), read) for at in range(*piece.n)]
        whole = self.extents
        if (piece.n, piece.h_y) != ((0, whole.n), (0, whole.h_y)):
            value, size = (np.concatenate(each) for each in zip(*parts, strict=True))
            return {"dx": (value, size)}
        axes = (0, *range(2, len(self.shape)))
        value, size = (sum(part[at].sum(axis=axes) for part in parts) for at in (0, 1))
        return {"db": (value, size)}

    def _of_image(self, piece: Piece, read: Read) -> tuple[Array, Array]:
        """Dx of an image, and how large what it is made of is."""
        region = self.region("dy", piece)
        y, dy = read("y", region), read("dy", region)
        operation = ActivationBackward(dy.shape, self.mode, self.coef, self.dtype)
        value = operation.reference(y, dy)
        return value, np.abs(value) + np.abs(dy) * (4.0 + abs(self.coef) + np.abs(y))

    def rounding(self) -> Rounding:
        """Sums are made in float64 of what is rounded."""
        return Rounding(1, self.dtype, 4)
