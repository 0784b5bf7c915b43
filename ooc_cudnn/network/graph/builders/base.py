"""Base of builders: names, parameters, and errors that name the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ooc_cudnn.keywords import explain_keyword
from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.initializers import Initial
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.graph.parameters import Parameters
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape

P = ParamSpec("P")
B = TypeVar("B", bound="Builders")


def builder(
    method: Callable[Concatenate[B, P], Tensor],
) -> Callable[Concatenate[B, P], Tensor]:
    """Make a method that adds one node a builder.

    It is called with a ``name`` that is its node's own ("convolution_3" where the user gave none).
    What it raises begins with that name, and leaves the network as it was. ``net.resized`` calls it
    again.
    """

    @wraps(method)
    def built(self: B, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        name = self._fresh_name(method.__name__, kwargs.get("name", ""))
        known = self._known()
        try:
            result = method(self, *args, **{**kwargs, "name": name})  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            self._forget(self._known() - known)
            said = explain_keyword(method, kwargs) or error
            raise type(error)(f"{name}: {said}") from error
        self._calls.append((method.__name__, args, {**kwargs, "name": name}))
        return result

    return built  # type: ignore[return-value]  # called as a method


class Builders:
    """A network as its builders see it."""

    def __init__(self, seed: int) -> None:
        self.graph = Graph()
        self.parameters = Parameters(seed)
        self.running = Parameters(seed)
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def _fresh_name(self, kind: str, name: object = "") -> str:
        """The name that a user gave, if it is a new one, or ``kind_1`` and so on.

        Raises
        ------
        TypeError, ValueError
            On a name that is none, or there already.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        if name:
            if name in self.graph.tensors:
                raise ValueError(f"name {name!r} is taken: names are given once")
            if any(letter.isspace() for letter in name):
                # with a blank the library names what it makes of a tensor
                raise ValueError(f"name {name!r} must not hold blanks")
            return name
        return next(
            label for at in range(1, 2**30) if (label := f"{kind}_{at}") not in self.graph.tensors
        )

    def _result(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """The result of a node that is to be added."""
        return Tensor(name, shape, dtype)

    def _add(self, node: Node) -> Tensor:
        """Add a node, and return its result."""
        return self.graph.add(node)

    def _own(self, tensor: object, argument: str = "x", *, dtype: str = "") -> Tensor:
        """Return what is a map or an input of this network, of a floating dtype.

        Without `dtype` it must be a map: images of channels.

        Raises
        ------
        TypeError, ValueError
            Naming the argument.
        """
        operand = self.graph.check_own(tensor, argument)
        if dtype and operand.dtype != dtype:
            raise TypeError(f"{argument} must be {dtype}, but {operand.name} is {operand.dtype}")
        if not dtype and not operand.is_floating:
            raise TypeError(
                f"{argument} must be a floating tensor, but {operand.name} is {operand.dtype}"
            )
        if not dtype and not 2 <= len(operand.shape) <= 5:
            raise ValueError(
                f"{argument} must have shape (n, c, up to 3 spatial axes), but {operand.name} has "
                f"{operand.shape}"
            )
        return operand

    def _parameter(
        self, node: str, name: str, shape: Shape, dtype: str, initial: Initial, given: Any = None
    ) -> Tensor:
        """Make a parameter of a node: "w" of "convolution_1" is "convolution_1.w".

        Parameters
        ----------
        initial : Initial
            What it holds where nothing is given: `he(fan_in)`, `zeros`, `ones`.
        given : array or Tensor, optional
            Its values; or a parameter of this network, which is then shared.
        """
        made = Tensor(f"{node}.{name}", shape, dtype, "parameter")
        if isinstance(given, Tensor):
            return self._shared(given, made, name)
        return self._lasting(self.parameters, made, initial, given)

    def _shared(self, replacement: Tensor, original: Tensor, argument: str) -> Tensor:
        """Return what is given in place of another tensor of its kind."""
        shared = self.graph.check_own(replacement, argument)
        if shared.kind != original.kind:
            said = f"{argument} must be of kind {original.kind}"
            raise ValueError(f"{said}, but {shared.name} is no {original.kind}")
        if (shared.shape, shared.dtype) != (original.shape, original.dtype):
            raise ValueError(
                f"{argument} must have shape {original.shape} and dtype {original.dtype}, but "
                f"{shared.name} has {shared.shape} and {shared.dtype}"
            )
        return shared

    def _running_statistics(
        self, node: str, name: str, shape: Shape, dtype: str, initial: Initial, given: Any = None
    ) -> Tensor:
        """Make what a step updates in place and inference reads, or share what another node has."""
        made = Tensor(f"{node}.{name}", shape, dtype, "running")
        if isinstance(given, Tensor):
            return self._shared(given, made, name)
        return self._lasting(self.running, made, initial, given)

    def _lasting(self, group: Parameters, entry: Tensor, initial: Initial, array: Any) -> Tensor:
        if entry.name not in group.tensors:
            group.declare(entry, initial, array)
        elif entry != group.tensors[entry.name]:  # of the network that this one is a resized one of
            raise ValueError(
                f"{entry.name} has shape {group.tensors[entry.name].shape}, and would have "
                f"{entry.shape}: this node does not take inputs of another size"
            )
        return self.graph.add_tensor(entry)

    def _known(self) -> set[tuple[str, str]]:
        """The names that are there, and where: a resized network shares its parameters."""
        places = {
            "parameter": self.parameters,
            "running": self.running,
            "tensor": self.graph.tensors,
        }
        return {(place, name) for place, names in places.items() for name in names}

    def _forget(self, names: set[tuple[str, str]]) -> None:
        """Take out again what was added for a node that could not be made."""
        for place, name in names:
            if place == "tensor":
                del self.graph.tensors[name]
                self.graph.nodes.pop(name, None)
            else:
                (self.parameters if place == "parameter" else self.running).forget(name)


def translate_arguments(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The arguments of a builder, with the tensors of another network that have these names."""
    if isinstance(value, Tensor):
        return tensors[value.name]
    if isinstance(value, dict):
        return {name: translate_arguments(item, tensors) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(translate_arguments(item, tensors) for item in value)
    return value
