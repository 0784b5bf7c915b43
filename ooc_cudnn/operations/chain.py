"""A chain: operations run back to back on one piece while it is on the device.

A chain says along which axes it may be cut and where, which region of each operand a piece needs,
and what to launch on that piece. A fused function is a chain; a plain function is a chain of one.

Borders inside a chain: the rows of an intermediate are clipped to the intermediate tensor, and what
the next operation needs beyond them is that operation's own padding (DESIGN.md section 3).

Halo inside a chain: where pieces follow each other down the rows, the last rows of each
intermediate stay on the device (`flow`), so nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.base import Array, Operation, numbered
from ooc_cudnn.operations.chain_builder import ChainBuilder, Stage, stages
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.rows import ROW_AXIS, cut_axes, height, with_rows
from ooc_cudnn.operations.splittable import (
    ALONE,
    Accumulation,
    Buffer,
    Launch,
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    Splittable,
    random_range,
)
from ooc_cudnn.operations.window import Range, Ranges, Rows, ranges
from ooc_cudnn.tensor import ACCUMULATOR
from perfmodel import Split
from perfmodel.cached import cached_property

#: Rows of a patch that `verify` looks at, and channels.
PATCH_ROWS = 2
PATCH_CHANNELS = 4
#: Flows of a chain that are kept.
REMEMBERED_FLOWS = 256


class Flow(NamedTuple):
    """The rows of one operation in one piece.

    Attributes
    ----------
    made : (start, stop)
        Output rows that the piece computes: all it needs, less those that earlier pieces made.
    needed : Rows
        Input rows of those, with the padding that was clipped off.
    stored : (start, stop)
        Input rows that were kept from the pieces before, those among them that are not needed.
    kept : (start, stop)
        Of the needed input rows, those that are stored.
    keeps : (start, stop)
        Input rows to be stored for the pieces to come.
    """

    made: Range
    needed: Rows
    stored: Range
    kept: Range
    keeps: Range


@dataclass(frozen=True)
class Chain(Splittable):
    """Operations from x to y, and ``y = alpha * result + beta * y`` at the end.

    Cutting along channels needs a chain with at most one convolution, and that one first: after a
    second one every output channel depends on all channels of the first.
    """

    operations: tuple[Operation, ...]
    dtype: str
    alpha: float = 1.0
    beta: float = 0.0
    row_axis: int = ROW_AXIS

    def __post_init__(self) -> None:
        if not self.operations:
            raise ValueError("operations must hold at least one operation")
        for at, (earlier, later) in enumerate(
            zip(self.operations, self.operations[1:], strict=False)
        ):
            if earlier.output_shape != later.input_shape:
                raise ValueError(
                    f"operations do not meet: operation {at}, {earlier.name}, gives shape "
                    f"{earlier.output_shape}, operation {at + 1}, {later.name}, takes "
                    f"{later.input_shape}"
                )

    # Operands ---------------------------------------------------------------------------------

    @cached_property
    def parameter_names(self) -> tuple[tuple[str, ...], ...]:
        """Operand names of each operation's parameters: "w", "b", numbered where they repeat."""
        return numbered([tuple(p.name for p in step.parameters) for step in self.operations])

    @cached_property
    def _owners(self) -> Mapping[str, int]:
        """Which operation each parameter belongs to."""
        return {name: at for at, names in enumerate(self.parameter_names) for name in names}

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """Every operand by name: x, the parameters, y."""
        found = {"x": Operand(self.operations[0].input_shape, self.dtype, self._x_axes())}
        for operation, names in zip(self.operations, self.parameter_names, strict=True):
            for parameter, name in zip(operation.parameters, names, strict=True):
                if isinstance(operation, Convolution):
                    axes = {"c_y", "c_x"}
                elif len(parameter.shape) == 1:
                    axes = {"c_y"}
                else:
                    axes = set(cut_axes(parameter.shape, self.row_axis))
                dtype = parameter.dtype or self.dtype
                found[name] = Operand(parameter.shape, dtype, frozenset(axes))
        found["y"] = Operand(
            self.operations[-1].output_shape, self.dtype, frozenset({"n", "c_y", "h_y"})
        )
        return found

    def _x_axes(self) -> frozenset[str]:
        if self.convolution is None:  # the channels of x are those of y
            return frozenset({"n", "h_y", "c_y"})
        grouped = {"c_y"} if self.convolution.groups > 1 else set()
        return frozenset({"n", "h_y", "c_x"} | grouped)

    # Cutting ----------------------------------------------------------------------------------

    @cached_property
    def convolution(self) -> Convolution | None:
        """The convolution, if there is exactly one and it comes first."""
        windows = [step for step in self.operations if isinstance(step, Convolution)]
        first = self.operations[0]
        return first if len(windows) == 1 and isinstance(first, Convolution) else None

    @cached_property
    def channels_may_be_cut(self) -> bool:
        """Whether the chain may be cut along cY (and cX, if it has a convolution)."""
        return self.convolution is not None or not any(
            isinstance(step, Convolution) for step in self.operations
        )

    @cached_property
    def extents(self) -> Split:
        """Full sizes of the axes: the split that is one piece."""
        shape = self.operations[-1].output_shape
        c_x = self.convolution.c_x_extent if self.convolution else 1
        return Split(n=shape[0], c_y=shape[1], c_x=c_x, h_y=height(shape, self.row_axis))

    def may_cut(self, axis: str) -> bool:
        """Rows and images always; channels as the class says."""
        return axis in ("n", "h_y") or self.channels_may_be_cut

    def is_legal(self, split: Split) -> bool:
        """Whether the chain can be cut so (whatever the memory)."""
        whole = self.extents
        if not self.channels_may_be_cut:
            return split.c_y >= whole.c_y and split.c_x >= whole.c_x
        if self.convolution is None or split.c_x >= whole.c_x:
            return True
        return self.convolution.c_x_may_be_cut(split.c_y)

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        """Cut an axis; no range of channels straddles a group."""
        if axis == "c_y" and self.convolution is not None:
            return self.convolution.c_y_ranges(size)
        if axis == "c_x":
            return self.convolution.c_x_ranges(size) if self.convolution else ranges(1, 1)
        return ranges(getattr(self.extents, axis), size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        """How many regions the ranges of an axis make: pieces of cY in one group see one of x."""
        if name == "x" and axis == "c_y" and self.convolution is not None:
            if self.convolution.groups == 1:
                return 1
            return cut.places
        return super().distinct(name, axis, cut)

    def rows(self, h_y: Range) -> tuple[Rows, ...]:
        """Input rows of every operation, first to last, when the chain gives output rows `h_y`."""
        needed: list[Rows] = []
        for operation in reversed(self.operations):
            needed.append(operation.input_rows(h_y, self.row_axis))
            h_y = (needed[-1].start, needed[-1].stop)
        return tuple(reversed(needed))

    def flow(self, h_y: Range, after: Range | None) -> tuple[Flow, ...]:
        """The rows of every operation, first to last, in the piece that gives output rows `h_y`.

        With `after`, the rows of the piece before, only what that one (and those before it) did not
        make is computed; without, everything the piece needs.
        """
        key = h_y, after
        found = self._flows.get(key)
        if found is None:
            if len(self._flows) >= REMEMBERED_FLOWS:
                self._flows.clear()
            found = self._flows[key] = self._flow(h_y, after)
        return found

    @cached_property
    def _flows(self) -> dict[tuple[Range, Range | None], tuple[Flow, ...]]:
        """Those asked for last: a piece's are needed many times over."""
        return {}

    def _flow(self, h_y: Range, after: Range | None) -> tuple[Flow, ...]:
        # Up to which row each operation's input, and at last y, was made by the pieces before.
        done = [0] * (len(self.operations) + 1)
        if after is not None:
            done = [*(rows.stop for rows in self.rows(after)), after[1]]
        found: list[Flow] = []
        made = h_y
        for index in reversed(range(len(self.operations))):
            operation = self.operations[index]
            needed = operation.input_rows(made, self.row_axis)
            if made[0] == made[1] and after is not None:
                needed = Rows(done[index], done[index], 0, 0)
            start = max(needed.start, done[index]) if index else needed.start
            earlier = (min(start, needed.stop), needed.stop)
            kept = (needed.start, max(needed.start, earlier[0]))
            stored = keeps = (earlier[1], earlier[1])
            if index and kept[0] < kept[1]:
                stored = (self._first_needed(index, done[index + 1], done[index]), done[index])
            if index and made[1] < self.heights[index]:
                keeps = (self._first_needed(index, made[1], earlier[1]), earlier[1])
            found.append(Flow(made, needed, stored, kept, keeps))
            made = earlier
        return tuple(reversed(found))

    def _first_needed(self, index: int, row: int, end: int) -> int:
        """The first input row, before `end`, that an operation's output needs from `row` on."""
        needed = self.operations[index].input_rows((row, row + 1), self.row_axis)
        return min(needed.start, end)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Its operations, those together that are launched as one."""
        return stages(self)

    @cached_property
    def tail(self) -> int:
        """The last convolution; the first operation where there is none."""
        found = [at for at, step in enumerate(self.operations) if isinstance(step, Convolution)]
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
        starts = (stage.first for stage in self.stages[1:])
        last = self.tail if self.tail_dtype != self.dtype else len(self.operations)
        return tuple(start for start in starts if start <= last)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Rows of each operation's output."""
        shapes = (operation.output_shape for operation in self.operations)
        return tuple(height(shape, self.row_axis) for shape in shapes)

    def row_key(self, piece: Piece) -> Hashable:
        """How many rows each operation makes, needs, finds and keeps, and the padding it sees."""
        return tuple(
            (
                f.made[1] - f.made[0],
                f.needed.stop - f.needed.start,
                f.needed.before,
                f.needed.after,
                f.kept[1] - f.kept[0],
                f.kept[0] - f.stored[0],
                f.stored[1] - f.stored[0],
                f.keeps[1] - f.keeps[0],
                f.keeps[0] - f.needed.start,
            )
            for f in self.flow(piece.h_y, piece.after)
        )

    def meets_border(self, piece: Piece) -> bool:
        """Whether some operation sees padding above or below."""
        return any(f.needed.before or f.needed.after for f in self.flow(piece.h_y, piece.after))

    @cached_property
    def _wholes(self) -> Mapping[str, Region]:
        """All of each operand."""
        return {
            name: tuple((0, extent) for extent in operand.shape)
            for name, operand in self.operands.items()
        }

    def region(self, name: str, piece: Piece) -> Region:
        """Region of an operand that a piece reads (or, of y, writes)."""
        shape, whole = self.operands[name].shape, self._wholes[name]
        if name == "y":
            return with_rows((piece.n, piece.c_y, *whole[2:]), piece.h_y, self.row_axis)
        if name == "x":
            needed = self.flow(piece.h_y, piece.after)[0].needed
            if self.convolution is not None:
                channels = self.convolution.input_channels(piece.c_y, piece.c_x)
            else:
                channels = whole[1] if not self.channels_may_be_cut else piece.c_y
            rows = (needed.start, needed.stop)
            return with_rows((piece.n, channels, *whole[2:]), rows, self.row_axis)
        owner = self._owners[name]
        c_y = piece.c_y if self.channels_may_be_cut else (0, self.operations[owner].output_shape[1])
        if isinstance(self.operations[owner], Convolution):
            return (c_y, piece.c_x, *whole[2:]) if self.channels_may_be_cut else whole
        if len(shape) == 1:
            return (c_y,)
        made = self.flow(piece.h_y, piece.after)[owner].made
        cut = with_rows((piece.n, c_y, *whole[2:]), made, self.row_axis)
        return tuple(
            own if extent == 1 else range_
            for own, extent, range_ in zip(whole, shape, cut, strict=True)
        )

    # Launching --------------------------------------------------------------------------------

    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        """Run every operation on the piece, elementwise ones fused where they follow each other."""
        return ChainBuilder(self, piece, layout, orders, accumulation).build()

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one image; a few channels, where these may be cut."""
        whole = self.extents
        channels = (0, whole.c_y)
        if self.channels_may_be_cut:
            first = int(random.integers(whole.c_y))
            group = whole.c_y // (self.convolution.groups if self.convolution else 1)
            channels = (first, min((first // group + 1) * group, first + PATCH_CHANNELS))
        n = int(random.integers(whole.n))
        rows = random_range(random, whole.h_y, PATCH_ROWS)
        return Piece((n, n + 1), channels, rows, (0, whole.c_x))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Operation after operation, by their references."""
        value = read("x", self.region("x", piece))
        size = np.abs(value)
        for index, operation in enumerate(self.operations):
            parameters = [
                read(name, self.region(name, piece)) for name in self.parameter_names[index]
            ]
            step = self.on_piece(index, piece)
            if isinstance(operation, Activation):
                value = step.reference(value)
                # What the activation enlarges errors by; the other modes' slope is about 1.
                slope = abs(operation.coef) if operation.mode in ("elu", "leaky_relu") else 1.0
                size = np.maximum(max(1.0, slope) * size, np.abs(value))
            else:
                value = step.reference(value, *parameters)
                size = step.magnitude(size, *parameters)
        return {"y": (value, size)}

    def on_piece(self, index: int, piece: Piece, layout: str = "") -> Operation:
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
        return operation.on_piece(count, flow.needed, channels, self.row_axis)

    def rounding(self) -> Rounding:
        """The longest sum of its convolutions and averages."""
        terms, arithmetic = 1, self.dtype
        for operation in self.operations:
            if isinstance(operation, Convolution):
                terms = max(terms, int(np.prod(operation.w_shape[1:])))
                arithmetic = operation.precision
            elif isinstance(operation, Pooling) and not operation.is_max:
                terms = max(terms, int(np.prod(operation.window)))
        return Rounding(terms, arithmetic, len(self.operations))
