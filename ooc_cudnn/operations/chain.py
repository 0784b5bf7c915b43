"""A chain: operations run back to back on one piece while it is on the device.

A chain answers everything the planner and the schedule ask of a call: along which axes it may be
cut and where, which region of each operand a piece needs, and what to launch on that piece. A fused
function is a chain; a plain function is a chain of one.

Borders inside a chain: the rows of an intermediate are clipped to the intermediate tensor, and what
the next operation needs beyond them is that operation's own padding (DESIGN.md section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.base import Operation, Shape
from ooc_cudnn.operations.bias import AddTensor
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.window import Range, Rows, ranges
from ooc_cudnn.tensor import ACCUMULATOR, DTYPES
from perfmodel import Split

Region = tuple[Range, ...]

#: The axes a call is cut along, in the paper's loop order (outermost first).
AXES = ("n", "c_y", "h_y", "c_x")


class Piece(NamedTuple):
    """One piece of a call: a range on each axis it is cut along."""

    n: Range
    c_y: Range
    h_y: Range
    c_x: Range


class Operand(NamedTuple):
    """An operand of a chain: its shape, and the axes on which its region depends."""

    shape: Shape
    dtype: str
    axes: frozenset[str]


class Buffer(NamedTuple):
    """A tensor that a launch reads or writes."""

    shape: Shape
    dtype: str
    order: str

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype]


class Launch(NamedTuple):
    """One operation on one piece: names of the buffers it reads and of the one it writes.

    Inputs by class: Convolution (x, w); Relayout (x,); Pointwise (value, addend, shift, old), where
    "" stands for an operand that is absent.
    """

    operation: Convolution | Pointwise | Relayout
    inputs: tuple[str, ...]
    output: str


class Elementwise(NamedTuple):
    """Bias and activation that follow each other, to be fused into one pass."""

    shift: str = ""
    mode: str = "identity"
    coef: float = 0.0


class Accumulation(NamedTuple):
    """Where a piece stands in the sum over cX: alone, first, in the middle or last."""

    first: bool = True
    last: bool = True


ALONE = Accumulation()


@dataclass(frozen=True)
class Chain:
    """Operations from x to y, and ``y = alpha * result + beta * y`` at the end.

    Cutting along channels needs a chain with at most one convolution, and that one first: after a
    second one every output channel depends on all channels of the first.
    """

    operations: tuple[Operation, ...]
    dtype: str
    alpha: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not self.operations:
            raise ValueError("operations must hold at least one operation")
        for earlier, later in zip(self.operations, self.operations[1:], strict=False):
            if earlier.output_shape != later.input_shape:
                raise ValueError(
                    f"operations do not meet: {earlier.name} gives shape {earlier.output_shape}, "
                    f"{later.name} takes {later.input_shape}"
                )

    # Operands ---------------------------------------------------------------------------------

    @cached_property
    def parameter_names(self) -> tuple[tuple[str, ...], ...]:
        """Operand names of each operation's parameters: "w", "b", numbered where they repeat."""
        names = [parameter.name for step in self.operations for parameter in step.parameters]
        return tuple(
            tuple(
                p.name if names.count(p.name) == 1 else f"{p.name}{index}" for p in step.parameters
            )
            for index, step in enumerate(self.operations)
        )

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        """Every operand by name: x, the parameters, y."""
        grouped = self.convolution is not None and self.convolution.groups > 1
        x_axes = frozenset({"n", "h_y", "c_x"} | ({"c_y"} if grouped else set()))
        if self.convolution is None:  # elementwise only: the channels of x are those of y
            x_axes = frozenset({"n", "h_y", "c_y"})
        found = {"x": Operand(self.operations[0].input_shape, self.dtype, x_axes)}
        for operation, names in zip(self.operations, self.parameter_names, strict=True):
            for parameter, name in zip(operation.parameters, names, strict=True):
                axes = {"c_y", "c_x"} if isinstance(operation, Convolution) else {"c_y"}
                found[name] = Operand(parameter.shape, self.dtype, frozenset(axes))
        found["y"] = Operand(
            self.operations[-1].output_shape, self.dtype, frozenset({"n", "c_y", "h_y"})
        )
        return found

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Operands that are copied in: all but y, which is read only where beta is not 0."""
        return tuple(name for name in self.operands if name != "y" or self.beta != 0)

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
        n, c_y, h_y = self.operations[-1].output_shape[:3]
        c_x = self.convolution.c_x_extent if self.convolution else 1
        return Split(n=n, c_y=c_y, c_x=c_x, h_y=h_y)

    def is_legal(self, split: Split) -> bool:
        """Whether the chain can be cut so (whatever the memory)."""
        whole = self.extents
        if not self.channels_may_be_cut:
            return split.c_y >= whole.c_y and split.c_x >= whole.c_x
        if self.convolution is None or split.c_x >= whole.c_x:
            return True
        return self.convolution.c_x_may_be_cut(split.c_y)

    def ranges(self, split: Split) -> Mapping[str, tuple[Range, ...]]:
        """Ranges of each axis under a split, in order.

        Raises
        ------
        ValueError
            If the chain cannot be cut so.
        """
        if not self.is_legal(split):
            raise ValueError(f"this chain cannot be cut along channels as in {split}")
        whole, convolution = self.extents, self.convolution
        return {
            "n": ranges(whole.n, split.n),
            "h_y": ranges(whole.h_y, split.h_y),
            "c_y": convolution.c_y_ranges(split.c_y)
            if convolution
            else ranges(whole.c_y, split.c_y),
            "c_x": convolution.c_x_ranges(split.c_x) if convolution else ((0, 1),),
        }

    def rows(self, h_y: Range) -> tuple[Rows, ...]:
        """Input rows of every operation, first to last, when the chain gives output rows `h_y`."""
        needed: list[Rows] = []
        for operation in reversed(self.operations):
            needed.append(operation.input_rows(h_y))
            h_y = (needed[-1].start, needed[-1].stop)
        return tuple(reversed(needed))

    def region(self, name: str, piece: Piece) -> Region:
        """Region of an operand that a piece reads (or, of y, writes)."""
        shape = self.operands[name].shape
        if name == "y":
            return (piece.n, piece.c_y, piece.h_y, *((0, e) for e in shape[3:]))
        if name == "x":
            rows = self.rows(piece.h_y)[0]
            if self.convolution is not None:
                channels = self.convolution.input_channels(piece.c_y, piece.c_x)
            else:
                channels = (0, shape[1]) if not self.channels_may_be_cut else piece.c_y
            return (piece.n, channels, (rows.start, rows.stop), *((0, e) for e in shape[3:]))
        if not self.channels_may_be_cut:
            return tuple((0, extent) for extent in shape)
        if len(shape) == 1:
            return (piece.c_y,)
        return (piece.c_y, piece.c_x, *((0, extent) for extent in shape[2:]))

    # Launching --------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> tuple[tuple[int, Elementwise | None], ...]:
        """The chain as (index of a window operation, None) and (-1, fused elementwise pass)."""
        found: list[tuple[int, Elementwise | None]] = []
        for index, operation in enumerate(self.operations):
            previous = found[-1][1] if found else None
            if isinstance(operation, AddTensor):
                found.append((-1, Elementwise(shift=self.parameter_names[index][0])))
            elif isinstance(operation, Activation):
                if previous is not None and previous.mode == "identity":
                    found.pop()
                else:
                    previous = Elementwise()
                found.append((-1, previous._replace(mode=operation.mode, coef=operation.coef)))
            else:
                found.append((index, None))
        return tuple(found)

    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        """What to run on a piece, and every buffer it takes, by name.

        Parameters
        ----------
        layout : str
            Memory order in which windows are computed.
        orders : mapping
            Memory order in which x, the filters and y lie; one that differs from `layout` is
            re-laid on the device.
        accumulation : Accumulation
            Where the piece stands in the sum over cX.
        """
        return _Builder(self, piece, layout, orders, accumulation).build()


class _Builder:
    """Builds the launches of one piece; one method for each part of a chain's way."""

    def __init__(
        self,
        chain: Chain,
        piece: Piece,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation,
    ) -> None:
        self.chain, self.piece, self.layout = chain, piece, layout
        self.accumulation = accumulation
        self.accumulating = accumulation != ALONE
        self.launched: list[Launch] = []
        self.buffers: dict[str, Buffer] = {}
        for name, operand in chain.operands.items():
            shape = tuple(stop - start for start, stop in chain.region(name, piece))
            order = orders.get(name, "channels_first")
            self.buffers[name] = Buffer(shape, operand.dtype, order)
        self.current = "x"

    def build(self) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        stages = self.chain.stages
        last_window = max((at for at, (index, _) in enumerate(stages) if index >= 0), default=-1)
        rows = self.chain.rows(self.piece.h_y)
        for at, (index, elementwise) in enumerate(stages[: last_window + 1]):
            if elementwise is None:
                self._window(index, rows[index], is_last=at == last_window)
            else:
                self._elementwise(elementwise, f"elementwise{at}")
        if self.accumulating and not self._accumulate():
            return tuple(self.launched), self.buffers
        self._finish(tuple(e for _, e in stages[last_window + 1 :] if e is not None))
        return tuple(self.launched), self.buffers

    def _launch(
        self,
        operation: Convolution | Pointwise | Relayout,
        inputs: tuple[str, ...],
        output: str,
        dtype: str,
        order: str,
        shape: Shape,
    ) -> None:
        if output != "y":
            self.buffers[output] = Buffer(shape, dtype, order)
        if 0 in shape:
            return  # the next operation sees padding alone
        self.launched.append(Launch(operation, inputs, output))

    def _in_order(self, name: str, order: str, target: str) -> str:
        """Return the name of the buffer that holds `name` in `order`, re-laying it if need be."""
        have = self.buffers[name]
        if have.order == order or len(have.shape) < 3:
            return name
        self._launch(
            Relayout(have.shape, have.dtype), (name,), target, have.dtype, order, have.shape
        )
        return target

    def _window(self, index: int, rows: Rows, *, is_last: bool) -> None:
        chain, piece = self.chain, self.piece
        whole = chain.operations[index]
        if not isinstance(whole, Convolution):
            raise TypeError(f"{whole.name} cannot be launched as a window operation")
        if chain.convolution is not None:
            operation = whole.on_channels(piece.n[1] - piece.n[0], piece.c_y, piece.c_x, rows)
        else:
            operation = whole.on_piece(piece.n[1] - piece.n[0], rows)
        dtype = ACCUMULATOR[chain.dtype] if self.accumulating else chain.dtype
        operation = replace(operation, layout=self.layout, y_dtype=dtype)
        (w,) = chain.parameter_names[index]
        source = self._in_order(self.current, self.layout, f"{self.current}_relaid")
        filter_ = self._in_order(w, self.layout, f"{w}_relaid")
        in_place = (
            is_last
            and not self.accumulating
            and not chain.beta
            and self.buffers["y"].order == self.layout
        )
        self.current = "y" if in_place else f"product{index}"
        self._launch(
            operation, (source, filter_), self.current, dtype, self.layout, operation.output_shape
        )

    def _accumulate(self) -> bool:
        """Add the product to the sums; return whether the piece completes them."""
        product = self.buffers[self.current]
        if self.accumulation.first:
            # The first product starts the sums: its launch writes them directly.
            launch = self.launched.pop()
            self.launched.append(launch._replace(output="sums"))
            self.buffers["sums"] = self.buffers.pop(self.current)
            self.current = "sums"
            return False
        self.buffers["sums"] = product
        add = Pointwise(product.shape, product.dtype, product.dtype, has_addend=True)
        self.launched.append(Launch(add, (self.current, "sums", "", ""), "sums"))
        self.current = "sums"
        return self.accumulation.last

    def _elementwise(
        self, stage: Elementwise, fresh: str, *, to_y: bool = False, alpha: float = 1.0
    ) -> None:
        """One fused pass, in place unless it reads x or its result is y."""
        have = self.buffers[self.current]
        beta = self.chain.beta if to_y else 0.0
        target = "y" if to_y else (fresh if self.current == "x" else self.current)
        dtype = self.chain.dtype if to_y else have.dtype
        operation = Pointwise(
            have.shape,
            have.dtype,
            dtype,
            stage.mode,
            stage.coef,
            alpha,
            beta,
            has_shift=bool(stage.shift),
        )
        inputs = (self.current, "", stage.shift, "y" if beta else "")
        self._launch(operation, inputs, target, dtype, have.order, have.shape)
        self.current = target

    def _finish(self, trailing: tuple[Elementwise, ...]) -> None:
        """From the last window's result to y: memory order, elementwise passes, alpha and beta."""
        chain, y_order = self.chain, self.buffers["y"].order
        scaled = chain.alpha != 1 or chain.beta != 0
        have = self.buffers[self.current]
        if have.order != y_order:
            direct = not chain.beta and have.dtype == chain.dtype
            self.current = self._in_order(self.current, y_order, "y" if direct else "y_relaid")
        if not trailing and (scaled or self.current != "y"):
            trailing = (Elementwise(),)
        for at, stage in enumerate(trailing):
            final = at == len(trailing) - 1
            self._elementwise(
                stage, f"trailing{at}", to_y=final, alpha=chain.alpha if final else 1.0
            )
