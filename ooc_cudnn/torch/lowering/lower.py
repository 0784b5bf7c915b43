"""Lowering: a captured graph to a `Network`, operation by operation, by the table in `rules`.

A value that depends on the call's inputs is a tensor of the network, whose axes it may name in
another order: a permutation costs nothing. Whatever else an operation reads (parameters, buffers,
what PyTorch makes of them before each call) the network is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import torch

from ooc_cudnn.network.ir.tensor import GIVEN, Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.operations.normalization.cross_rank import Ranks
from ooc_cudnn.torch.autograd.function import tensor_of
from ooc_cudnn.torch.errors import UnsupportedOperationError
from ooc_cudnn.torch.lowering.class_sums import find_class_sums, split_batch_sums
from ooc_cudnn.torch.lowering.fallbacks import FOLLOWS, Fallbacks, draws
from ooc_cudnn.torch.lowering.lowered_value import LoweredValue
from ooc_cudnn.torch.lowering.normalized_by_hand import normalization
from ooc_cudnn.torch.lowering.rearranged import FOLLOWED
from ooc_cudnn.torch.lowering.unbatched import add_batch_axis
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, replace_values, run_operation
from ooc_cudnn.torch.tracing.image_axes import MOVES, PER_ELEMENT
from ooc_cudnn.torch.tracing.mutations import Functional

R = TypeVar("R", bound=Callable[..., Any])
RULES: dict[str, Callable[..., LoweredValue | tuple[LoweredValue | None, ...]]] = {}


#: Whether a rule takes what PyTorch computes, to have it made: of the lowering, an operation, and
#: the values that it reads of these.
Gathers = Callable[["GraphLowering", Operation, Collection[Value]], bool]
GATHERS: dict[str, Gathers] = {}


def rule(*names: str, gathers: Gathers | None = None) -> Callable[[R], R]:
    """Enter a rule into the table, for ATen operations of these names.

    It takes the lowering and the operation's arguments by ATen's names, and returns what the value
    is in the network, or a tuple of that for several results.

    Where PyTorch computes what an operation reads, it is left to PyTorch as well. Layers have that
    made in the network first. A rule that `gathers`, of the operation and what it reads that
    PyTorch computes, is handed such values, and has them made itself (`GraphLowering.gathered`).
    """

    def entered(made: R) -> R:
        for name in names:
            RULES[name] = made
            if gathers is not None:
                GATHERS[name] = gathers
        return made

    return entered


#: What takes memory and time: PyTorch is not left with it, for it knows no limit.
LAYERS = frozenset(
    f"{name}{axes}d"
    for name in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool")
    for axes in (1, 2, 3)
) | {"batch_norm", "instance_norm", "group_norm", "layer_norm", "linear"}
#: Losses whose target has no gradient in the network.
OF_TARGETS = frozenset({"cross_entropy_loss", "binary_cross_entropy_with_logits"})
#: What meets a map, broadcast.
BROADCASTING = frozenset({"add", "sub", "rsub", "mul", "div"})
#: What attention does with what is moved before: all of it is left together.
LEFT_TOGETHER = frozenset(
    {"mul", "div", "slice", "matmul", "bmm", "softmax", "scaled_dot_product_attention"}
)
#: Of how many elements of a map one is small beside it.
SMALL = 4
#: One number of all images.
LOSSES = OF_TARGETS | {"mse_loss"}
_BY_INPUTS = "what should be a parameter depends on the inputs"


def one_rank(path: str) -> Ranks | None:
    """A module takes statistics of the images of its own process."""
    return None


def _without_blanks(name: str) -> str:
    """The name without the blanks of dictionaries' keys: with a blank the network names its own."""
    return re.sub(r"\s", "_", name)


class UnsupportedPatternError(Exception):  # told apart within this room alone
    """A rule has an operation, but not in this form; it says why."""


class GivenInputs(NamedTuple):
    """Inputs that a network is given before each call.

    Attributes
    ----------
    value : Value
        A parameter, a buffer, an input of the model, or what PyTorch made of those before.
    shape : tuple of int
        As which the network takes it.
    """

    value: Value
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A network, and how it is called as the model is.

    Attributes
    ----------
    network : Network
    outputs : tuple of Tensor
        Of the network, each once.
    results : tuple
        Of each output of the model: a `LoweredValue` of one of them, a value that is given, or a
        constant.
    inputs, parameters, running : mapping
        Name in the network to what it is given.
    drawn : tuple of str
        States of dropout among the running statistics: a seed and a count.
    before : tuple of Operation
        What PyTorch runs before each call beside that of the graph: parameters as nodes want them.
    after : tuple of Operation
        What PyTorch runs on results of the network: there is no rule for it, or for what it reads.
    why_after : str
        Of the first of them, why.
    handed : mapping
        The values of the network that it reads.
    """

    network: Network
    outputs: tuple[Tensor, ...]
    results: tuple[Any, ...]
    inputs: Mapping[str, GivenInputs]
    parameters: Mapping[str, GivenInputs]
    running: Mapping[str, GivenInputs]
    drawn: tuple[str, ...]
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    why_after: str
    handed: Mapping[Value, LoweredValue]

    @property
    def given(self) -> Mapping[str, GivenInputs]:
        """All that the network is given from the model."""
        return {**self.inputs, **self.parameters, **self.running}


def lower_graph(
    graph: Graph,
    differentiable: frozenset[Value],
    *,
    training: bool,
    strict: bool = False,
    over_ranks: Callable[[str], Ranks | None] = one_rank,
) -> LoweredGraph:
    """Lower a graph.

    Parameters
    ----------
    differentiable : frozenset of Value
        Those of what is given that have gradients.
    training : bool
        Whether gradients are made, or what modules do in training alone.
    strict : bool
        Whether PyTorch may run nothing of it.
    over_ranks : callable
        Of a module, by its path, with whom it shares statistics of a batch.

    Raises
    ------
    UnsupportedOperationError
        On an operation that there is no rule for, with the user's line, if `strict`; or if layers
        follow it.
    """
    graph = split_batch_sums(add_batch_axis(graph))
    made = GraphLowering(
        graph, differentiable, training=training, strict=strict, over_ranks=over_ranks
    )
    return made.lowered()


class GraphLowering:
    """A network being built; rules call its methods."""

    def __init__(
        self,
        graph: Graph,
        differentiable: frozenset[Value],
        *,
        training: bool,
        strict: bool = False,
        over_ranks: Callable[[str], Ranks | None] = one_rank,
    ) -> None:
        self._over_ranks = over_ranks
        self.graph, self.differentiable, self.training = graph, set(differentiable), training
        self.strict = strict
        self.after: list[Operation] = []
        #: What is to be handed out, and may show an input as it is given.
        self._shown: list[Value] = []
        self.net = Network()
        self.inputs: dict[str, GivenInputs] = {}
        self.parameters: dict[str, GivenInputs] = {}
        self.running: dict[str, GivenInputs] = {}
        self.drawn: list[str] = []
        self.before: list[Operation] = []
        self._held: dict[Value, LoweredValue] = {}
        self._given: dict[tuple[GivenInputs, str], Tensor] = {}
        self._module = ""
        self.class_sums = find_class_sums(graph)
        #: Nodes that several operations share, by what their rules know them by.
        self.shared: dict[Hashable, Tensor] = {}
        #: What is being lowered.
        self.operation: Operation | None = None
        operations = graph.operations
        self._makers = {value: each for each in operations for value in each.results if value}
        self._read = {value for each in operations for value in each.reads}
        #: What PyTorch will compute within the network.
        self.fallbacks = Fallbacks(self, self._held)

    def lowered(self) -> LoweredGraph:
        """Lower everything."""
        for operation in self.graph.operations:
            self._lower(operation)
        deferred = [each for each in self.graph.asked if each in self.fallbacks]
        self._settle(each for each in deferred if not self._shows_another(each))
        for output in self.graph.outputs:
            if isinstance(output, Value) and self._shows_another(output):
                self._make_after(output)
        for write in self.graph.writes:
            if self._shows_given(write.value):
                self._make_after(write.value)
        while self._shown:  # when nothing in the network is to read it any more
            self._remake(self._shown.pop())
        self.after.sort(key=self.fallbacks.place)
        self.after.extend(self.graph.effects)
        results, outputs = [], dict[str, Tensor]()
        computed = {value for operation in self.after for value in operation.results}
        asked = [value for operation in self.after for value in operation.reads]
        asked += [write.value for write in self.graph.writes]
        handed = {
            value: self._held[value]
            for value in asked
            if value in self._held and value.kind != "input" and value not in computed
        }
        for held in handed.values():
            outputs.setdefault(held.tensor.name, held.tensor)
        for output in self.graph.outputs:
            result = output
            if (
                isinstance(output, Value)
                and output not in computed
                and output.kind != "input"
                and not output.is_held
            ):
                result = self._held.get(output, output)
            if isinstance(result, LoweredValue):
                outputs.setdefault(result.tensor.name, result.tensor)
            results.append(result)
        nodes = self.net.graph.nodes_before(outputs.values())
        read = {tensor.name for node in nodes for tensor in node.inputs}
        return LoweredGraph(
            self.net,
            tuple(outputs.values()),
            tuple(results),
            _those(read, self.inputs),
            _those(read, self.parameters),
            _those(read, self.running),
            tuple(name for name in self.drawn if name in read),
            tuple(self.before),
            tuple(self.after),
            self.fallbacks.reason(self.after),
            handed,
        )

    def _shows_another(self, value: Value) -> bool:
        """True if an output shows an input or another output, moved alone, or hooks it alone.

        PyTorch makes it: of the same memory, as without the library.
        """
        if value.kind == "input":
            return False
        maker = self._makers.get(value)
        memories, asked = self.graph.memories, value
        if self._shows_given(value):
            return True
        if maker is not None and maker.name == "register_hook":
            return value not in self._read
        while maker is not None and (maker.name in MOVES or value in self.graph.views):
            (value, *_) = maker.reads
            if value.kind == "input" or value in self.graph.outputs:
                return True
            maker = self._makers.get(value)
        lies = memories.get(asked)
        return (
            asked in self._makers
            and asked in self.graph.views
            and any(
                isinstance(other, Value) and other != asked and memories.get(other, -1) == lies
                for other in self.graph.outputs
            )
        )

    def _shows_given(self, value: Value) -> bool:
        """True if an operation has made it, and nothing was done to an input."""
        held = self._held.get(value)
        is_given = held is not None and held.tensor.kind in GIVEN
        return is_given and value in self._makers

    def _make_after(self, value: Value) -> None:
        maker = self._makers[value]
        if maker not in self.after:
            self.after.append(maker)
            (lead, *_) = maker.reads
            if self._shows_another(lead) and lead not in self.graph.outputs:
                self._make_after(lead)
            self._settle(maker.reads)

    def _settle(self, values: Iterable[Value]) -> None:
        """Have what is deferred, and asked for, made in the network, or else behind it.

        What moves elements alone costs nothing there. What has no gradient comes last: the network
        has what it may of the operations that make it then, and they make the rest.

        Raises
        ------
        UnsupportedOperationError
            If a layer would be left to PyTorch, which knows no limit. One of integers may be.
        """
        waiting = [*values][::-1]
        while waiting:
            waiting.sort(key=lambda each: each.requires_grad)
            waiting.extend(reversed(self._settled(waiting.pop())))

    def _settled(self, value: Value) -> Sequence[Value]:
        """Have one value made; return what is to be made for it."""
        if value not in self.fallbacks:
            if value in self._held and value.kind == "made":
                self._shown.append(value)
            return ()
        held = None if self.fallbacks.moves_alone(value) else self.fallbacks.make(value, whole=True)
        if held is not None:
            self.fallbacks.settle(value, held)
            return ()
        operation = self.fallbacks.maker(value)
        layered = operation.name not in PER_ELEMENT and any(
            read in self.differentiable and read.kind != "input" for read in operation.reads
        )
        is_layer = operation.name in LAYERS and any(
            read.dtype.is_floating_point for read in operation.reads
        )
        if (layered or is_layer) and self.fallbacks.make_row(value):
            return (value,)
        if layered or is_layer or operation in self.fallbacks.drawn:
            raise self.fallbacks.why(value)
        if operation in self.after:
            return ()
        self.after.append(operation)
        return operation.reads

    def _remake(self, value: Value) -> None:
        """Have PyTorch make behind the network what shows an input as it is given: no node does."""
        if value not in self._held or self._held[value].tensor.kind not in GIVEN:
            return
        operation = next(each for each in self.graph.operations if value in each.results)
        del self._held[value]
        if operation not in self.after:
            self.after.append(operation)
            self._settle(operation.reads)

    def _lower(self, operation: Operation) -> None:
        """Lower an operation by its rule; what has none is deferred, and computed by PyTorch.

        Raises
        ------
        UnsupportedOperationError
            If that must not be.
        """
        self.operation, self._module = operation, operation.module or operation.name
        if operation.name in ("div", "mul") and self._normalized(operation):
            return
        if not self._gathered(operation):
            self._fall_back(operation, FOLLOWS)
            return
        lower = RULES.get(operation.name)
        if lower is None:
            self._fall_back(operation, "the library has no such operation")
            return
        if operation.name in OF_TARGETS and operation.arguments["target"].requires_grad:
            self._fall_back(operation, "its target has a gradient")
            return
        try:
            results = self._by_rule(lower, operation, self.argument)
        except (UnsupportedPatternError, ValueError, TypeError) as error:
            laid = self._laid(operation)
            if not laid:
                self._fall_back(operation, str(error))
                return
            try:
                results = self._by_rule(
                    lower, operation, lambda value: laid.get(value) or self.argument(value)
                )
            except (UnsupportedPatternError, ValueError, TypeError) as error:
                self._fall_back(operation, str(error))
                return
            self._held |= laid  # others that read it follow the layer
        for value, held in zip(operation.results, results, strict=False):
            if value is not None and held is not None:
                dtype, wanted = held.tensor.dtype, str(value.dtype).removeprefix("torch.")
                if held.shape != value.shape or (held.axes and dtype != wanted):
                    raise AssertionError(
                        f"{operation.said} made {dtype} {held.shape}, not {wanted} {value.shape}"
                    )
                self._held[value] = held

    def _normalized(self, operation: Operation) -> bool:
        """True if an operation ends a normalization by hand, which is one node now."""
        found = normalization(operation, self._makers)
        (result,) = operation.results
        if found is None or result is None or found.x not in self._held:
            return False
        held = self._held[found.x]
        count = len(held.tensor.shape)
        axes, positions = {held.axes[each] for each in found.dims}, set(range(2, count))
        groups = {
            frozenset({1}): 0, frozenset(positions | {1}): 1,
            frozenset(positions): held.tensor.shape[1],
        }.get(frozenset(axes))  # fmt: skip
        if groups is None or not axes:
            return False
        name, dtype = self.name("normalization"), str(result.dtype).removeprefix("torch.")
        try:
            x = self.cast(held, dtype).tensor
            if groups:
                y = self.net.group_normalization(x, groups, epsilon=found.epsilon, name=name)
            else:
                y = self.net.layer_normalization(x, epsilon=found.epsilon, name=name)
            made: Any = LoweredValue(y, held.axes)
            if found.factor is not None:
                made = RULES["mul"](self, self=made, other=self.argument(found.factor))
        except (UnsupportedPatternError, ValueError):
            return False  # step by step, then
        for role in ("scale", "bias"):
            self.net.freeze(f"{name}.{role}")
        if made.shape != result.shape or made.tensor.dtype != dtype:
            return False
        self._held[result] = made
        return True

    def _by_rule(
        self, lower: Callable[..., Any], operation: Operation, find: Callable[[Value], Any]
    ) -> tuple[LoweredValue | None, ...]:
        result = lower(self, **replace_values(dict(operation.arguments), find))
        results = (result,) if isinstance(result, LoweredValue) else tuple(result)
        if isinstance(operation.function, Functional):  # it is written to what has a dtype
            results = tuple(map(self._written, operation.results, results))
        for value, held in zip_longest(operation.results, results):
            if value is None:
                continue
            if held is None:  # indices of a pooling, say
                raise UnsupportedPatternError(
                    "the model reads a result of it that the library does not make"
                )
        return results

    def _written(self, value: Value | None, held: LoweredValue | None) -> LoweredValue | None:
        if value is None or held is None or not held.axes:
            return held
        return self.cast(held, str(value.dtype).removeprefix("torch."))

    def _fall_back(self, operation: Operation, why: str) -> None:
        error = UnsupportedOperationError(operation.said, operation.where, why)
        shared = "batch_norm" in operation.name and operation.arguments.get("training")
        if self.strict or (shared and self.ranks() is not None):
            raise error
        self.fallbacks.add(operation, error, _as_it_runs(operation))

    def _gathered(self, operation: Operation) -> bool:
        """True if all that an operation reads is in the network now, if it is one that asks.

        Others that read what is deferred are deferred, too.
        """
        waiting = [read for read in dict.fromkeys(operation.reads) if read in self.fallbacks]
        if not waiting:
            return True
        name = operation.name
        if name in ("cat", "concat"):
            if not any(read in self._held for read in operation.reads) or not all(
                read in self._held or read in self.fallbacks for read in operation.reads
            ):
                return False  # nothing of it is there, or a part is none of the network's
        elif name in GATHERS:
            return GATHERS[name](self, operation, waiting)
        elif self._gathered_moves(operation, waiting) or self._gathered_small(operation, waiting):
            return True
        elif name not in LAYERS | LOSSES and not (name in RULES and draws(operation)):
            return False
        channels, plain = _wanted(operation)
        for value in waiting:
            if name in LOSSES:
                made = self._made_of_input(value)
                if made is not None:
                    self.fallbacks.settle(value, LoweredValue.of(self.given(made)))
                    continue
            axis = None if channels is None else channels % len(value.shape)
            held = self.fallbacks.make(value, axis, plain=plain, whole=plain)
            if held is None:
                return False
            self.fallbacks.settle(value, held)
        return True

    def integers(self, value: Value, shape: Sequence[int]) -> Tensor:
        """Integers that are an input, or made of one, in a shape of as many elements: labels.

        Raises
        ------
        UnsupportedPatternError
            If they are anything else.
        """
        made = self._made_of_input(value) if value in self.fallbacks else None
        return self.given(value if made is None else made, shape)

    def _made_of_input(self, value: Value) -> Value | None:
        """Have PyTorch make integers of an input, moved or cast, before each call."""
        operations = self.fallbacks.made_of_input(value)
        if not operations:
            return None
        (source,) = {each for each in operations[0].reads if each.kind == "input"}

        def make(given: Any) -> torch.Tensor:
            found = {source: tensor_of(given)}
            for operation in operations:
                run_operation(operation, found)
            return found[value]

        return self.made_before(
            operations[-1].name, make, source, shape=value.shape, dtype=value.dtype
        )

    def _gathered_moves(self, operation: Operation, waiting: Collection[Value]) -> bool:
        """True if what was only moved is in the network now, for an operation that takes it."""
        if operation.name not in RULES or operation.name in FOLLOWED | LEFT_TOGETHER:
            return False
        channels = {value: self.fallbacks.channels(value) for value in waiting}
        if None in channels.values():
            return False
        for value, axis in channels.items():
            held = self.fallbacks.make(value, axis)
            if held is None:
                return False
            self.fallbacks.settle(value, held)
        return True

    def _gathered_small(self, operation: Operation, waiting: Collection[Value]) -> bool:
        """True if what is small beside a map, and broadcast to it, is in the network now.

        PyTorch makes a gate of a few numbers; what it does to the map, the library does.
        """
        if operation.name not in BROADCASTING:
            return False
        lead = max((each for each in operation.reads if each in self._held), default=None,
                   key=lambda each: math.prod(each.shape))  # fmt: skip
        for value in waiting:
            if (
                lead is None
                or len(value.shape) != len(lead.shape)
                or SMALL * math.prod(value.shape) > math.prod(lead.shape)
                or 1 not in self._held[lead].axes
            ):
                return False
            held = self.fallbacks.make(value, self._held[lead].axes.index(1))
            if held is None:
                return False
            self.fallbacks.settle(value, held)
        return True

    def _laid(self, operation: Operation) -> dict[Value, LoweredValue]:
        """The input of a layer that lies in another order than it takes, in that order."""
        if operation.name not in LAYERS:
            return {}
        lead = next((read for read in operation.reads if read in self._held), None)
        if lead is None:
            return {}
        channels, plain = _wanted(operation)
        axis = None if channels is None else channels % len(lead.shape)
        held = self.fallbacks.make(lead, axis, plain=plain, whole=plain)
        return {} if held is None or held is self._held[lead] else {lead: held}

    def argument(self, value: Value) -> Any:
        """Return a value as rules take it: held where it depends on inputs, else as it is."""
        if value.kind == "input" and value not in self._held:
            self._held[value] = LoweredValue.of(self.given(value))
        return self._held.get(value, value)

    # What rules are made with ------------------------------------------------------------------

    def name(self, of: str = "") -> str:
        """A name for a node: that of the module it is in, with what it does there."""
        wanted = _without_blanks(".".join(filter(None, (self._module, of))))
        unique, count = wanted, 1
        while unique in self.net.graph.tensors:
            count += 1
            unique = f"{wanted}.{count}"
        return unique

    def gathered(self, value: Any, channels: int) -> Any:
        """Return a value for a rule that gathers: this axis is the network tensor's second.

        Raises
        ------
        UnsupportedPatternError
            If PyTorch computes it, and it cannot be.
        """
        if not isinstance(value, Value) or value not in self.fallbacks:
            return value
        held = self.fallbacks.make(value, channels % len(value.shape))
        if held is None:
            raise UnsupportedPatternError(FOLLOWS)
        self.fallbacks.settle(value, held)
        return held

    def ranks(self) -> Ranks | None:
        """Ranks that share statistics of a batch with the operation's module, or None."""
        return self._over_ranks(self._module)

    def plain(self, x: Any, *, least: int = 2, most: int = 5) -> Tensor:
        """The tensor of a map of images and channels, in this order.

        Raises
        ------
        UnsupportedPatternError
            If it is none.
        """
        if not isinstance(x, LoweredValue):
            raise UnsupportedPatternError("it does not read the inputs first")
        if not x.is_plain:
            raise UnsupportedPatternError("its axes were permuted before")
        if not least <= len(x.axes) <= most:
            raise UnsupportedPatternError(f"it has shape {x.shape}")
        return x.tensor

    def made_before(
        self,
        what: str,
        function: Callable[..., torch.Tensor],
        *values: Value | None,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Value:
        """A value that a function of PyTorch makes of others before each call, differentiated.

        Of the first one's shape and dtype where these are not told.
        """
        first = next(value for value in values if value is not None)
        value = Value(
            f"{self._module}.{what}.{len(self.before)}",
            first.shape if shape is None else tuple(shape),
            dtype or first.dtype,
        )
        operation = Operation(function, what, values, {}, {}, (value,), self._module)
        if value.dtype.is_floating_point and self.differentiable.intersection(operation.reads):
            self.differentiable.add(value)
        self.before.append(operation)
        return value

    def cast(self, x: LoweredValue, dtype: str) -> LoweredValue:
        """A value in another floating dtype.

        Raises
        ------
        UnsupportedPatternError
            Of float64: PyTorch rounds it to half types by way of float32.
        """
        if x.tensor.dtype == dtype:
            return x
        if "float64" in (x.tensor.dtype, dtype):
            raise UnsupportedPatternError(f"from {x.tensor.dtype} to {dtype}")
        return LoweredValue(self.net.cast(x.tensor, dtype, name=self.name("cast")), x.axes)

    def laid_as(self, x: LoweredValue, axes: tuple[int, ...]) -> LoweredValue:
        """A value in a tensor whose axes lie so, copied where they do not.

        Raises
        ------
        UnsupportedPatternError
            In inference: of each block of an image it would read all; and if images lie apart.
        """
        if x.axes == axes:
            return x
        if not self.training or x.axes.index(0) != axes.index(0):
            raise UnsupportedPatternError(f"a value of {x.shape}, permuted apart")
        order = [x.axes[axes.index(axis)] for axis in range(len(axes))]
        factors = [(extent,) for extent in x.tensor.shape]
        name = self.name("permute")
        tensor = self.net.rearrange(x.tensor, factors, [(each,) for each in order], name=name)
        return LoweredValue(tensor, axes)

    def widened(self, value: Any, dtype: torch.dtype) -> Value:
        """A given value in a dtype that holds all of its numbers.

        Raises
        ------
        UnsupportedPatternError
            If it does not, or what should be given depends on the inputs.
        """
        if not isinstance(value, Value):
            raise UnsupportedPatternError(_BY_INPUTS)
        if value.dtype == dtype:
            return value
        if torch.promote_types(value.dtype, dtype) != dtype:
            raise UnsupportedPatternError(f"{value.dtype} in {dtype}")
        return self.made_as("widened", lambda given: given.to(dtype), value, dtype)

    def made_as(
        self, what: str, function: Callable[..., torch.Tensor], value: Value, dtype: torch.dtype
    ) -> Value:
        """A value that PyTorch makes of another one before each call, in another dtype."""
        result = Value(f"{value.name}.{what}", value.shape, dtype)
        if value in self.differentiable and dtype.is_floating_point:
            self.differentiable.add(result)
        if not any(result in each.results for each in self.before):
            self.before.append(Operation(function, what, (value,), {}, {}, (result,), self._module))
        return result

    def given(self, value: Any, shape: Sequence[int] | None = None) -> Tensor:
        """A tensor of the network for what is given, in a shape of as many elements."""
        return self._declared(value, shape, "input")

    def parameter(self, value: Any, shape: Sequence[int] | None = None) -> Tensor:
        """The same, for what nodes take as parameters."""
        return self._declared(value, shape, "parameter")

    def optional(self, value: Any, shape: Sequence[int] | None = None) -> Tensor | None:
        """A parameter that may be left out."""
        return None if value is None else self.parameter(value, shape)

    def _declared(self, value: Any, shape: Sequence[int] | None, kind: str) -> Tensor:
        if not isinstance(value, Value):
            raise UnsupportedPatternError(_BY_INPUTS)
        if value.kind == "made" and not self._is_made_before(value):
            raise UnsupportedPatternError(f"{value.name} is made of the inputs by PyTorch")
        source = GivenInputs(value, tuple(value.shape if shape is None else shape))
        for known in ((source, "parameter"), (source, kind)):
            if known in self._given:
                return self._given[known]
        dtype = str(value.dtype).removeprefix("torch.")
        name = _without_blanks((value.source if value.is_held else "") or value.name)
        while name in self.net.graph.tensors:
            name += "_"
        if kind == "parameter":
            tensor = self.net.parameter(name, source.shape, dtype)
            self.parameters[tensor.name] = source
            if value not in self.differentiable:
                self.net.freeze(tensor.name)
        else:
            gradient = value in self.differentiable
            tensor = self.net.input(name, source.shape, dtype, gradient=gradient)
            self.inputs[tensor.name] = source
        self._given[source, kind] = tensor
        return tensor

    def _is_made_before(self, value: Value) -> bool:
        return any(value in each.results for each in (*self.graph.before, *self.before))

    def statistics(self, value: Value, name: str, dtype: str) -> Any:
        """Return the tensor of a buffer that a node updates or reads: shared if another one does.

        The network holds it in a dtype of its own.
        """
        given = GivenInputs(value, value.shape)
        if (given, "running") in self._given:
            return self._given[given, "running"]
        self.running[name] = given
        return torch.empty(value.shape, dtype=getattr(torch, dtype), device="meta")

    def now_lasting(self, value: Value, name: str) -> None:
        """Note the tensor that a node made of `statistics`."""
        key = (GivenInputs(value, value.shape), "running")
        if key not in self._given:  # else another node updates it before
            self._given[key] = self.net.graph.tensors[name]


def _those(read: Collection[str], given: Mapping[str, GivenInputs]) -> dict[str, GivenInputs]:
    """Those that nodes read: a rule that was given up may have asked for more."""
    return {name: each for name, each in given.items() if name in read}


def _wanted(operation: Operation) -> tuple[int | None, bool]:
    """The axis of channels that a layer takes, and whether all axes are to be in their order."""
    if operation.name in ("linear", "layer_norm"):
        return -1, False
    if operation.name in ("cat", "concat"):
        return operation.arguments.get("dim", 0), False
    return None, operation.name in LAYERS | LOSSES


def _as_it_runs(operation: Operation) -> Operation:
    """The operation, or an alias in place of one that changes nothing."""
    told = operation.arguments
    nothing = ("dropout" in operation.name and not draws(operation)) or (
        operation.name == "pad" and not any(told["pad"])
    )
    if not nothing:
        return operation
    alias = torch.ops.aten.alias.default
    lead = operation.reads[:1]
    return replace(operation, function=alias, name="alias", args=lead, kwargs={}, arguments={})
