"""A launch: one operation of a device on named buffers, and facts about each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.row_axis import ROW_AXIS, replace_rows
from ooc_cudnn.tensor import ITEM_BYTES, packed_strides
from perfmodel import Work


class Buffer(NamedTuple):
    """A tensor that a launch reads or writes.

    `block` names the memory it lies in (its own name when left out): buffers of different times
    share a block. `rows` is (first row, all rows) where it is a range of rows of a taller tensor;
    rows lie along `row_axis`. `channels` are those of the tensor where it is some of a wider one.
    """

    shape: Shape
    dtype: str
    order: str
    block: str = ""
    rows: tuple[int, int] | None = None
    row_axis: int = ROW_AXIS
    channels: int = 0

    @property
    def whole(self) -> Shape:
        """Shape of the tensor whose rows or channels it is, or its own."""
        shape = self.shape
        if self.rows is not None:
            shape = replace_rows(shape, self.rows[1], self.row_axis)
        return (shape[0], self.channels, *shape[2:]) if self.channels else shape

    @property
    def nbytes(self) -> int:
        """Bytes of the packed whole."""
        return math.prod(self.whole) * ITEM_BYTES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return packed_strides(self.whole, self.order)

    @property
    def offset_bytes(self) -> int:
        """Offset of its first row in the whole."""
        if self.rows is None:
            return 0
        return self.rows[0] * self.strides[self.row_axis] * ITEM_BYTES[self.dtype]


class Launchable(Protocol):
    """A computation of a device on one piece: a pure description.

    One whose kernels take maps of any strides, not packed ones alone, has `any_strides = True`.
    """

    @property
    def name(self) -> str:
        """Name of the operation."""

    def work(self) -> Work:
        """Work of the operation."""


class Launch(NamedTuple):
    """One operation on one piece: names of the buffers it reads and of the one it writes.

    Which inputs an operation takes, and in which order, its docstring says ("y from (x, w)"); ""
    stands for one that is absent.
    """

    operation: Any  # a Launchable; each device knows those it can run
    inputs: tuple[str, ...]
    output: str
