"""A part of what PyTorch computes in a network: the same operations, on the sites that it needs.

From the result back, each operation says which part of what it reads makes the part that is wanted
(`block_rules`). Then the operations are written down once more, on values that are no more than
that: what is read in several places, here with a halo and there without, is cut out where it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from ooc_cudnn.operations.external.tiles import Spans, WholeImagesError, whole_spans
from ooc_cudnn.torch.lowering import block_interpolation, block_moves, block_windows  # noqa: F401  (rules)
from ooc_cudnn.torch.lowering.block_rules import MadePart, joined, part_of_operation
from ooc_cudnn.torch.lowering.fallback_subgraph import FallbackResult, FallbackSubgraph
from ooc_cudnn.torch.tracing.graph import Operation, Value, replace_values
from ooc_cudnn.torch.tracing.image_axes import ImageAxes, Images

#: Axes that a tensor of a network has at the most.
MOST_AXES = 5


def part_in_block(
    part: FallbackSubgraph, result: Spans, lasting: Collection[int]
) -> tuple[FallbackSubgraph, tuple[Spans, ...]]:
    """The operations for a part of their result, and the parts of inputs that they take.

    Parameters
    ----------
    part : FallbackSubgraph
    result : Spans
        Of the axes of its array.
    lasting : collection of int
        The inputs that are whole in every block.

    Returns
    -------
    part : FallbackSubgraph
    inputs : tuple of Spans
        Of the axes of their arrays.

    Raises
    ------
    WholeImagesError
        If some operation needs more than parts.
    """
    made = _Block(part, result, lasting)
    return made.part, made.inputs


class _Block:
    """The part that is needed of each value, from the result back; then the operations on that."""

    def __init__(self, part: FallbackSubgraph, result: Spans, lasting: Collection[int]) -> None:
        self._whole, self._lasting = part, lasting
        ((whole, order),) = part.results
        wanted = _by(result, order)
        self._needed: dict[Value, Spans] = {whole: wanted}
        self._found = [
            (operation, made_part)
            for operation in reversed(part.operations)
            if (made_part := self._need(operation)) is not None
        ]
        self._of: dict[Value, Images] = {}
        self._held: dict[Value, tuple[Value, Spans]] = {}
        self._operations: list[Operation] = []
        for index, value in enumerate(part.inputs):
            self._hold(value, self._input_spans(index, value))
        taken = tuple(self._held[value][0] for value in part.inputs)
        for operation, made_part in reversed(self._found):
            self._write(operation, made_part)
        last = FallbackResult(self._cut_out(whole, wanted), order)
        axes = None if part.axes is None else ImageAxes((), self._of, part.count)
        self.part = replace(
            part, operations=tuple(self._operations), inputs=taken, results=(last,), axes=axes
        )
        self.inputs = tuple(
            spans if order is None else _by(spans, order)
            for (_, spans), order in zip(
                (self._held[value] for value in part.inputs), part.orders, strict=True
            )
        )

    def _need(self, operation: Operation) -> MadePart | None:
        """Add to what is needed of what an operation reads; None if nobody needs what it makes."""
        wanted = [None if each is None else self._needed.get(each) for each in operation.results]
        if not any(wanted):
            return None
        made_part = part_of_operation(operation, wanted)
        for value, spans in zip(operation.reads, made_part.reads, strict=True):
            known = self._needed.get(value)
            self._needed[value] = spans if known is None else joined(known, spans)
        return made_part

    def _input_spans(self, at: int, value: Value) -> Spans:
        """The part of an input that is taken: all of what lasts, or has other axes in its array."""
        order, whole = self._whole.orders[at], whole_spans(value.shape)
        has_own_axes = order is not None or 1 <= len(value.shape) <= MOST_AXES
        if at in self._lasting or not has_own_axes:
            return whole
        return self._needed.get(value, whole)

    def _hold(self, value: Value, spans: Spans) -> Value:
        """The value that is a part of another one."""
        where = None if self._whole.axes is None else self._whole.axes.of.get(value)
        if where is not None and spans[where.axis].cut:
            raise WholeImagesError("images lie along an axis that is cut")
        part = self._named(value, spans)
        self._held[value] = part, spans
        if where is not None:
            self._of[part] = where
        return part

    @staticmethod
    def _named(value: Value, spans: Spans) -> Value:
        shape = tuple(span.stop - span.start for span in spans)
        places = ", ".join(f"{span.start}:{span.stop}" for span in spans)
        return replace(value, name=f"{value.name}[{places}]", shape=shape)

    def _cut_out(self, value: Value, wanted: Spans) -> Value:
        """The part of a value that is wanted, of the part that is there."""
        have, spans = self._held[value]
        where = self._of.get(have)
        for axis, (span, part) in enumerate(zip(wanted, spans, strict=True)):
            if span[:2] == part[:2]:
                continue
            spans = (*spans[:axis], span, *spans[axis + 1 :])
            cut = self._named(value, spans)
            args = (have, axis, span.start - part.start, span.stop - part.start)
            told = dict(zip(("self", "dim", "start", "end"), args, strict=True))
            function: Any = torch.ops.aten.slice.Tensor
            self._operations.append(Operation(function, "slice", args, {}, told, (cut,)))
            have = cut
            if where is not None:
                self._of[have] = where
        return have

    def _write(self, operation: Operation, made_part: MadePart) -> None:
        """Write an operation down, for the parts that it reads and makes."""
        parts = [
            self._cut_out(value, spans)
            for value, spans in zip(operation.reads, made_part.reads, strict=True)
        ]
        reads = iter(parts)
        results = tuple(
            None if value is None or spans is None else self._hold(value, spans)
            for value, spans in zip(operation.results, made_part.makes, strict=True)
        )
        args = replace_values(operation.args, lambda _: next(reads))
        kwargs = replace_values(dict(operation.kwargs), lambda _: next(reads))
        function = operation.function
        if made_part.function is not None:
            function, args, kwargs = made_part.function, (parts[0],), dict(made_part.changes)
        elif made_part.changes:
            args, kwargs = _told(function, args, kwargs, made_part)
        arguments = {**operation.arguments, **made_part.changes}
        self._operations.append(
            replace(
                operation,
                function=function,
                args=args,
                kwargs=kwargs,
                arguments=arguments,
                results=results,
            )
        )


def _told(function: Any, args: Any, kwargs: Any, made_part: MadePart) -> tuple[Any, Any]:
    """Arguments, some of them changed."""
    names = [each.name for each in getattr(function, "target", function)._schema.arguments]
    positional, named = list(args), dict(kwargs)
    for name, value in made_part.changes.items():
        index = names.index(name)
        if index < len(positional):
            positional[index] = value
        else:
            named[name] = value
    return tuple(positional), named


def _by(spans: Spans, axes: tuple[int, ...]) -> Spans:
    """Those of some axes, in the order of these axes."""
    found = dict(zip(axes, spans, strict=True))
    return tuple(found[axis] for axis in range(len(axes)))
