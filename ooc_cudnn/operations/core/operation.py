"""Interface of operations: shapes, halo, work, and the launches that compute them.

An operation is a pure description of one computation; it holds no data. The operation that runs on
one piece is an operation of the same class with the piece's shapes, so a device needs nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc_cudnn.operations.core.ranges import Cycle, Range, Rows
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from perfmodel import Work

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


class Parameter(NamedTuple):
    """An operand of an operation besides its input: a filter, a bias."""

    name: str
    shape: Shape
    dtype: str = ""  #: x's when left out


def number_names(names: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Operand names of a chain's parameters: those that repeat carry their operation's number.

    >>> number_names([("w",), ("b",), (), ("w",)])
    (('w0',), ('b',), (), ('w3',))
    """
    every = [name for group in names for name in group]
    return tuple(
        tuple(name if every.count(name) == 1 else f"{name}{at}" for name in group)
        for at, group in enumerate(names)
    )


class Operation(Protocol):
    """One computation on a tensor of `input_shape` that gives one of `output_shape`."""

    @property
    def name(self) -> str:
        """The function's name, cuDNN's in snake case."""

    @property
    def input_shape(self) -> Shape:
        """Shape of the tensor that flows in."""

    @property
    def output_shape(self) -> Shape:
        """Shape of the tensor that flows out."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The other operands, in the order `reference` takes them."""

    def input_rows(self, rows: Range, row_axis: int) -> Rows:
        """Rows of the input that output rows `rows` need: the halo, clipped, with its padding."""

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int) -> Operation:
        """Return the same operation on `n` images, the given input rows and so many channels.

        Only operations that keep channels apart are ever asked for less than all.
        """

    def work(self) -> Work:
        """Work, in the features that the performance model is fitted on."""

    def reference(self, x: Array, *parameters: Array) -> Array:
        """Compute it plainly in float64; slow, for checking (`verify`) and for tests."""

    def magnitude(self, x: Array, *parameters: Array) -> Array:
        """Bound the sums that `reference` makes, without cancellation, for |x| of that size."""


class PositionDependent(ABC):
    """Mixin of an operation of which a piece depends on where its output rows lie.

    The padding that its input rows bring along does not tell it all.
    """

    @abstractmethod
    def on_rows(self, n: int, made: Range, needed: Rows, channels: int, row_axis: int) -> Any:
        """Return what is launched on a piece that makes output rows `made` from rows `needed`."""

    def on_piece(self, n: int, rows: Rows, channels: int, row_axis: int = ROW_AXIS) -> Any:
        """Return what is launched on all rows of so many images."""
        made = (0, self.output_shape[row_axis])  # type: ignore[attr-defined]
        return self.on_rows(n, made, rows, channels, row_axis)

    def phase(self, made: Range, row_axis: int) -> Hashable:
        """Key of a piece's launches besides its size."""
        return None

    @abstractmethod
    def cycle(self, row_axis: int) -> Cycle:
        """Cycle of output rows after which it looks at its input in the same way again."""

    @abstractmethod
    def meets_border(self, made: Range, row_axis: int) -> bool:
        """True if a border of the tensors changes what output rows are made of."""


def on_sites(
    operation: Any, images: int, channels: int, sites: Sequence[Range]
) -> tuple[Any, tuple[Range, ...]]:
    """Return the operation that makes these sites of so many images, and the sites it needs."""
    axes = list(enumerate(sites, ROW_AXIS))
    needed = [operation.input_rows(rows, axis) for axis, rows in axes]
    result = operation
    if not sites:
        result = result.on_piece(images, Rows(0, 1, 0, 0), channels, ROW_AXIS)
    for (axis, rows), of_axis in zip(axes, needed, strict=True):
        if isinstance(operation, PositionDependent):
            result = result.on_rows(images, rows, of_axis, channels, axis)
        else:
            result = result.on_piece(images, of_axis, channels, axis)
    return result, tuple((rows.start, rows.stop) for rows in needed)
