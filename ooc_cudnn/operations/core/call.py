"""Interface of tiled calls: all that planner, schedule and executor ask of a call.

A chain of operations is a tiled call, and so is a gradient, a softmax or a batch normalisation.
Each says along which axes it may be cut, which region of each operand a piece touches, and what to
launch on a piece. Nothing outside `operations/` knows which of them it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.ranges import Range, Ranges, ranges
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from perfmodel import Split
from perfmodel.cached import cached_property

Region = tuple[Range, ...]

#: The axes a call is cut along, in the paper's loop order (outermost first).
AXES = ("n", "c_y", "h_y", "c_x")
#: The loop over sweeps: what sums over its data before it can use the sum goes over it twice.
SWEEP = "sweep"


class Piece(NamedTuple):
    """One piece of a call: a range on each axis it is cut along.

    `after` are the rows of the piece computed just before, if the pieces follow each other down the
    rows of the same images: what both need of the rows between is then still on the device.
    """

    n: Range
    c_y: Range
    h_y: Range
    c_x: Range
    sweep: int = 0
    after: Range | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Lengths of its ranges."""
        n, c_y, h_y, c_x = self.n, self.c_y, self.h_y, self.c_x
        return n[1] - n[0], c_y[1] - c_y[0], h_y[1] - h_y[0], c_x[1] - c_x[0]


class Tile(NamedTuple):
    """A part of a call along all axes at once, by ranges of its `tile_shape`.

    `sites` are ranges of the spatial axes.
    """

    images: Range
    channels: Range
    sites: Region

    @property
    def shape(self) -> Shape:
        """Extents of the ranges."""
        return tuple(stop - start for start, stop in (self.images, self.channels, *self.sites))


class Operand(NamedTuple):
    """An operand: its shape, and the axes on which its region depends."""

    shape: Shape
    dtype: str
    axes: frozenset[str]


class Accumulation(NamedTuple):
    """Position of a piece in the sum over the reduced axes: alone, first, in the middle, last."""

    first: bool = True
    last: bool = True


ALONE = Accumulation()

#: Reads a region of an operand as float64 (for `verify`).
Read = Callable[[str, Region], Array]


class Rounding(NamedTuple):
    """Bounds of a result's rounding error: terms of its sums, arithmetic, operations in a row."""

    terms: int
    arithmetic: str
    operations: int = 1


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Scaling of a call's result, as every call has it.

    Attributes
    ----------
    alpha, beta : float
        ``result = alpha * computed + beta * result``, once per element.
    row_axis : int
        The axis of the tensors that hY is: rows lie along it. Any spatial axis; `along` turns it.
    """

    alpha: float = 1.0
    beta: float = 0.0
    row_axis: int = ROW_AXIS


class TiledCall(Scaled, ABC):
    """One call, as what it may be cut into.

    Attributes
    ----------
    dtype : str
        Of the data.
    lead : str
        The operand whose placement and memory order new results take.
    loop_order : tuple of str
        The loops over pieces, outermost first; reduced axes are innermost.
    reduced : tuple of str
        Axes that are summed over.
    sweeps : int
        How often the pieces are gone through.
    results : tuple of str
        Names of the operands that are written, last in `operands`.
    on_host : bool
        Whether it is computed on the host, all of it at once, where its operands then are.
    is_external : bool
        Whether another library computes it: pieces of one kind need not launch the same.
    may_be_recorded : bool
        Whether a run of it does the same each time: what it launches on the device, and no more.
    keeps_channels : bool
        Whether each result channel is made of the same channel of what is streamed, and no other.
    may_be_in_place : bool
        Whether dx may lie where dy does: each element, or site, is read before it is written.
    compared : tuple of str
        Operands in which it looks for equal values, which must be the same to the last bit.
    """

    dtype: str
    lead: str = "x"
    loop_order: tuple[str, ...] = AXES
    reduced: tuple[str, ...] = ("c_x",)
    sweeps: int = 1
    results: tuple[str, ...] = ("y",)
    on_host: bool = False
    is_external: bool = False
    may_be_recorded: bool = True
    keeps_channels: bool = False
    may_be_in_place: bool = False
    compared: tuple[str, ...] = ()

    # Operands ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def operands(self) -> Mapping[str, Operand]:
        """Every operand by name: inputs, then results."""

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Operands that are copied in: all but the results, which are read where beta is not 0."""
        return tuple(name for name in self.operands if name not in self.results or self.beta != 0)

    @cached_property
    def streamed(self) -> tuple[str, ...]:
        """Operands that flow by in pieces; the others are small, and kept whole if they fit."""
        return tuple(name for name, operand in self.operands.items() if "n" in operand.axes)

    def scaling(self, result: str) -> tuple[float, float]:
        """Alpha and beta of a result: of those that have none, 1 and 0."""
        return self.alpha, self.beta

    def sweeps_of(self, name: str) -> int:
        """Return the number of sweeps in which an operand is touched."""
        return self.sweeps

    # Cutting ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def extents(self) -> Split:
        """Full sizes of the axes: the split that is one piece."""

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes that hY may be: every spatial one."""
        return tuple(range(ROW_AXIS, max(len(self.operands[self.lead].shape), ROW_AXIS + 1)))

    def along(self, row_axis: int) -> Self:
        """Return the same call with rows that lie along another axis."""
        return self if row_axis == self.row_axis else replace(self, row_axis=row_axis)

    def may_cut(self, axis: str) -> bool:
        """True if an axis may be cut at all."""
        return bool(getattr(self.extents, axis) > 1)

    def is_legal(self, split: Split) -> bool:
        """True if it can be cut so (whatever the memory)."""
        whole = self.extents
        return all(
            self.may_cut(axis) or getattr(split, axis) >= getattr(whole, axis) for axis in AXES
        )

    def ranges(self, split: Split) -> Mapping[str, Ranges]:
        """Ranges of each axis under a split, in order.

        Raises
        ------
        ValueError
            If it cannot be cut so.
        """
        if not self.is_legal(split):
            raise ValueError(f"this call cannot be cut as in {split}")
        return {axis: self.axis_ranges(axis, getattr(split, axis)) for axis in AXES}

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut one axis into ranges of `size`."""
        return ranges(getattr(self.extents, axis), size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        """Number of different regions of an operand that the ranges of one axis make."""
        return len(cut) if axis in self.operands[name].axes else 1

    @abstractmethod
    def region(self, name: str, piece: Piece) -> Region | None:
        """Region of an operand that a piece touches; None if it does not touch it."""

    def whole_piece(self, sweep: int = 0) -> Piece:
        """The piece that is the whole call."""
        n, c_y, h_y, c_x = ((0, getattr(self.extents, axis)) for axis in AXES)
        return Piece(n, c_y, h_y, c_x, sweep)

    def row_key(self, piece: Piece) -> Hashable:
        """Key of launches besides the sizes of a piece: how its rows meet the borders."""
        return None

    def launch_key(self, piece: Piece) -> Hashable:
        """Key of a piece's launches: pieces of one key launch the same.

        A call whose numbers depend on where a piece lies adds its place; what it costs does not.
        """
        return piece.sizes, piece.sweep, self.row_key(piece)

    def meets_border(self, piece: Piece) -> bool:
        """True if some operation sees padding above or below the rows of a piece.

        Pieces of equally many rows that do not are all alike.
        """
        return False

    # Tiles: calls of their own, whose operands are parts of this one's --------------------------

    @property
    def tile_shape(self) -> Shape:
        """Shape of what tiles are ranges of: the result of forward, dx of gradients, dy of sums."""
        result = self.results[0]
        return self.operands[result if result in self.streamed else self.lead].shape

    def on_tile(self, tile: Tile) -> TiledCall:
        """Return the call that makes a tile; its results may be larger, made of whole windows.

        Raises
        ------
        TypeError
            If calls of its kind are not made in tiles.
        """
        raise TypeError(f"{type(self).__name__} is not made in tiles")

    def tile_rows(self, name: str, rows: Range) -> Range:
        """Rows of an operand that the call for a tile of these rows holds."""
        piece = self.whole_piece(self.sweeps - 1)._replace(h_y=rows)
        return (self.region(name, piece) or ())[self.row_axis]

    def reads_nothing(self, rows: Range) -> bool:
        """True if an operand has no rows in a piece of these rows: they are made of padding."""
        piece = self.whole_piece(self.sweeps - 1)._replace(h_y=rows)
        regions = (self.region(name, piece) for name in self.streamed)
        at = self.row_axis
        return any(region is not None and region[at][0] == region[at][1] for region in regions)

    # Launching --------------------------------------------------------------------------------

    @abstractmethod
    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        """Return the launches on a piece, and every buffer they take, by name.

        Parameters
        ----------
        layout : str
            Memory order in which windows are computed.
        orders : mapping
            Memory order in which each operand lies; one that differs from what a launch takes is
            re-laid on the device.
        accumulation : Accumulation
            Where the piece stands in the sum over the reduced axes.
        """

    # Checking ---------------------------------------------------------------------------------

    @abstractmethod
    def patch(self, random: np.random.Generator) -> Piece:
        """A small random piece, whole along the reduced axes, for `expected`."""

    @abstractmethod
    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute the results of a patch plainly in float64.

        Returns
        -------
        mapping from result to (values, sizes)
            Before alpha and beta; sizes are what the sums would be without cancellation.
        """

    @abstractmethod
    def rounding(self) -> Rounding:
        """Bounds of the results' rounding error."""


def random_range(random: np.random.Generator, extent: int, size: int) -> Range:
    """A random range of at most `size`."""
    start = int(random.integers(extent))
    return start, min(start + size, extent)
