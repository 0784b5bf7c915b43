"""Operations that PyTorch computes within the network: deferred until a layer reads what they make.

So those that follow each other are computed together, and what lies between them is never kept:
attention's products, say, or a shuffle of channels. What several read is made once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.operations.external.calls import ExternalResult
from ooc_cudnn.tensor import ITEM_BYTES
from ooc_cudnn.torch.errors import UnsupportedModelError, UnsupportedOperationError
from ooc_cudnn.torch.lowering.bitcast import STORED_AS, store_bits
from ooc_cudnn.torch.lowering.fallback_runner import FallbackRunner
from ooc_cudnn.torch.lowering.fallback_subgraph import RECURRENT, FallbackResult, FallbackSubgraph
from ooc_cudnn.torch.lowering.heads import HeadsOfChannels, heads_of_channels
from ooc_cudnn.torch.lowering.joint_results import Readers, as_row, is_linear, is_map, may_be_row
from ooc_cudnn.torch.lowering.lowered_value import LoweredValue
from ooc_cudnn.torch.lowering.rearranged import (
    FOLLOWED,
    JOINED,
    MOST_LAUNCHES,
    Rearrangement,
    rearrangement,
)
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value
from ooc_cudnn.torch.tracing.image_axes import MOVES, ImageAxes, Images, TogetherError

#: Why most of a region is computed by PyTorch.
FOLLOWS = "what it reads is computed by PyTorch"
#: Operations that have no gradient of some results where others have none.
_INSEPARABLE = frozenset({"native_group_norm"})

#: Axes of a tensor of the network, at most.
MOST_AXES = 5
#: Types between which what is moved may be cast. (PyTorch rounds float64 to half types by float32.)
_CAST_TO_EACH_OTHER = frozenset({"float16", "bfloat16", "float32"})


class NetworkAttempt(Protocol):
    """A network being built."""

    graph: Graph
    net: Network
    drawn: list[str]
    training: bool
    differentiable: set[Value]

    def name(self, of: str = "") -> str:
        """A name for a node."""

    def given(self, value: Any, shape: Any = None) -> Tensor:
        """A tensor for what is given."""

    def parameter(self, value: Any, shape: Any = None) -> Tensor:
        """The same for a parameter."""

    def cast(self, x: LoweredValue, dtype: str) -> LoweredValue:
        """A value in another floating dtype."""

    def made_as(self, what: str, function: Any, value: Value, dtype: torch.dtype) -> Value:
        """A value that PyTorch makes of another one before each call."""


class Fallbacks:
    """Operations of a model that PyTorch computes, deferred until what they make is read.

    Parameters
    ----------
    to : NetworkAttempt
    held : mapping
        What each value is in the network, as far as that is known.
    """

    def __init__(self, to: NetworkAttempt, held: dict[Value, LoweredValue]) -> None:
        self._to, self._held = to, held
        self._makers: dict[Value, Operation] = {}
        self.errors: dict[Operation, UnsupportedOperationError] = {}
        operations = to.graph.operations
        before = to.graph.before
        numbered = enumerate((*before, *operations), -len(before))
        self._at: dict[Operation, float] = {operation: at for at, operation in numbered}
        readers: dict[Value, list[Operation]] = {}
        for operation in operations:
            for value in dict.fromkeys(operation.reads):
                readers.setdefault(value, []).append(operation)
        self._readers = Readers(readers, frozenset(to.graph.asked), self._at)
        self._expands = {
            value: operation
            for operation in to.graph.before
            for value in operation.results
            if value is not None and (operation.name == "expand" or value.dtype.is_complex)
        }
        #: Of what draws random numbers for what it does.
        self.drawn: dict[Operation, Value] = {}
        self._made: dict[tuple[Value, tuple[int, ...]], LoweredValue] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._makers

    def add(self, operation: Operation, error: UnsupportedOperationError, like: Operation) -> None:
        """Put an operation off, in the form that is `like` it.

        Raises
        ------
        UnsupportedOperationError
            If it changes what the model keeps: that must not happen twice. If which of its results
            are used says what its gradients are, and more than the first of them is differentiated.
        """
        if operation.name in _INSEPARABLE and any(map(self._readers.follow, operation.results[1:])):
            said = (
                "PyTorch's gradients of its mean and rstd hang on which of its results are used: "
                "compute them by torch.var_mean, or detach() them"
            )
            raise UnsupportedOperationError(error.operation, error.where, said)
        told = operation.arguments
        keeps = told.get("running_mean") is not None
        if keeps and (told.get("training") or told.get("use_input_stats")):
            raise error
        self._at[like] = self._at[operation]
        self.errors[like] = error
        self._makers.update({value: like for value in operation.results if value is not None})

    def maker(self, value: Value) -> Operation:
        """The operation that makes what is deferred."""
        return self._makers[value]

    def is_read_once(self, value: Value) -> bool:
        """True if one operation alone reads a value, once, and nobody asks for it."""
        readers = self._readers.of.get(value, ())
        is_read_once = len(readers) == 1 and readers[0].reads.count(value) == 1
        return is_read_once and value not in self._readers.asked

    def place(self, operation: Operation) -> float:
        """Return its place in the order of all operations."""
        return self._at[operation]

    def why(self, value: Value) -> UnsupportedOperationError:
        """Explain why a value can be made neither in the network nor behind it."""
        for operation in self._behind(value):
            if operation in self.drawn and self.drawn[operation] is not value:
                said = "it draws random numbers, which several parts of the model read: make "
                said += "them of a shape alone, torch.randint(4, x.shape), or give them as argument"
                return UnsupportedOperationError(operation.said, operation.where, said)
        error = self.errors[self._makers[value]]
        if 0 in value.shape:
            said = f"its result of shape {value.shape} has no elements: skip such a batch"
            return UnsupportedOperationError(error.operation, error.where, said)
        if not 2 <= len(value.shape) <= 5:
            said = f"{error.why}, and PyTorch computes none of shape {value.shape} with parameters "
            said += "within the limit: let it return two to five axes, y[:, None], and take them "
            said += "apart behind it"
            return UnsupportedOperationError(error.operation, error.where, said)
        return error

    def reason(self, operations: Sequence[Operation]) -> str:
        """Explain why PyTorch computes operations together, by the first that needs it."""
        errors = [self.errors[each] for each in operations if each in self.errors]
        first = next((each for each in errors if each.why != FOLLOWS), None)
        return "" if first is None else f"{first.operation}: {first.why}"

    def made_of_input(self, value: Value) -> list[Operation]:
        """Operations that make integers of one input, and move and cast alone; none otherwise."""
        operations = self._behind(value)
        read = _read_by(operations)
        is_taken = (
            not (value.dtype.is_floating_point or value.dtype.is_complex)
            and len(read) == 1
            and read[0].kind == "input"
            and all(each.name in MOVES | {"to", "_to_copy"} for each in operations)
        )
        return operations if is_taken else []

    def moves_alone(self, value: Value) -> bool:
        """True if all that is deferred for a value moves elements, and computes nothing."""
        return all(operation.name in MOVES for operation in self._behind(value))

    def make(
        self, value: Value, channels: int | None = None, *, plain: bool = False, whole: bool = False
    ) -> LoweredValue | None:
        """Make a value a tensor of the network, computed by PyTorch.

        Parameters
        ----------
        channels : int, optional
            The axis of the value that is to be the tensor's second.
        plain : bool
            Whether its axes are to be the tensor's.
        whole : bool
            Whether it may be computed of all images at once, where what follows might tell them
            apart again.

        Returns
        -------
        LoweredValue or None
            None where it cannot be.
        """
        if not is_map(value):
            if value in self._makers and not is_linear(self._makers[value]):
                self._make_joint(value)
            return None
        self._make_shared(value)
        self._make_drawn(value)
        self._make_joint(value)
        if value in self._held and value not in self._makers:  # it may have been made itself
            held = self._held[value]
            if _suits(held, channels, plain=plain):
                return held
        operations = self._behind(value)
        moved = self._rearranged(operations, value, channels, plain=plain)
        if moved is not None:
            return moved
        drawing = self._drawing(operations, value)
        if drawing is None:
            return None  # it would be other numbers
        inputs = _read_by(operations) or [value]
        axes = self._axes(operations, inputs)
        where = Images(0)
        if axes is not None:
            where = axes.of[value]
            if where.outer != 1 or (plain and where.axis != 0):
                if not whole:
                    return None
                axes, where = None, Images(0)
        order = _order(len(value.shape), where.axis, None if plain else channels)
        if (value, order) not in self._made:
            self.drawn.update(dict.fromkeys(drawing, value))
            part = self._part(operations, inputs, (FallbackResult(value, order),), axes)
            (self._made[value, order],) = self._node(part)
        return self._made[value, order]

    def _drawing(self, operations: list[Operation], value: Value) -> list[Operation] | None:
        """Those that draw random numbers for a value; None if one has drawn them for another."""
        drawing = [operation for operation in operations if draws(operation)]
        drawn_before = any(self.drawn.get(each, value) is not value for each in drawing)
        return None if drawn_before else drawing

    def channels(self, value: Value) -> int | None:
        """The axis that channels, or the outermost of them, are on, if the library can move it."""
        found = self._moves(self._behind(value), value)
        if found is None or found.axis_of_images is None:
            return None
        channels = len(found.factors[0])  # behind images
        return next((at for at, part in enumerate(found.parts) if channels in part), None)

    def _rearranged(
        self, operations: list[Operation], value: Value, channels: int | None, *, plain: bool
    ) -> LoweredValue | None:
        """Lower what is only moved, in training: the library moves it, image by image."""
        found = self._moves(operations, value)
        images = None if found is None else found.axis_of_images
        if found is None or images is None or (plain and images):
            return None
        order = _order(len(value.shape), images, None if plain else channels)
        if (value, order) not in self._made:
            (source,) = _read_by(operations)
            parts = tuple(found.parts[axis] for axis in order)
            axes = tuple(order.index(axis) for axis in range(len(order)))
            held = self._held[source]
            narrow, wide = _casts(held.tensor.dtype, found.types)
            for dtype in narrow:
                held = self._to.cast(held, dtype)
            name = self._to.name(operations[-1].name)
            tensor = self._to.net.rearrange(held.tensor, found.factors, parts, name=name)
            held = LoweredValue(tensor, axes)
            for dtype in wide:
                held = self._to.cast(held, dtype)
            self._made[value, order] = held
        return self._made[value, order]

    def _moves(self, operations: list[Operation], value: Value) -> Rearrangement | None:
        """Return how a value's deferred operations move it; None if they do anything else."""
        sources = _read_by(operations)
        if (
            not self._to.training  # whole images would be read for each block of an inference
            or len(sources) != 1
            or sources[0] not in self._held
            or not 2 <= len(value.shape) <= 5
            or any(operation.name not in FOLLOWED | JOINED for operation in operations)
        ):
            return None
        held = self._held[sources[0]]
        if not held.tensor.is_floating or not 2 <= len(held.tensor.shape) <= 5:
            return None
        found = rearrangement(operations, held.tensor.shape, held.axes)
        if found is None or found.launches > MOST_LAUNCHES:
            return None
        types = held.tensor.dtype, *found.types
        if types[-1] != str(value.dtype).removeprefix("torch."):
            return None
        is_cast = len({*types}) > 1
        return None if is_cast and not _CAST_TO_EACH_OTHER.issuperset(types) else found

    # How a value comes about --------------------------------------------------------------------

    def _behind(self, value: Value) -> list[Operation]:
        """All that is deferred for a value, in order, and what expands what they share."""
        behind: set[Operation] = set()
        wanted = [value]
        while wanted:
            source = wanted.pop()
            operation = self._makers.get(source) or (
                self._expands.get(source) if source not in self._held else None
            )
            if operation is not None and operation not in behind:
                behind.add(operation)
                wanted.extend(operation.reads)
        return sorted(behind, key=self._at.__getitem__)

    def _make_shared(self, value: Value) -> None:
        """Make what is computed on the way to a value, and read elsewhere, too."""
        behind = self._behind(value)
        inner = {id(each) for each in behind} | {
            id(each) for each, at in self._at.items() if any(self._at.get(b) == at for b in behind)
        }
        shared: dict[Value, None] = {}
        for operation in behind:
            for result in operation.results:
                if result is None or value in operation.results or result not in self._makers:
                    continue
                elsewhere = any(id(each) not in inner for each in self._readers.of.get(result, ()))
                if elsewhere or result in self._readers.asked:
                    shared |= dict.fromkeys(self._computed(result))
        for other in shared:
            if other is not value and other in self._makers:
                held = self.make(other)
                if held is not None:
                    self.settle(other, held)

    def _make_drawn(self, value: Value) -> None:
        """Make what is drawn for a value and for others: each would draw other numbers."""
        operations = self._behind(value)
        drawing = [operation for operation in operations[:-1] if draws(operation)]
        shared = self._readers.shared(operations, [value]) if drawing else ()
        for operation in drawing:
            drawn = [y for y in operation.results if y and self._makers.get(y) is operation]
            if operation in shared and drawn:
                self._make_results(operation, drawn)

    def _make_joint(self, value: Value) -> None:
        """Make each operation behind a value one node that must be one, with all its results."""
        if self._to.training:
            operations = self._behind(value)
            for operation, results in self._readers.joint(operations, value, self._makers):
                if results:
                    self._make_results(operation, results)

    def make_row(self, value: Value) -> bool:
        """Make what is no map in the network, as a row; return whether that may be.

        The value is deferred still: the row has but to be shown in its shape.
        """
        operation = self._makers[value]
        if not is_map(value) and may_be_row(value):
            self._make_results(operation, [value])
        return self._makers.get(value) is not operation

    def _make_results(self, operation: Operation, results: list[Value]) -> None:
        """Make results of an operation in the network, by one node; what is no map as a row.

        Raises
        ------
        UnsupportedOperationError
            If its backward must be called once, and that cannot be.
        """
        (lead, *_), error = results, self.errors[operation]
        self._make_shared(lead)
        operations = self._behind(lead)
        drawing = self._drawing(operations, lead)
        if drawing is None or not all(map(may_be_row, results)):
            if is_linear(operation):
                return  # each is made by itself
            shapes = ", ".join(str(each.shape) for each in results)
            said = (
                "its backward is to be called once, with the gradients of all its results, and "
                f"networks hold none without elements ({shapes}): let another Function make those"
            )
            raise UnsupportedOperationError(error.operation, error.where, said)
        inputs = _read_by(operations) or results
        rows = {each: as_row(each) for each in results if not is_map(each)}
        axes = None if rows else self._axes(operations, inputs)
        if axes is not None and any(axes.of[each].outer != 1 for each in results):
            axes = None
        made = []
        for each in results:
            taken = rows[each].value if each in rows else each
            where = Images(0) if axes is None else axes.of[each]
            made.append(FallbackResult(taken, _order(len(taken.shape), where.axis, None)))
        self.drawn.update(dict.fromkeys(drawing, lead))
        operations += [made_row for row in rows.values() for made_row in row.makes]
        part = self._part(operations, inputs, tuple(made), axes)
        for (value, _), held in zip(made, self._node(part), strict=True):
            self.settle(value, held)
        for row in rows.values():
            for at, shown in enumerate(row.shows, 1):
                for y in shown.results:
                    self._take(y)
                self._makers.update({each: shown for each in shown.results if each is not None})
                self._at[shown] = self._at[operation] + at / (1 + len(row.shows))  # behind it
                self.errors[shown] = error

    def settle(self, value: Value, held: LoweredValue) -> None:
        """Note that a value is in the network now."""
        self._held[value] = held
        self._take(value)

    def _take(self, value: Value | None) -> None:
        """Note that a value is made by what made it no more.

        Other results of that are still to be made. Where its backward is not linear it makes them
        without this one: a node that reads both has this one of the network, with all its gradient.
        """
        operation = self._makers.pop(value, None) if value is not None else None
        if operation is None or is_linear(operation):
            return
        others = [y for y in operation.results if y and self._makers.get(y) is operation]
        if not others:
            return
        rest = replace(
            operation, results=tuple(each if each in others else None for each in operation.results)
        )
        self._at[rest], self.errors[rest] = self._at[operation], self.errors[operation]
        if operation in self.drawn:
            self.drawn[rest] = self.drawn[operation]
        self._makers.update(dict.fromkeys(others, rest))

    def _computed(self, value: Value) -> Iterator[Value]:
        """The computed value that one shows that was only moved since, if it was computed."""
        while value in self._makers:
            operation = self._makers[value]
            if operation.name not in MOVES:
                yield value
                return
            value = operation.reads[0]

    def _axes(self, operations: list[Operation], inputs: list[Value]) -> ImageAxes | None:
        """The axes of images; None of one image, or where some operation takes them together."""
        held = {value: self._held[value] for value in inputs if value in self._held}
        if any(0 not in each.axes for each in held.values()):
            return None  # one number of all images
        count = math.gcd(*(each.tensor.shape[0] for each in held.values()))
        batch = next((each.shape[0] for each in self._to.graph.inputs if each.shape), 1)
        loose = [value for value in inputs if value not in held and value.shape]
        for images in dict.fromkeys((count, math.gcd(count, batch))):
            lying = {
                value: Images(each.axes.index(0), 1, each.tensor.shape[0] // images)
                for value, each in held.items()
            }
            try:
                return ImageAxes(operations, lying, images, loose) if images > 1 else None
            except TogetherError:
                continue
        return None

    # The node -----------------------------------------------------------------------------------

    def _part(
        self,
        operations: list[Operation],
        inputs: list[Value],
        results: tuple[FallbackResult, ...],
        axes: ImageAxes | None,
    ) -> FallbackSubgraph:
        orders: list[tuple[int, ...] | None] = []
        for read in inputs:
            if read in self._held and self._held[read].axes:
                orders.append(self._held[read].axes)
            elif axes is not None and read in axes.of:
                orders.append(tuple(range(len(read.shape))))
            else:
                orders.append(None)
        return FallbackSubgraph(tuple(operations), tuple(inputs), tuple(orders), results, axes)

    def _node(self, part: FallbackSubgraph) -> list[LoweredValue]:
        """Return the results in the network of a node that makes them all."""
        tensors = [self._tensor(value) for value in part.inputs]
        computation = FallbackRunner(part, self.reason(part.operations))
        first, *others = (
            ExternalResult(each.shape, str(each.value.dtype).removeprefix("torch."))
            for each in part.results
        )
        of_images = [
            order is not None and (value in self._held or part.axes is not None)
            for value, order in zip(part.inputs, part.orders, strict=True)
        ]
        drawing = any(draws(operation) for operation in part.operations)
        followed = _differentiable(part)
        candidates = tuple(at for at, value in enumerate(part.inputs) if value in followed)
        numbers = range(len(part.results)) if candidates else ()
        reached = {at: computation.reached(candidates, at) for at in numbers}
        differentiable = [
            frozenset(at for at, inputs in reached.items() if index in inputs)
            for index in range(len(part.inputs))
        ]
        name = self._to.name(computation.name.partition("+")[0])
        tensor = self._to.net.outside(
            tensors,
            *first,
            computation,
            images=part.count,
            of_images=of_images,
            draws=drawing,
            differentiable=differentiable,
            others=others,
            name=name,
        )
        made = self._to.net.graph.nodes[tensor.name].results
        if drawing:
            self._to.drawn.append(f"{name}.state")
        return [LoweredValue(y, each.axes) for y, each in zip(made, part.results, strict=True)]

    def heads_of(self, value: Value) -> HeadsOfChannels | None:
        """The heads of channels that a value (n, heads, sites, depth) is, by moves alone."""
        operations = self._behind(value)
        inputs = _read_by(operations)
        axes = self._axes(operations, inputs)
        if len(value.shape) != 4 or (axes is not None and axes.of[value] != Images(0)):
            return None
        source = self._moved(operations, inputs, axes)
        if source is None:
            return None
        return heads_of_channels(
            self._part(operations, inputs, (FallbackResult(value, _order(4, 0, 3)),), axes), source
        )

    def _moved(
        self, operations: list[Operation], inputs: list[Value], axes: ImageAxes | None
    ) -> Tensor | None:
        """The one tensor whose elements operations move, each image by itself, if they do."""
        if len(inputs) != 1 or inputs[0] not in self._held:
            return None
        source = self._held[inputs[0]].tensor
        alone = source.shape[0] == (1 if axes is None else axes.count)
        moves = all(operation.name in MOVES for operation in operations)
        return source if alone and moves else None

    def _tensor(self, value: Value) -> Tensor:
        """The tensor that a node reads: held, or given, in a form that tensors have."""
        if value in self._held:
            return self._held[value].tensor
        if str(value.dtype).removeprefix("torch.") not in ITEM_BYTES:
            value = self._stored(value)
        shape = value.shape or (1,)
        if len(shape) > MOST_AXES:  # images stay apart
            shape = (shape[0], math.prod(shape[1:]))
        declare = self._to.parameter if value.kind == "parameter" else self._to.given
        return declare(value, shape)

    def _stored(self, value: Value) -> Value:
        """The bits of a value, in integers that the network holds.

        Raises
        ------
        UnsupportedModelError
            If there are none of as many bytes, or a gradient of it is asked for.
        """
        if value.dtype.itemsize not in STORED_AS:
            raise UnsupportedModelError(
                f"{value.source or value.name} is of {value.dtype}, which the library cannot hold: "
                "keep torch.view_as_real of it, and take torch.view_as_complex of that in forward"
            )
        if value in self._to.differentiable:
            raise UnsupportedModelError(
                f"{value.name} is of {value.dtype}, and requires a gradient, which the library has "
                "of float16, bfloat16, float32 and float64: convert it before"
            )
        return self._to.made_as("stored", store_bits, value, STORED_AS[value.dtype.itemsize])


def _differentiable(part: FallbackSubgraph) -> set[Value]:
    """The values that results of a part depend on by operations with derivatives."""
    results = {each.value for each in part.results}
    found = {each for each in results if each.requires_grad or not part.operations}
    for operation in reversed(part.operations):
        if any(value in found for value in operation.results):
            found.update(value for value in operation.reads if value.requires_grad)
    return found


def draws(operation: Operation) -> bool:
    """True if an operation draws random numbers, other ones each time that it runs."""
    told: Mapping[str, Any] = operation.arguments
    if told.get("train", told.get("training")) is False:
        return False
    if "dropout" in operation.name:
        return bool(told.get("p", 1))
    if "dropout_p" in told:
        return bool(told["dropout_p"])
    if operation.name in RECURRENT:
        return bool(told["dropout"])
    tags = getattr(operation.function, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _read_by(operations: list[Operation]) -> list[Value]:
    """The values that operations read, and none of them makes."""
    made = {value for operation in operations for value in operation.results}
    reads = (value for operation in operations for value in operation.reads)
    return list(dict.fromkeys(value for value in reads if value not in made))


def _casts(dtype: str, types: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Types that elements are cast to, before they are moved, and behind that.

    They move where they are smallest.
    """
    sizes = [ITEM_BYTES[each] for each in (dtype, *types)]
    at = sizes.index(min(sizes))
    return types[:at], types[at:]


def _order(count: int, images: int, channels: int | None) -> tuple[int, ...]:
    """The axes of a value in the order of its tensor: images, channels, then the others."""
    first = [images] if channels in (None, images) else [images, channels]
    return (*first, *(axis for axis in range(count) if axis not in first))


def _suits(held: LoweredValue, channels: int | None, *, plain: bool) -> bool:
    if plain:
        return held.is_plain
    return channels is None or held.axes[channels] == 1
