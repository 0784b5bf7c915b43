"""The pieces of a chain: its operands, where it may be cut, which regions a piece needs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

from ooc_cudnn.operations.chain.halo_reuse import Flow, Fusion, flow, fusions, needed_rows
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.transposed import TransposedConvolution
from ooc_cudnn.operations.core.call import Operand, Piece, Region, Tile
from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.launch_builder import BuiltCall
from ooc_cudnn.operations.core.operation import Operation, PositionDependent, number_names, on_sites
from ooc_cudnn.operations.core.ranges import Range, Ranges, in_cycles, ranges
from ooc_cudnn.operations.core.row_axis import (
    Windowed,
    broadcast_region,
    cut_axes,
    height,
    replace_rows,
)
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.normalization.local_response import LocalResponse
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Split
from perfmodel.cached import cached_property

FILTERED = Convolution | TransposedConvolution
#: Operations of which each result may need all channels of what flows in.
MIXING = FILTERED | LocalResponse | NormaliseSites
#: Flows of a chain that are kept.
REMEMBERED_FLOWS = 256


@dataclass(frozen=True)
class ChainPieces(BuiltCall):
    """Operations from x to y, as what they may be cut into.

    Cutting along channels needs a chain with at most one convolution, and that one first: after a
    second one every output channel depends on all channels of the first. (So it is with transposed
    convolutions and normalizations across channels, wherever they stand.)
    """

    operations: tuple[Operation, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not self.operations:
            raise ValueError("operations must hold at least one operation")
        for index, (earlier, later) in enumerate(
            zip(self.operations, self.operations[1:], strict=False)
        ):
            if earlier.output_shape != later.input_shape:
                raise ValueError(
                    f"operations do not meet: operation {index}, {earlier.name}, gives shape "
                    f"{earlier.output_shape}, operation {index + 1}, {later.name}, takes "
                    f"{later.input_shape}"
                )
        if any(isinstance(later, CastScale) for later in self.operations[1:]):
            raise ValueError("stored images are what a chain begins with, and nothing else is")

    # Operands ---------------------------------------------------------------------------------

    @cached_property
    def parameter_names(self) -> tuple[tuple[str, ...], ...]:
        """Operand names of each operation's parameters: "w", "b", numbered where they repeat."""
        return number_names([tuple(p.name for p in step.parameters) for step in self.operations])

    @cached_property
    def _owners(self) -> Mapping[str, int]:
        return {name: at for at, names in enumerate(self.parameter_names) for name in names}

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        first = self.operations[0]
        dtype = first.stored if isinstance(first, CastScale) else self.dtype
        operands = {"x": Operand(first.input_shape, dtype, self._x_axes())}
        for operation, names in zip(self.operations, self.parameter_names, strict=True):
            for parameter, name in zip(operation.parameters, names, strict=True):
                if isinstance(operation, FILTERED):
                    axes = {"c_y", "c_x"}
                else:
                    axes = set(cut_axes(parameter.shape, self.row_axis))
                dtype = parameter.dtype or self.dtype
                operands[name] = Operand(parameter.shape, dtype, frozenset(axes))
        operands["y"] = Operand(
            self.operations[-1].output_shape, self.dtype, frozenset({"n", "c_y", "h_y"})
        )
        return operands

    def _x_axes(self) -> frozenset[str]:
        if self.convolution is None:  # the channels of x are those of y
            return frozenset({"n", "h_y", "c_y"})
        grouped = {"c_y"} if self.convolution.groups > 1 else set()
        return frozenset({"n", "h_y", "c_x"} | grouped)

    # Cutting ----------------------------------------------------------------------------------

    @cached_property
    def convolution(self) -> Convolution | None:
        """The convolution, if there is exactly one and it comes first."""
        windows = [step for step in self.operations if isinstance(step, MIXING)]
        first = self.operations[0]
        return first if len(windows) == 1 and isinstance(first, Convolution) else None

    @cached_property
    def channels_may_be_cut(self) -> bool:
        """True if the chain may be cut along cY (and cX, if it has a convolution)."""
        return self.convolution is not None or not any(
            isinstance(step, MIXING) for step in self.operations
        )

    @property
    def keeps_channels(self) -> bool:  # type: ignore[override]
        """True without a convolution, if all may be cut along channels."""
        return self.channels_may_be_cut and self.convolution is None

    @cached_property
    def extents(self) -> Split:
        shape = self.operations[-1].output_shape
        c_x = self.convolution.c_x_extent if self.convolution else 1
        return Split(n=shape[0], c_y=shape[1], c_x=c_x, h_y=height(shape, self.row_axis))

    def may_cut(self, axis: str) -> bool:
        """Rows and images always; channels as the class says."""
        return axis in ("n", "h_y") or self.channels_may_be_cut

    def is_legal(self, split: Split) -> bool:
        whole = self.extents
        if not self.channels_may_be_cut:
            return split.c_y >= whole.c_y and split.c_x >= whole.c_x
        if self.convolution is None or split.c_x >= whole.c_x:
            return True
        return self.convolution.c_x_may_be_cut(split.c_y)

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis: rows so that pieces are alike; no range of channels straddles a group."""
        if axis == "c_y" and self.convolution is not None:
            return self.convolution.c_y_ranges(size)
        if axis == "h_y":
            size = in_cycles(size, self._alike, self.extents.h_y)
        return ranges(getattr(self.extents, axis), size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        """Number of regions that an axis's ranges make: pieces of cY in one group see one of x."""
        if name == "x" and axis == "c_y" and self.convolution is not None:
            return self.convolution.places(cut)
        return super().distinct(name, axis, cut)

    def flow(self, h_y: Range, after: Range | None) -> tuple[Flow, ...]:
        """The rows of every operation in the piece that gives output rows `h_y`; see `flow`."""
        key = h_y, after
        flows = self._flows.get(key)
        if flows is None:
            if len(self._flows) >= REMEMBERED_FLOWS:
                self._flows.clear()
            flows = self._flows[key] = flow(self.operations, h_y, after, self.row_axis)
        return flows

    @cached_property
    def _flows(self) -> dict[tuple[Range, Range | None], tuple[Flow, ...]]:
        """Those asked for last: a piece's are needed many times over."""
        return {}

    @cached_property
    def fusions(self) -> tuple[Fusion, ...]:
        """Its operations, those together that are launched as one."""
        return fusions(self.operations, self.parameter_names)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """Operations that read other elements than those they write: each has a layout of its own.

        The others take what lies before them as it lies.
        """
        firsts = (fusion.first for fusion in self.fusions)
        return tuple(at for at in firsts if not isinstance(self.operations[at], PerElement))

    @cached_property
    def tail(self) -> int:
        """The last convolution; the first operation where there is none."""
        found = [at for at, step in enumerate(self.operations) if isinstance(step, FILTERED)]
        return found[-1] if found else 0

    @cached_property
    def tail_dtype(self) -> str:
        """The type in which the tail is computed: wide where alpha or beta scales its result."""
        return self.dtype if self.scaling("y") == (1, 0) else ACCUMULATOR[self.dtype]

    @cached_property
    def seams(self) -> tuple[int, ...]:
        """Operations before which it may be cut into shorter chains: what lies between is rounded.

        So a tail that is computed in a wider type stays whole.
        """
        starts = (fusion.first for fusion in self.fusions[1:])
        last = self.tail if self.tail_dtype != self.dtype else len(self.operations)
        return tuple(start for start in starts if start <= last)

    def row_key(self, piece: Piece) -> Hashable:
        """Key of rows: how many each operation makes, needs, finds and keeps, and its padding.

        Of those that depend on where their rows lie, that too.
        """
        flows = self.flow(piece.h_y, piece.after)
        if not self._placed:
            return tuple([flow.key for flow in flows])
        phases = tuple([op.phase(flows[at].made, self.row_axis) for at, op in self._placed])
        return (*[flow.key for flow in flows], phases)

    @cached_property
    def _placed(self) -> tuple[tuple[int, PositionDependent], ...]:
        """The operations whose pieces depend on where they lie, each with its place."""
        return tuple(
            (at, s) for at, s in enumerate(self.operations) if isinstance(s, PositionDependent)
        )

    @cached_property
    def _alike(self) -> int:
        """Pieces of a multiple of so many rows are alike, but for the borders.

        They move each operation's rows by whole cycles of what it looks at.
        """
        moved, rows = Fraction(1), 1
        for operation in reversed(self.operations):
            if isinstance(operation, PositionDependent):
                cycle = operation.cycle(self.row_axis)
                needed = moved * rows / cycle.outputs
                rows *= needed.denominator
                moved *= Fraction(cycle.elements, cycle.outputs)
            elif isinstance(operation, Windowed):
                moved *= operation.window_rows(self.row_axis).stride
        return rows

    def reads_nothing(self, rows: Range) -> bool:
        """True if x, or an intermediate, has no rows in a piece of these rows."""
        needed = needed_rows(self.operations, rows, self.row_axis)
        return any(of_operation.start == of_operation.stop for of_operation in needed)

    def on_tile(self, tile: Tile) -> Self:
        images, channels = tile.shape[:2]
        operations, sites = list[Operation](), tile.sites
        for operation in reversed(self.operations):
            if not self.keeps_channels:
                channels = operation.input_shape[1]
            operation, sites = on_sites(operation, images, channels, sites)
            operations.append(operation)
        return replace(self, operations=tuple(reversed(operations)))

    def meets_border(self, piece: Piece) -> bool:
        flows = self.flow(piece.h_y, piece.after)
        placed = dict(self._placed)
        return any(
            placed[at].meets_border(flow.made, self.row_axis)
            if at in placed
            else flow.needed.before or flow.needed.after
            for at, flow in enumerate(flows)
        )

    @cached_property
    def _wholes(self) -> Mapping[str, Region]:
        return {
            name: tuple((0, extent) for extent in operand.shape)
            for name, operand in self.operands.items()
        }

    def region(self, name: str, piece: Piece) -> Region:
        whole = self._wholes[name]
        if name == "y":
            return replace_rows((piece.n, piece.c_y, *whole[2:]), piece.h_y, self.row_axis)
        if name == "x":
            needed = self.flow(piece.h_y, piece.after)[0].needed
            if self.convolution is not None:
                channels = self.convolution.input_channels(piece.c_y, piece.c_x)
            else:
                channels = whole[1] if not self.channels_may_be_cut else piece.c_y
            rows = (needed.start, needed.stop)
            return replace_rows((piece.n, channels, *whole[2:]), rows, self.row_axis)
        owner = self._owners[name]
        c_y = piece.c_y if self.channels_may_be_cut else (0, self.operations[owner].output_shape[1])
        if isinstance(self.operations[owner], FILTERED):
            return (c_y, piece.c_x, *whole[2:]) if self.channels_may_be_cut else whole
        outputs = self.flow(piece.h_y, piece.after)[owner].made
        spatial = ((0, extent) for extent in self.operations[owner].output_shape[2:])
        cut = replace_rows((piece.n, c_y, *spatial), outputs, self.row_axis)
        return broadcast_region(self.operands[name].shape, cut)

    def on_piece(self, index: int, piece: Piece, layout: str = "") -> Any:
        """Return one operation on the rows, images and channels of a piece.

        A convolution that may be cut along channels comes in `layout`, if it is given.
        """
        operation, flow = self.operations[index], self.flow(piece.h_y, piece.after)[index]
        count = piece.n[1] - piece.n[0]
        if isinstance(operation, Convolution) and self.convolution is not None:
            return operation.on_channels(
                count, piece.c_y, piece.c_x, flow.needed, layout, self.row_axis
            )
        channels = operation.input_shape[1]
        if self.channels_may_be_cut:
            channels = piece.c_y[1] - piece.c_y[0]
        if isinstance(operation, PositionDependent):
            return operation.on_rows(count, flow.made, flow.needed, channels, self.row_axis)
        return operation.on_piece(count, flow.needed, channels, self.row_axis)
