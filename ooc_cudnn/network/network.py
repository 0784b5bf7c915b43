"""A network: built node by node, with its parameters; planned and run as one step."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, Self

from ooc_cudnn.network.graph import serialize
from ooc_cudnn.network.graph.autodiff import check_loss, forward_step, training_step
from ooc_cudnn.network.graph.builders.attention import AttentionBuilders
from ooc_cudnn.network.graph.builders.base import translate_arguments
from ooc_cudnn.network.graph.builders.elementwise import ElementwiseBuilders
from ooc_cudnn.network.graph.builders.external import OutsideBuilders
from ooc_cudnn.network.graph.builders.losses import LossBuilders
from ooc_cudnn.network.graph.builders.normalizations import NormalizationBuilders
from ooc_cudnn.network.graph.builders.shapes import ShapeBuilders
from ooc_cudnn.network.graph.builders.windows import WindowBuilders
from ooc_cudnn.network.graph.initializers import zeros
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.runtime.planning_api import Runnable
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import DTYPES, ITEM_BYTES


class Network(
    WindowBuilders,
    NormalizationBuilders,
    ElementwiseBuilders,
    ShapeBuilders,
    AttentionBuilders,
    LossBuilders,
    OutsideBuilders,
    Runnable,
):
    """A network, from inputs to a loss or other results.

    Builders (`convolution`, `activation`, ...) add a node and return its result, a tensor with
    `shape`, `dtype` and `name`. Whatever a builder takes was there before it, so cycles cannot
    arise. Each takes a ``name``; without, nodes are numbered by kind in the order of making.

    Parameters
    ----------
    seed : int
        Of the parameters that are not given, and of dropout.

    Attributes
    ----------
    parameters, running : mapping
        Name to array: parameters ("convolution_1.w") in the order of making, and running
        statistics. Arrays are the user's to change, or to replace by others of the same shape.

    Examples
    --------
    >>> import ooc_cudnn
    >>> net = ooc_cudnn.Network()
    >>> x = net.input("images", (8, 3, 32, 32))
    >>> y = net.activation(net.convolution(x, 16, window=3, padding=1))
    >>> y.name, y.shape, list(net.parameters)
    ('activation_1', (8, 16, 32, 32), ['convolution_1.w', 'convolution_1.b'])
    >>> labels = net.input("labels", (8,), "int64")
    >>> loss = net.softmax_cross_entropy(net.linear(y, 10), labels)
    >>> net.plan(loss, machine="h200", memory_limit="1MiB").device_bytes <= 2**20
    True
    """

    def __init__(self, *, seed: int = 0) -> None:
        if not is_int(seed) or seed < 0:
            raise ValueError(f"seed must be an int, 0 or more, not {seed!r}")
        super().__init__(int(seed))
        self._frozen: set[str] = set()
        self._asking: list[str] = []

    def input(
        self, name: str, shape: Iterable[int], dtype: str = "float32", *, gradient: bool = False
    ) -> Tensor:
        """Declare what is given in each step.

        Parameters
        ----------
        shape : tuple of int
            The first axis counts the images of the batch.
        dtype : str
            A floating one, or an integer one for labels and stored images.
        gradient : bool
            Whether steps of training also make its gradient.
        """
        name = self._fresh_name("input", name)
        if dtype not in ITEM_BYTES:
            raise TypeError(f"{name}: dtype must be one of {', '.join(ITEM_BYTES)}, not {dtype!r}")
        extents = _extents_of(name, shape)
        tensor = Tensor(name, extents, dtype, "input")
        if gradient:
            if not tensor.is_floating:
                raise TypeError(f"{name}: an input of dtype {dtype} has no gradient")
            self._asking.append(name)
        options = {"name": name, "shape": tensor.shape, "dtype": dtype, "gradient": gradient}
        self._calls.append(("input", (), options))
        return self.graph.add_tensor(tensor)

    def parameter(
        self, name: str, shape: Iterable[int], dtype: str = "float32", *, array: Any = None
    ) -> Tensor:
        """Make a parameter by itself, to be handed to the nodes that it is for (`w=`, `scale=`).

        Parameters
        ----------
        array : array, optional
            Its values; zeros where left out.
        """
        name = self._fresh_name("parameter", name)
        if dtype not in DTYPES:
            raise TypeError(f"{name}: dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        extents = _extents_of(name, shape)
        tensor = Tensor(name, extents, dtype, "parameter")
        options = {"name": name, "shape": tensor.shape, "dtype": dtype, "array": array}
        self._calls.append(("parameter", (), options))
        return self._lasting(self.parameters, tensor, zeros, array)

    # Freezing ---------------------------------------------------------------------------------

    def freeze(self, *names: str) -> None:
        """Make no gradients of these parameters ("convolution_1.w"), or of whole nodes.

        It counts for plans and steps that are made afterwards.

        Raises
        ------
        ValueError
            If a name is neither a parameter nor a node that has some.
        """
        self._frozen.update(self._parameters_named(names))

    def unfreeze(self, *names: str) -> None:
        """Take `freeze` back."""
        self._frozen.difference_update(self._parameters_named(names))

    def _parameters_named(self, names: Iterable[str]) -> set[str]:
        matches = set()
        for name in names:
            hits = [each for each in self.parameters if each == name or each.startswith(f"{name}.")]
            if not hits:
                raise ValueError(f"{name!r} is neither a parameter nor a node that has some")
            matches.update(hits)
        return matches

    @property
    def wanted(self) -> tuple[str, ...]:
        """Everything whose gradient a step of training makes: parameters, then inputs."""
        return (*(n for n in self.parameters if n not in self._frozen), *self._asking)

    # Other sizes, files -----------------------------------------------------------------------

    def resized(self, /, **shapes: Iterable[int]) -> Self:
        """The same network for inputs of other shapes, on the same parameters.

        Parameters
        ----------
        **shapes : tuple of int
            By the names of inputs; the others stay.

        Raises
        ------
        ValueError
            Where a node does not fit, or a parameter would change its shape; it is named.
        """
        for name in shapes:
            if name not in self.graph.tensors or self.graph.tensors[name].kind != "input":
                raise ValueError(f"{name!r} is no input of this network")
        other = type(self)()
        other.parameters, other.running = self.parameters, self.running
        other._frozen = self._frozen
        tensors = other.graph.tensors
        for builder, arguments, options in self._calls:
            if builder == "input" and options["name"] in shapes:
                options = {**options, "shape": shapes[options["name"]]}
            arguments, options = translate_arguments((arguments, options), tensors)
            getattr(other, builder)(*arguments, **options)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and running statistics to an ``.npz`` file; it is whole or not there.

        `numpy.load` finds what it holds by name. A name that is none of letters, digits, dots,
        dashes and underscores has an entry of another name; `load` knows which.

        Raises
        ------
        TypeError, ValueError
            If a parameter has changed its shape or dtype; the file is as it was then.
        OSError
            If it cannot be written; the same.
        """
        serialize.save(path, self.graph, self.parameters, self.running)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read parameters and running statistics from a file of `save`, into the arrays here.

        Raises
        ------
        ValueError
            If it is the file of another network, or none that `save` wrote, whatever it holds;
            nothing is changed then.
        OSError
            If there is no such file, or it cannot be read.
        """
        serialize.load(path, self.graph, self.parameters, self.running)

    # Phases -----------------------------------------------------------------------------------

    def training_phases(self, loss: Tensor, wanted: Iterable[str] | None = None) -> Step:
        """The phases of a step of training: forward, then every gradient that is wanted.

        That is of what is not frozen, or of what is named.

        Raises
        ------
        ValueError
            If the loss is no scalar.
        """
        check_loss(self.graph.check_own(loss, "loss"))
        return training_step(
            self.graph, (loss,), self.wanted if wanted is None else wanted, current()
        )

    def gradient_phases(self, *outputs: Tensor) -> Step:
        """Forward and backward phases from given gradients of outputs: the step's `seeds`."""
        found = [self.graph.check_own(output, "outputs") for output in outputs]
        return training_step(self.graph, found, self.wanted, current())

    def pausing_phases(self, *outputs: Tensor, seeded: Collection[int] | None = None) -> Step:
        """The same, for gradients that are given when the outputs are there, of some of them."""
        found = [self.graph.check_own(output, "outputs") for output in outputs]
        return training_step(self.graph, found, self.wanted, current(), pauses=True, seeded=seeded)

    def training_forward_phases(self, *outputs: Tensor) -> Step:
        """The phases of training's forward alone: by the batch's statistics, with dropout."""
        found = [self.graph.check_own(output, "outputs") for output in outputs]
        return training_step(self.graph, found, (), current(), pauses=True)

    def forward_phases(self, *outputs: Tensor) -> Step:
        """The phases of inference: what outputs depend on, by running statistics, no dropout."""
        found = [self.graph.check_own(output, "outputs") for output in outputs]
        return forward_step(self.graph, found, current())

    def __repr__(self) -> str:
        elements = sum(_elements(tensor) for tensor in self.parameters.tensors.values())
        return f"Network of {len(self.graph.nodes)} nodes and {elements:,} parameters"


def _elements(tensor: Tensor) -> Any:
    return tensor.nbytes // DTYPES[tensor.dtype]


def _extents_of(name: str, shape: Iterable[int]) -> tuple[int, ...]:
    """A shape as it was asked for, checked."""
    extents = tuple(shape)
    if not extents or not all(is_int(e) and e > 0 for e in extents):
        raise ValueError(f"{name}: shape must hold positive ints, not {shape!r}")
    return tuple(map(int, extents))
