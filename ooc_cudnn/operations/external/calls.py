"""Calls of external functions: a function on some images, and its gradients.

The library knows its shapes, what it costs and what memory it takes elsewhere on the device; it
cuts it along the images, and adds up the gradients of what all images share.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc_cudnn.operations.core.call import (
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    random_range,
)
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.elementwise.dropout import STATE
from ooc_cudnn.tensor import DTYPES
from perfmodel import Split, Work, pass_work
from perfmodel.cached import cached_property

IMAGES = frozenset({"n"})
#: Floating-point operations a byte from which arithmetic is what takes time: an H200 does some
#: 300 TFLOP/s in TF32, and reads and writes 4 TB/s.
DENSE_FLOPS_PER_BYTE = 75


class Cost(NamedTuple):
    """Cost of a function on so many images.

    Attributes
    ----------
    held_bytes : int
        Device memory beside operands and results, at the most.
    moved_bytes : int
        Read and written in device memory, operands and results among them.
    flops : int
        Of matrix products.
    """

    held_bytes: int
    moved_bytes: int
    flops: int


class RandomSource(NamedTuple):
    """Source of random numbers: the same for an image however the batch is cut.

    Attributes
    ----------
    state : array, shape (2,)
        A seed, and which step it is.
    first : int
        The first image's number in the whole batch.
    """

    state: Any
    first: int


class ExternalRun(NamedTuple):
    """Run of an external function: how it is to be computed.

    Attributes
    ----------
    at_once : int
        The most images at a time: what it takes elsewhere is as much as they take.
    stream : stream, optional
        Of the device, in whose order it is.
    drawn : RandomSource, optional
        From what random numbers are made, where there are some.
    adds : bool
        Whether gradients are added to what is there.
    """

    at_once: int
    stream: Any = None
    drawn: RandomSource | None = None
    adds: bool = False


class Computation(Protocol):
    """A function of arrays. It is a frozen dataclass whose fields tell it from all others.

    Arrays are what a device has: NumPy's, or what has ``__cuda_array_interface__``.
    """

    @property
    def name(self) -> str:
        """Name of the function: "aten.softmax"."""

    @property
    def why(self) -> str:
        """Reason why the library does not compute it, in a short line."""

    @property
    def may_be_recorded(self) -> bool:
        """True if it does on a device what the arrays' shapes say: no host, no drawing."""

    def cost(self, images: int, wanted: tuple[int, ...] | None) -> Cost:
        """Cost; with `wanted` of the gradients of these inputs."""

    def forward(self, inputs: Sequence[Any], ys: Sequence[Any], how: ExternalRun) -> None:
        """Compute all results, and write them."""

    def backward(
        self,
        inputs: Sequence[Any],
        dys: Mapping[int, Any],
        gradients: Mapping[int, Any],
        how: ExternalRun,
    ) -> None:
        """Compute gradients of inputs by their numbers, and write or add them.

        From the gradients of results by theirs; of the others there is none.
        """


class ExternalInput(NamedTuple):
    """An input.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    of_images : bool
        Whether its first axis is that of the images; each has as many elements of it.
    """

    shape: Shape
    dtype: str
    of_images: bool


class ExternalResult(NamedTuple):
    """A result; its first axis is that of the images.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    """

    shape: Shape
    dtype: str


def numbered(name: str, at: int) -> str:
    """The operand of a result: the first has no number.

    >>> numbered("y", 0), numbered("y", 1)
    ('y', 'y1')
    """
    return f"{name}{at or ''}"


@dataclass(frozen=True)
class ExternalLaunch:
    """Results from all inputs; or gradients from all inputs and those of results.

    What draws random numbers has its state behind its inputs. What is written but for the first
    comes last.

    Parameters
    ----------
    images, at_once : int
        Of the piece; and how many of them at a time.
    first : int, optional
        Of what draws: the number of the first image.
    wanted : tuple of int, optional
        The inputs whose gradients are made; None forward.
    output_shape : tuple of int
    dtype : str
    adds : bool
        Whether gradients are added to what is there: on the host alone.
    results : tuple of int
        The results that are made, or whose gradients are there.
    """

    computation: Computation
    images: int
    at_once: int
    wanted: tuple[int, ...] | None
    output_shape: Shape
    dtype: str
    first: int | None = None
    adds: bool = False
    results: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"{self.computation.name}{'' if self.wanted is None else ' gradient'}"

    @property
    def cost(self) -> Cost:
        """Cost of the launch."""
        return self.computation.cost(self.images, self.wanted)

    def work(self) -> Work:
        """Work by its arithmetic where that is dense, else by the bytes read and written."""
        _, moved, flops = self.cost
        if flops > DENSE_FLOPS_PER_BYTE * moved:
            key = f"convolution/{self.dtype}/channels_first"
            return Work(key, float(flops), float(moved), problem=self.name)
        elements = moved // DTYPES[self.dtype] // 2
        key = f"pointwise/{self.dtype}"
        return pass_work(key, device_bytes=float(moved), elements=elements, problem=self.name)

    def run(self, inputs: Sequence[Any], output: Any, stream: Any = None) -> None:
        """Compute."""
        made = self.results if self.wanted is None else self.wanted
        count = len(inputs) - len(made) + 1
        taken, made_here = list(inputs[:count]), (output, *inputs[count:])
        dys = {}
        if self.wanted is not None:
            count -= len(self.results)
            dys = dict(zip(self.results, taken[count:], strict=True))
            taken = taken[:count]
        drawn = None if self.first is None else RandomSource(taken.pop(), self.first)
        how = ExternalRun(min(self.at_once, self.images), stream, drawn, self.adds)
        if self.wanted is None:
            self.computation.forward(taken, made_here, how)
        else:
            gradients = dict(zip(self.wanted, made_here, strict=True))
            self.computation.backward(taken, dys, gradients, how)


@dataclass(frozen=True)
class AnyExternalCall(BuiltCall):
    """Shared by both directions: cut along the images; of a piece so many are computed at once.

    On the host nothing is cut: arrays there are whole. `y_shape` and `dtype` are of the first
    result, `others` are those behind it.
    """

    computation: Computation
    inputs: tuple[ExternalInput, ...]
    y_shape: Shape
    dtype: str
    images: int
    at_once: int
    draws: bool = False
    on_host: bool = False
    others: tuple[ExternalResult, ...] = ()

    is_external = True
    wanted = None
    lead = "y"

    @property
    def may_be_recorded(self) -> bool:  # type: ignore[override]
        """True if the computation may be, and nothing is drawn."""
        return self.computation.may_be_recorded and not self.draws

    @cached_property
    def _taken(self) -> dict[str, Operand]:
        found = {
            f"x{at}": Operand(each.shape, each.dtype, IMAGES if each.of_images else frozenset())
            for at, each in enumerate(self.inputs)
        }
        return {**found, "state": STATE} if self.draws else found

    def launch_key(self, piece: Piece) -> Hashable:
        """Key of a piece's launches; with its position where it draws random numbers."""
        return super().launch_key(piece), piece.n[0] if self.draws else None

    @property
    def extents(self) -> Split:
        return Split(n=self.images, c_y=1, c_x=1, h_y=1)

    @property
    def row_axes(self) -> tuple[int, ...]:
        return (ROW_AXIS,)

    def region(self, name: str, piece: Piece) -> Region:
        shape, _, axes = self.operands[name]
        if not axes:
            return tuple((0, extent) for extent in shape)
        per_image = shape[0] // self.images
        first = (piece.n[0] * per_image, piece.n[1] * per_image)
        return (first, *((0, extent) for extent in shape[1:]))

    @cached_property
    def outside_bytes(self) -> int:
        """Device memory that is taken elsewhere while a piece is computed."""
        return self.outside_bytes_of(min(self.at_once, self.images))

    def outside_bytes_of(self, images: int) -> int:
        """The same for so many images at once."""
        return int(self.computation.cost(images, self.wanted).held_bytes)

    def of_at_most(self, images: int) -> Any:
        """The same call, no more images at once."""
        return replace(self, at_once=images)

    def there(self) -> Any:
        """The same call, on the host."""
        return replace(self, on_host=True)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The results that are made, or whose gradients are there: all."""
        return tuple(range(1 + len(self.others)))

    def _of_results(self, name: str) -> dict[str, Operand]:
        """The operands of these results, or of their gradients."""
        found = (ExternalResult(self.y_shape, self.dtype), *self.others)
        return {
            numbered(name, at): Operand(found[at].shape, found[at].dtype, IMAGES)
            for at in self.numbers
        }

    def _build_all(self, build: Builder, reads: tuple[str, ...] = ()) -> None:
        """Launch what makes all results at once, each to where it may be written."""
        targets = {
            result: result if self.on_host else build.target(result) for result in self.results
        }
        images, (first, *others) = build.piece.n[1] - build.piece.n[0], targets.values()
        shape = build.buffers[first].shape
        operation = self._launched(images, shape, build.piece.n[0])
        build.launch(operation, (*self._taken, *reads, *others), first)
        for result, target in targets.items():
            build.complete(result, target)

    def _launched(self, images: int, shape: Shape, first: int) -> ExternalLaunch:
        """Operation that is launched on a piece."""
        at = first if self.draws else None
        told = (self.at_once, self.wanted, shape, self.dtype, at, self.on_host and self.beta != 0)
        return ExternalLaunch(self.computation, images, *told, self.numbers)

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()._replace(n=random_range(random, self.images, 1))

    def rounding(self) -> Rounding:
        """Sums of no more terms than an image has elements."""
        terms = max(math.prod(each.shape) for each in self.inputs if each.of_images)
        return Rounding(max(terms // self.images, 1), self.dtype, 16)


@dataclass(frozen=True)
class ExternalCall(AnyExternalCall):
    """y from x0, x1 and so on; of several results y, y1 and so on."""

    reduced = ()

    @cached_property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._of_results("y"))

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {**self._taken, **self._of_results("y")}

    def build(self, build: Builder) -> None:
        """One result in any memory order; several at once, each to where it may be written."""
        if self.others:
            self._build_all(build)
            return
        images, order = build.piece.n[1] - build.piece.n[0], build.buffers["y"].order
        shape = build.buffers["y"].shape
        made = self._launched(images, shape, build.piece.n[0])
        build.make(made, tuple(self._taken), "y", order)

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Compute by the same function in float64: it checks the cut, and the rounding."""
        inputs = [_read(self, name, piece, read) for name in self._taken]
        ys = [
            np.empty([stop - start for start, stop in self.region(name, piece)])
            for name in self.results
        ]
        made = self._launched(piece.n[1] - piece.n[0], ys[0].shape, piece.n[0])
        made.run((*inputs, *ys[1:]), ys[0])
        return {name: (y, _size(y, inputs)) for name, y in zip(self.results, ys, strict=True)}


@dataclass(frozen=True)
class ExternalGradientCall(AnyExternalCall):
    """dx0 and so on, of those that are `wanted`, from x0, x1 and so on, and dy.

    Those of what all images share are added up over the pieces. Of several results those that are
    `given` have a gradient.
    """

    wanted: tuple[int, ...] = ()  # type: ignore[assignment]
    given: tuple[int, ...] = (0,)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.given

    @property
    def lead(self) -> str:  # type: ignore[override]
        """The first gradient that there is."""
        return numbered("dy", self.given[0])

    @cached_property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"dx{at}" for at in self.wanted)

    @cached_property
    def reduced(self) -> tuple[str, ...]:  # type: ignore[override]
        """The images, where a gradient is summed over them."""
        return ("n",) * any(not self.inputs[at].of_images for at in self.wanted)

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        taken = self._taken
        results = {f"dx{at}": taken[f"x{at}"] for at in self.wanted}
        return {**taken, **self._of_results("dy"), **results}

    def build(self, build: Builder) -> None:
        """All gradients at once, each to where it may be written."""
        self._build_all(build, tuple(self._of_results("dy")))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        """Expected gradients of what images have, by the same function in float64."""
        inputs = [_read(self, name, piece, read) for name in self._taken]
        dys = [read(name, self.region(name, piece)) for name in self._of_results("dy")]
        gradients = {
            at: np.empty([stop - start for start, stop in self.region(f"dx{at}", piece)])
            for at in self.wanted
        }
        first, *others = gradients.values()
        operation = self._launched(piece.n[1] - piece.n[0], first.shape, piece.n[0])
        operation.run((*inputs, *dys, *others), first)
        whole = piece.n == (0, self.images)
        return {
            f"dx{at}": (dx, _size(dx, (*inputs, *dys)))
            for at, dx in gradients.items()
            if whole or self.inputs[at].of_images
        }


def _read(call: AnyExternalCall, name: str, piece: Piece, read: Read) -> Array:
    found = read(name, call.region(name, piece))
    dtype = call.operands[name].dtype
    return found if dtype in DTYPES else found.astype(dtype)


def _size(found: Array, inputs: Sequence[Array]) -> Array:
    """Bound of the terms of sums: the largest of what is read and made."""
    largest = max(float(np.abs(each).max(initial=0.0)) for each in (found, *inputs))
    return np.abs(found) + largest
