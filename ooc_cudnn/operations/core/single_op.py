"""One operation as a call of its own: what gradients, softmax and the like share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Read, Region, TiledCall
from ooc_cudnn.operations.core.launch import Launchable
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.core.row_axis import height, tensor_region
from perfmodel import Split
from perfmodel.cached import cached_property

#: Extents of the patch that `verify` looks at, where an axis may be cut.
PATCH = {"n": 1, "c_y": 4, "h_y": 2, "c_x": 4}


#: The axes that cut a tensor.
CUT = frozenset({"n", "c_y", "h_y"})


class OneTyped(Launchable, Protocol):
    """An operation all of whose operands have one type."""

    @property
    def dtype(self) -> str:
        """Dtype of its operands; its result may be wider."""


class OneShapeCall(BuiltCall):
    """A call whose data has one shape, and is cut along images, channels and rows."""

    shape: Shape

    @cached_property
    def extents(self) -> Split:
        n, c_y = self.shape[:2]
        return Split(n=n, c_y=c_y, c_x=1, h_y=height(self.shape, self.row_axis))

    def piece_shape(self, piece: Piece) -> Shape:
        """Shape of a piece of the data."""
        region = tensor_region(self.shape, piece.n, piece.c_y, piece.h_y, self.row_axis)
        return tuple(stop - start for start, stop in region)


class ForwardTypedCall(TiledCall):
    """A gradient: all its operands have the type of the forward operation."""

    forward: Any

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """Dtype of all operands."""
        return str(self.forward.dtype)


class SingleOpCall(BuiltCall):
    """One operation that gives one result.

    On each piece its inputs are brought to one memory order, the operation runs, its results are
    summed over the reduced axes, and alpha and beta are applied.

    Attributes
    ----------
    windowed : bool
        Whether it is computed in the plan's layout, else in that of the leading operand.
    takes : tuple of str
        The operands it reads, in its order; "" for one that is absent.
    """

    windowed: bool = False
    takes: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    @abstractmethod
    def on_piece(self, piece: Piece, *, layout: str, result_dtype: str) -> OneTyped:
        """The operation on one piece; its own dtype is that of the operands it takes."""

    @abstractmethod
    def region(self, name: str, piece: Piece) -> Region:
        """Region of an operand that a piece touches."""

    def build(self, build: Builder) -> None:
        piece = build.piece
        (result,) = self.results
        order = build.layout if self.windowed else build.buffers[self.lead].order
        dtype = build.product_dtype(result)
        operation = self.on_piece(piece, layout=order, result_dtype=dtype)
        taken = {
            name: build.taken(name, order, operation.dtype)
            for name in dict.fromkeys(self.takes)
            if name
        }
        sources = tuple(taken.get(name, "") for name in self.takes)
        build.make(operation, sources, result, order, done=sources)

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few of everything that may be cut, all of what is summed over."""
        whole = self.extents
        sizes = {
            axis: PATCH[axis]
            if self.may_cut(axis) and axis not in self.reduced
            else getattr(whole, axis)
            for axis in PATCH
        }
        if not self.is_legal(Split(**sizes)):  # several groups of channels beside cut ones
            sizes |= {axis: 1 for axis in ("c_y", "c_x") if axis not in self.reduced}

        def chosen(axis: str) -> Range:
            cut = self.axis_ranges(axis, sizes[axis])
            return cut[int(random.integers(len(cut)))]

        return Piece(chosen("n"), chosen("c_y"), chosen("h_y"), chosen("c_x"))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the operation's reference, image after image where images are summed over."""

        def compute(piece: Piece) -> tuple[Array, ...]:
            operation = self.on_piece(piece, layout="channels_first", result_dtype="float64")
            inputs = [read(name, self.region(name, piece)) for name in self.takes if name]
            return self.compare(operation, inputs)

        value, size = sum_images(piece, compute) if "n" in self.reduced else compute(piece)
        return {self.results[0]: (value, size)}

    def compare(self, operation: Launchable, inputs: list[Array]) -> tuple[Array, Array]:
        """The value, and the size of its sums."""
        return linear(operation, *inputs)


def linear(operation: Any, *inputs: Array) -> tuple[Array, Array]:
    """Return the result of a linear operation, and its size: the same of absolute values."""
    return operation.reference(*inputs), operation.reference(*map(np.abs, inputs))


def sum_images(piece: Piece, found: Callable[[Piece], tuple[Array, ...]]) -> list[Array]:
    """Sum the results of a piece's images, one after the other."""
    images = (found(piece._replace(n=(image, image + 1))) for image in range(*piece.n))
    sums = list(next(images))
    for more in images:
        sums = list(map(np.add, sums, more))
    return sums
