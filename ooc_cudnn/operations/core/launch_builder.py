"""Builds the launches of one piece; intermediates of different times share their memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ooc_cudnn.operations.core.call import ALONE, Accumulation, Piece, TiledCall
from ooc_cudnn.operations.core.launch import Buffer, Launch, Launchable
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.core.row_axis import replace_rows
from ooc_cudnn.tensor import ACCUMULATOR, INTEGERS


class Builder:
    """The launches of one piece, and its buffers.

    An intermediate made by `scratch` takes the first block that is free, and gives it back in
    `release`; so blocks depend on the order of operations alone, and are the same in every piece.
    """

    def __init__(
        self,
        call: TiledCall,
        piece: Piece,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation,
    ) -> None:
        self.call, self.piece, self.layout = call, piece, layout
        self.accumulation = accumulation
        self.accumulating = accumulation != ALONE
        self.launched: list[Launch] = []
        self.buffers: dict[str, Buffer] = {}
        self._busy: set[str] = set()
        for name, operand in call.operands.items():
            region = call.region(name, piece)
            if region is None:
                continue
            shape = tuple([stop - start for start, stop in region])
            self.buffers[name] = Buffer(shape, operand.dtype, orders.get(name, "channels_first"))

    def scratch(self, name: str, shape: Shape, dtype: str, order: str = "channels_first") -> str:
        """Make an intermediate in the first free block; return its name."""
        number = 0
        while (block := f"scratch {number}") in self._busy:
            number += 1
        self._busy.add(block)
        self.buffers[name] = Buffer(shape, dtype, order, block)
        return name

    def release(self, *names: str) -> None:
        """Say that intermediates were read for the last time; operands and states stay."""
        for name in names:
            if name and self.buffers[name].block.startswith("scratch "):
                self._busy.discard(self.buffers[name].block)

    def rows_of(self, name: str, part: str, start: int, count: int) -> str:
        """Call a range of a buffer's rows `part`; return that."""
        whole, axis = self.buffers[name], self.call.row_axis
        self.buffers[part] = whole._replace(
            shape=replace_rows(whole.shape, count, axis),
            block=whole.block or name,
            rows=(start, whole.shape[axis]),
            row_axis=axis,
        )
        return part

    def state(self, name: str, shape: Shape, dtype: str, order: str = "channels_first") -> str:
        """Make a buffer that keeps its content from piece to piece."""
        self.buffers[name] = Buffer(shape, dtype, order)
        return name

    def launch(self, operation: Launchable, inputs: tuple[str, ...], output: str) -> None:
        """Launch, unless there is nothing to write."""
        if 0 not in self.buffers[output].shape:
            self.launched.append(Launch(operation, inputs, output))

    def in_order(self, name: str, order: str) -> str:
        """Return the name of a buffer that holds `name` in `order`, re-laying it if need be."""
        have = self.buffers[name]
        if have.order == order or len(have.shape) < 3:
            return name
        target = self.scratch(f"{name}_relaid", have.shape, have.dtype, order)
        self.launch(Relayout(have.shape, have.dtype), (name,), target)
        return target

    def taken(self, name: str, order: str, dtype: str) -> str:
        """Return the name of a buffer that holds `name` in `order` and in a type, made if need be.

        An operation whose result must be wider than its operands takes these widened. Integers
        (indices, masks, images, a seed) are taken as they lie.
        """
        if self.buffers[name].dtype in INTEGERS:
            return name
        laid = self.in_order(name, order)
        have = self.buffers[laid]
        if have.dtype == dtype:
            return laid
        target = self.scratch(f"{name}_{dtype}", have.shape, dtype, have.order)
        self.launch(Pointwise(have.shape, have.dtype, dtype), (laid, "", "", ""), target)
        if laid != name:
            self.release(laid)
        return target

    def copy(self, source: str, target: str) -> None:
        """Copy between buffers of one shape."""
        have = self.buffers[source]
        self.launch(Relayout(have.shape, have.dtype), (source,), target)

    def product_dtype(self, result: str) -> str:
        """The type in which the product of a result is made.

        Of half types float32, where it is added up or scaled: a result is rounded once, after that.
        """
        dtype = self.buffers[result].dtype
        wide = self.accumulating or self.call.scaling(result) != (1, 0)
        return ACCUMULATOR[dtype] if wide else dtype

    def may_write(self, result: str, dtype: str, order: str) -> bool:
        """True if an operation may write a result itself: nothing is left to be done to it."""
        have = self.buffers[result]
        return (
            not self.accumulating
            and self.call.alpha == 1
            and self.call.beta == 0
            and have.dtype == dtype
            and (have.order == order or len(have.shape) < 3)
        )

    def make(
        self,
        operation: Launchable,
        inputs: tuple[str, ...],
        result: str,
        order: str,
        *,
        done: tuple[str, ...] = (),
        sums: str = "sums",
    ) -> None:
        """Compute a result in `order`, or this piece's part of it; add up, and finish.

        `done` are intermediates that the operation is the last to read.
        """
        product, dtype = result, self.product_dtype(result)
        if not self.may_write(result, dtype, order):
            shape = self.buffers[result].shape
            product = self.scratch(f"product of {result}", shape, dtype, order)
        self.launch(operation, inputs, product)
        self.release(*done)
        if self.accumulating:
            if not self.accumulate(product, sums):
                return
            product = sums
        self.finish(product, result)

    def target(self, result: str, order: str = "") -> str:
        """Return the buffer that an operation writes a result to, if it makes several at once.

        It is in `order`, or in that of the result. Of half types it is float32 where it is added up
        or scaled. `complete` makes the result of it.
        """
        have, plain = self.buffers[result], self.call.scaling(result) == (1, 0)
        order, summed = order or have.order, self._is_summed(result)
        dtype = have.dtype if plain and not summed else ACCUMULATOR[have.dtype]
        if summed:
            sums = self.state(f"sums of {result}", have.shape, dtype, order)
            if self.accumulation.first:
                return sums
        elif plain and (have.order == order or len(have.shape) < 3):
            return result
        return self.scratch(f"product of {result}", have.shape, dtype, order)

    def complete(self, result: str, target: str) -> None:
        """Make a result of its `target`: add up, and finish."""
        if not self._is_summed(result):
            self.finish(target, result)
            return
        sums = f"sums of {result}"
        if target != sums:
            have = self.buffers[target]
            add = Pointwise(have.shape, have.dtype, have.dtype, has_addend=True)
            self.launch(add, (target, sums, "", ""), sums)
            self.release(target)
        if self.accumulation.last:
            self.finish(sums, result)

    def _is_summed(self, result: str) -> bool:
        """True if this piece makes a part of a result, which is summed over the reduced axes."""
        axes = self.call.operands[result].axes
        return self.accumulating and not axes.intersection(self.call.reduced)

    def gather(
        self,
        name: str,
        shape: Shape,
        operation: Launchable,
        merge: Launchable,
        inputs: tuple[str, ...],
    ) -> str:
        """Sum up a piece, and merge it into what was summed up before; return the state's name."""
        state = self.state(name, shape, "float64")
        if self.accumulation.first:
            self.launch(operation, inputs, state)
            return state
        part = self.scratch("part", shape, "float64")
        self.launch(operation, inputs, part)
        self.launch(merge, (state, part), state)
        return state

    def accumulate(self, product: str, sums: str = "sums", into: str = "") -> bool:
        """Add a product to the sums of its kind; return whether the piece completes them.

        The last addition goes `into` another buffer, if one is named; it may be narrower.
        """
        have = self.buffers[product]
        self.state(sums, have.shape, have.dtype, have.order)
        if self.accumulation.first:
            # The first product starts the sums: its launch writes them directly.
            index = max((i for i, made in enumerate(self.launched) if made.output == product),
                     default=None)  # fmt: skip
            if index is not None:
                self.launched[index] = self.launched[index]._replace(output=sums)
        else:
            target = (self.accumulation.last and into) or sums
            dtype = self.buffers[target].dtype
            add = Pointwise(have.shape, have.dtype, dtype, has_addend=True)
            self.launch(add, (product, sums, "", ""), target)
        self.release(product)
        return self.accumulation.last

    def finish(
        self, name: str, result: str, pointwise: Pointwise | None = None, shift: str = ""
    ) -> None:
        """Turn a computed tensor into a result: memory order, an elementwise pass, alpha and beta.

        Parameters
        ----------
        pointwise : Pointwise, optional
            The pass to fuse alpha and beta into; needed to do more than that.
        shift : str
            Its shift.
        """
        if name == result:
            return
        (alpha, beta), target = self.call.scaling(result), self.buffers[result]
        have = self.buffers[name]
        plain = alpha == 1 and beta == 0
        if pointwise is None and plain and have.dtype == target.dtype:
            self.copy(name, result)  # of another memory order, or of a state
            self.release(name)
            return
        laid = self.in_order(name, target.order)
        if laid != name:
            self.release(name)
        operation = pointwise or Pointwise(have.shape, have.dtype, target.dtype)
        if not plain or operation.dtype != target.dtype:
            operation = replace(operation, dtype=target.dtype, alpha=alpha, beta=beta)
        self.launch(operation, (laid, "", shift, result if beta else ""), result)
        self.release(laid)


class BuiltCall(TiledCall):
    """A call that says what to launch on a piece to a builder."""

    #: What builds its launches.
    builder: ClassVar[type[Builder]] = Builder

    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        made = self.builder(self, piece, layout, orders, accumulation)
        self.build(made)
        return tuple(made.launched), made.buffers

    @abstractmethod
    def build(self, build: Any) -> None:
        """Launch everything on the builder's piece."""
