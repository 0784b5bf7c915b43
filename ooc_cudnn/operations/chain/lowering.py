"""The launches of a chain on one piece.

Elementwise operations that follow each other are one pass. A window operation reads its input from
one tensor: the rows that were kept from the pieces before, and below them those that this piece
makes, written there by the operation before it.

A layout is one of all windows, or one of each, in their order, joined by `SEPARATOR`: what lies in
another one is re-laid before a window reads it.

The result of each operation is rounded to the chain's dtype, as it would be in memory; a bias and
ReLU that a convolution adds itself are part of it (`fused_forward`). Where alpha or beta scales
y, the last convolution and all that follows it are computed in the type of the accumulator, and
rounded once, at the end: what scaling brings into range is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ooc_cudnn.operations.chain.halo_reuse import Fusion
from ooc_cudnn.operations.chain.partition import ChainPieces
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import (
    EPILOGUES,
    FusedConvolution,
    is_faster_fused,
)
from ooc_cudnn.operations.convolution.transposed import TransposedConvolution
from ooc_cudnn.operations.core.call import Accumulation, Piece
from ooc_cudnn.operations.core.elementwise import PerElement
from ooc_cudnn.operations.core.launch import Buffer, Launchable
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor, OpTensor
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.set_reduction import Normalising
from ooc_cudnn.tensor import ACCUMULATOR

#: Between the layouts of windows, where these differ.
SEPARATOR = ", "


class ChainBuilder(Builder):
    """Builds the launches of one piece; one method for each kind of fusion."""

    def __init__(
        self,
        chain: ChainPieces,
        piece: Piece,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation,
    ) -> None:
        super().__init__(chain, piece, layout, orders, accumulation)
        self.chain = chain
        self.flow = chain.flow(piece.h_y, piece.after)
        self.row_axis = chain.row_axis
        self.current = "x"
        layouts = layout.split(SEPARATOR)
        if len(layouts) == 1:
            layouts *= len(chain.windows)
        #: The layout of each window, by its place in the chain.
        self.layouts = dict(zip(chain.windows, layouts, strict=True))

    def chained(self) -> None:
        """Build every fusion; of a sum over cX that is not complete, the convolution alone."""
        left = list(self.chain.fusions)
        while left:
            fusion = left.pop(0)
            epilogue = left.pop(0) if left and self._adds_itself(fusion, left[0]) else None
            following = left[0] if left else None
            if isinstance(self.chain.operations[fusion.first], PerElement):
                self._elementwise(fusion, following)
                continue
            self._window(fusion, following, epilogue)
            if self.accumulating and not self._add_up(fusion, following):
                return
            if following is not None:
                self._hand_on(following)
        self.finish(self.current, "y")

    def launch(self, operation: Launchable, inputs: tuple[str, ...], output: str) -> None:
        """Launch; rows that lie along another axis than the first are written by a copy.

        Kernels other than copies want the spatial axes of what they write to flatten into one.
        """
        buffer = self.buffers[output]
        if buffer.rows is None or buffer.row_axis == ROW_AXIS or isinstance(operation, Relayout):
            super().launch(operation, inputs, output)
            return
        packed = self.scratch(f"{output} packed", buffer.shape, buffer.dtype, buffer.order)
        super().launch(operation, inputs, packed)
        self.copy(packed, output)
        self.release(packed)

    def _add_up(self, fusion: Fusion, following: Fusion | None) -> bool:
        """Add the convolution's product to the sums; return whether they are complete.

        Complete sums are rounded like the product of an uncut convolution.
        """
        complete, have = "sums", self.buffers[self.current]
        if self.accumulation.last and following is not None and have.dtype != self._type(fusion):
            complete = self.scratch("complete", have.shape, self._type(fusion), have.order)
        if not self.accumulate(self.current, into=complete):
            return False
        self.current, self.accumulating = complete, False
        return True

    def _type(self, fusion: Fusion) -> str:
        chain = self.chain
        return chain.tail_dtype if fusion.first >= chain.tail else chain.dtype

    def _in_type(self, operation: Any, dtype: str) -> Any:
        """The same operation on operands of another type."""
        return operation if operation.dtype == dtype else replace(operation, dtype=dtype)

    # Where the result of a fusion goes -----------------------------------------------------------

    def _shape(self, index: int) -> Shape:
        start, stop = self.flow[index].made
        whole = self.chain.operations[index].output_shape
        channels = self.buffers["y"].shape[1] if self.chain.channels_may_be_cut else whole[1]
        shape = (self.buffers["y"].shape[0], channels, *whole[2:])
        return replace_rows(shape, stop - start, self.row_axis)

    def _input_of(self, following: Fusion | None, shape: Shape, dtype: str) -> str | None:
        """The rows of the next window's input that this piece makes; None if they are all of it.

        The rows kept from the pieces before come first.
        """
        if following is None:
            return None
        flow = self.flow[following.first]
        kept = flow.kept[1] - flow.kept[0]
        if isinstance(self.chain.operations[following.first], PerElement):
            return None
        if not kept and flow.keeps[0] >= flow.keeps[1]:
            return None
        rows = kept + shape[self.row_axis]
        name = f"input {following.first}"
        full = replace_rows(shape, rows, self.row_axis)
        self.scratch(name, full, dtype, self.layouts[following.first])
        return self.rows_of(name, f"made {following.first}", kept, rows - kept)

    def _keep(self, index: int) -> None:
        """Complete a window's input with the rows kept before, and keep its last ones."""
        flow, name = self.flow[index], f"input {index}"
        if name not in self.buffers:
            return
        full, height = self.buffers[name], self.buffers[name].shape[self.row_axis]
        kept, keeps = flow.kept[1] - flow.kept[0], flow.keeps[1] - flow.keeps[0]
        store = f"kept {index}"
        if kept:
            # Of what the pieces before stored, this one may need the last rows alone.
            skipped, stored = flow.kept[0] - flow.stored[0], flow.stored[1] - flow.stored[0]
            shape = replace_rows(full.shape, kept, self.row_axis)
            source = f"found {index}"
            self.buffers[source] = Buffer(
                shape, full.dtype, full.order, store, (skipped, stored), self.row_axis
            )
            self.copy(source, self.rows_of(name, f"{name} above", 0, kept))
        if keeps and flow.made[0] < flow.made[1]:
            shape = replace_rows(full.shape, keeps, self.row_axis)
            self.state(store, shape, full.dtype, full.order)
            self.copy(self.rows_of(name, f"{name} below", height - keeps, keeps), store)

    # Stages -------------------------------------------------------------------------------------

    def _window(
        self, fusion: Fusion, following: Fusion | None, epilogue: Fusion | None = None
    ) -> None:
        """Launch what reads other elements than those it writes, in its layout."""
        index, layout = fusion.first, self.layouts[fusion.first]
        operation = self.chain.on_piece(index, self.piece, layout)
        self._keep(index)
        source = f"input {index}" if f"input {index}" in self.buffers else self.current
        dtype = self._type(fusion)
        if isinstance(operation, Convolution):
            sources: tuple[str, ...] = (self.in_order(source, layout),)
            dtype = ACCUMULATOR[dtype] if self.accumulating else dtype
            if (operation.layout, operation.y_dtype) != (layout, dtype):
                operation = operation.resized(
                    operation.x_shape, operation.w_shape, operation.padding, operation.groups,
                    layout, dtype,
                )  # fmt: skip
            (w,) = self.chain.parameter_names[index]
            sources += (self.in_order(w, layout),)
            if epilogue is not None:
                operation = FusedConvolution(operation, epilogue.mode)
                sources += (epilogue.shift,)
        elif isinstance(operation, TransposedConvolution):
            (w,) = self.chain.parameter_names[index]
            sources = (self.in_order(w, layout), self.in_order(source, layout))
            operation = operation.launched(layout, dtype)
        else:
            vectors = self.chain.parameter_names[index]
            sources = (self.taken(source, layout, dtype), *vectors)
            operation = self._in_type(operation, dtype)
        product = "y"
        if following is not None or not self.may_write("y", dtype, layout):
            product = self.scratch(f"product {index}", self._shape(index), dtype, layout)
        self.launch(operation, sources, product)
        self.release(source, *sources)
        self.current = product

    def _adds_itself(self, fusion: Fusion, following: Fusion) -> bool:
        """True if what follows is a bias, perhaps with ReLU, that the convolution adds itself."""
        first, second = (self.chain.operations[each.first] for each in (fusion, following))
        return (
            isinstance(first, Convolution)
            and is_faster_fused(first, self.layouts[fusion.first])
            and isinstance(second, AddTensor)
            and following.mode in EPILOGUES
            and not self.accumulating
            and self.chain.scaling("y") == (1, 0)
        )

    def _hand_on(self, following: Fusion) -> None:
        """Bring a window's result to where the next fusion reads it, if it lies elsewhere."""
        source, have = self.current, self.buffers[self.current]
        target = self._input_of(following, have.shape, have.dtype)
        if target is None:
            return
        laid = self.in_order(source, self.buffers[target].order)
        self.launch(Pointwise(have.shape, have.dtype, have.dtype), (laid, "", "", ""), target)
        self.release(source, laid)
        self.current = target

    def _elementwise(self, fusion: Fusion, following: Fusion | None) -> None:
        """One pass: into y, or where the next window reads it, or in place."""
        chain, index, before = self.chain, fusion.first, self.current
        have, dtype = self.buffers[before], self._type(fusion)
        operation: CastScale | Normalising | OpTensor | Pointwise
        if isinstance(chain.operations[index], AddTensor | Activation):
            inputs: tuple[str, ...] = ("", fusion.shift, "")
            operation = Pointwise(
                have.shape, have.dtype, dtype, fusion.mode, fusion.coef,
                has_shift=bool(fusion.shift),
            )  # fmt: skip
            if following is None:  # alpha, beta and the memory order of y are part of the pass
                self.finish(before, "y", operation, fusion.shift)
                self.current = "y"
                return
        else:
            inputs = chain.parameter_names[index]
            operation = self._in_type(chain.on_piece(index, self.piece), dtype)
            if isinstance(operation, Normalising):
                operation = replace(operation, mode=fusion.mode, coef=fusion.coef)
                if fusion.addend and isinstance(operation, Normalise):
                    order = self.buffers[fusion.addend].order
                    operation = replace(operation, has_addend=True)
                    inputs += (self.taken(fusion.addend, order, dtype),)
            elif not isinstance(operation, CastScale):
                inputs = tuple(self.taken(b, self.buffers[b].order, dtype) for b in inputs)
        target = self._input_of(following, have.shape, dtype)
        if target is None:
            if following is None and self.may_write("y", dtype, have.order):
                target = "y"
            elif before == "x" or have.dtype != dtype:
                target = self.scratch(f"elementwise {index}", have.shape, dtype, have.order)
            else:
                target = before
        order = self.buffers[target].order
        if isinstance(operation, Pointwise):  # takes any type
            source = self.in_order(before, order)
        else:
            source = self.taken(before, order, dtype)
        self.launch(operation, (source, *inputs), target)
        self.release(*({before, source, *inputs} - {target}))
        self.current = target
