"""Lowering: a captured graph to a `Network`, operation by operation, by the table in `rules`.

A value that depends on the call's inputs is a tensor of the network, whose axes it may name in
another order: a permutation costs nothing. Whatever else an operation reads (parameters, buffers,
what PyTorch makes of them before each call) the network is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from ooc_cudnn.network.network import Network
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.torch.errors import UnsupportedModelError, UnsupportedOperationError
from ooc_cudnn.torch.graph import Graph, Operation, Value, replaced

R = TypeVar("R", bound=Callable[..., Any])
RULES: dict[str, Callable[..., Held | tuple[Held | None, ...]]] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Enter a rule into the table, for ATen operations of these names.

    It takes the lowering and the operation's arguments by ATen's names, and returns what the value
    is in the network, or a tuple of that for several results.
    """

    def entered(made: R) -> R:
        for name in names:
            RULES[name] = made
        return made

    return entered


#: What takes memory and time: PyTorch is not left with it, for it knows no limit.
LAYERS = frozenset(
    f"{name}{axes}d"
    for name in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_avg_pool")
    for axes in (1, 2, 3)
) | {"batch_norm", "instance_norm", "group_norm", "layer_norm", "linear"}


class Held(NamedTuple):
    """A value in the network.

    Attributes
    ----------
    tensor : Tensor
    axes : tuple of int
        Of each axis of the value, the tensor's axis that it is.
    """

    tensor: Tensor
    axes: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Held:
        """A tensor as it is."""
        return cls(tensor, tuple(range(len(tensor.shape))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's."""
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    @property
    def is_plain(self) -> bool:
        """Whether the axes are the tensor's."""
        return self.axes == tuple(range(len(self.axes)))


class Unlike(Exception):  # told apart within this room alone
    """A rule has an operation, but not in this form; it says why."""


class Given(NamedTuple):
    """What a network is given before each call.

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
class Lowered:
    """A network, and how it is called as the model is.

    Attributes
    ----------
    network : Network
    outputs : tuple of Tensor
        Of the network, each once.
    results : tuple
        Of each output of the model: a `Held` of one of them, a value that is given, or a constant.
    inputs, parameters, running : mapping
        Name in the network to what it is given.
    drawn : tuple of str
        States of dropout among the running statistics: a seed and a count.
    before : tuple of Operation
        What PyTorch runs before each call beside that of the graph: parameters as nodes want them.
    after : tuple of Operation
        What PyTorch runs on results of the network: there is no rule for it, or for what it reads.
    handed : mapping
        The values of the network that it reads.
    """

    network: Network
    outputs: tuple[Tensor, ...]
    results: tuple[Any, ...]
    inputs: Mapping[str, Given]
    parameters: Mapping[str, Given]
    running: Mapping[str, Given]
    drawn: tuple[str, ...]
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    handed: Mapping[Value, Held]

    @property
    def given(self) -> Mapping[str, Given]:
        """All that the network is given from the model."""
        return {**self.inputs, **self.parameters, **self.running}


def lowered(
    graph: Graph, differentiable: frozenset[Value], *, training: bool, strict: bool = False
) -> Lowered:
    """Lower a graph.

    Parameters
    ----------
    differentiable : frozenset of Value
        Those of what is given that have gradients.
    training : bool
        Whether gradients are made, or what modules do in training alone.
    strict : bool
        Whether PyTorch may run nothing of it.

    Raises
    ------
    UnsupportedOperationError
        On an operation that there is no rule for, with the user's line, if `strict`; or if layers
        follow it.
    """
    return Lowering(graph, differentiable, training=training, strict=strict).lowered()


class Lowering:
    """A network being built; rules call its methods."""

    def __init__(
        self,
        graph: Graph,
        differentiable: frozenset[Value],
        *,
        training: bool,
        strict: bool = False,
    ) -> None:
        self.graph, self.differentiable, self.training = graph, set(differentiable), training
        self.strict = strict
        self.after: list[Operation] = []
        #: Of what is made after the network, the error that made it so.
        self._late: dict[Value, UnsupportedOperationError] = {}
        self.net = Network()
        self.inputs: dict[str, Given] = {}
        self.parameters: dict[str, Given] = {}
        self.running: dict[str, Given] = {}
        self.drawn: list[str] = []
        self.before: list[Operation] = []
        self._held: dict[Value, Held] = {}
        self._given: dict[tuple[Given, str], Tensor] = {}
        self._module = ""

    def lowered(self) -> Lowered:
        """Lower everything."""
        for operation in self.graph.operations:
            late = [self._late[read] for read in operation.reads if read in self._late]
            try:
                if late:
                    raise late[0]
                self._lower(operation)
            except UnsupportedOperationError as error:
                self._leave(operation, error)
        results, outputs = [], dict[str, Tensor]()
        handed = {
            value: self._held[value]
            for operation in self.after
            for value in operation.reads
            if value in self._held and value.kind != "input"
        }
        for held in handed.values():
            outputs.setdefault(held.tensor.name, held.tensor)
        for each in self.graph.outputs:
            found = each
            if isinstance(each, Value) and (each in self._held or each.kind == "input"):
                found = self._held.get(each, each)
            if isinstance(found, Held):
                if found.tensor.name not in self.net.graph.nodes:  # given, in another order
                    raise UnsupportedModelError("an output is an input of the model, rearranged")
                outputs.setdefault(found.tensor.name, found.tensor)
            results.append(found)
        return Lowered(
            self.net,
            tuple(outputs.values()),
            tuple(results),
            self.inputs,
            self.parameters,
            self.running,
            tuple(self.drawn),
            tuple(self.before),
            tuple(self.after),
            handed,
        )

    def _leave(self, operation: Operation, error: UnsupportedOperationError) -> None:
        """Leave an operation, and what follows it, to PyTorch, after the network; no layers."""
        layered = any(read in self.differentiable for read in operation.reads)
        if self.strict or layered or operation.name in LAYERS:
            raise error
        self.after.append(operation)
        self._late.update({value: error for value in operation.results if value is not None})

    def _lower(self, operation: Operation) -> None:
        lower = RULES.get(operation.name)
        if lower is None:
            raise UnsupportedOperationError(
                operation.said, operation.where, "the library has no such operation"
            )
        self._module = operation.module or operation.name
        try:
            found = lower(self, **replaced(dict(operation.arguments), self._argument))
        except (Unlike, ValueError, TypeError) as error:
            said = str(error)
            raise UnsupportedOperationError(operation.said, operation.where, said) from error
        parts = (found,) if isinstance(found, Held) else found
        for value, held in zip(operation.results, parts, strict=False):
            if value is not None and held is not None:
                if held.shape != value.shape:
                    raise AssertionError(f"{operation.said} made {held.shape}, not {value.shape}")
                self._held[value] = held

    def _argument(self, value: Value) -> Any:
        """As rules take a value: held where it depends on inputs, else as it is."""
        if value.kind == "input" and value not in self._held:
            self._held[value] = Held.of(self.given(value))
        return self._held.get(value, value)

    # What rules are made with ------------------------------------------------------------------

    def name(self, of: str = "") -> str:
        """A name for a node: that of the module it is in, with what it does there."""
        wanted = ".".join(filter(None, (self._module, of)))
        found, count = wanted, 1
        while found in self.net.graph.tensors:
            count += 1
            found = f"{wanted}.{count}"
        return found

    def plain(self, x: Any, *, least: int = 2, most: int = 5) -> Tensor:
        """The tensor of a map of images and channels, in this order.

        Raises
        ------
        Unlike
            If it is none.
        """
        if not isinstance(x, Held):
            raise Unlike("it does not read the inputs first")
        if not x.is_plain:
            raise Unlike("its axes were permuted before")
        if not least <= len(x.axes) <= most:
            raise Unlike(f"it has shape {x.shape}")
        return x.tensor

    def made_before(
        self, what: str, function: Callable[..., torch.Tensor], *values: Value | None
    ) -> Value:
        """A value that a function of PyTorch makes of others before each call, differentiated.

        All are vectors of one shape and dtype.
        """
        first = next(value for value in values if value is not None)
        value = Value(f"{self._module}.{what}.{len(self.before)}", first.shape, first.dtype)
        made = Operation(function, what, values, {}, {}, (value,), self._module)
        if self.differentiable.intersection(made.reads):
            self.differentiable.add(value)
        self.before.append(made)
        return value

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
            raise Unlike("what should be a parameter depends on the inputs")
        given = Given(value, tuple(value.shape if shape is None else shape))
        for known in ((given, "parameter"), (given, kind)):
            if known in self._given:
                return self._given[known]
        dtype = str(value.dtype).removeprefix("torch.")
        name = (value.source if value.kind in ("parameter", "buffer") else "") or value.name
        while name in self.net.graph.tensors:
            name += "_"
        if kind == "parameter":
            made = self.net.parameter(name, given.shape, dtype)
            self.parameters[made.name] = given
            if value not in self.differentiable:
                self.net.freeze(made.name)
        else:
            gradient = value in self.differentiable
            made = self.net.input(name, given.shape, dtype, gradient=gradient)
            self.inputs[made.name] = given
        self._given[given, kind] = made
        return made

    def statistics(self, value: Value, name: str) -> Any:
        """What to hand to a node that updates a buffer, or reads it: shared if another one does."""
        given = Given(value, value.shape)
        if (given, "running") in self._given:
            return self._given[given, "running"]
        self.running[name] = given
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    def now_lasting(self, value: Value, name: str) -> None:
        """Note the tensor that a node made of `statistics`."""
        key = (Given(value, value.shape), "running")
        if key not in self._given:  # else another node updates it before
            self._given[key] = self.net.graph.tensors[name]
