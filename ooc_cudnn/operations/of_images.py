"""Some images of a call: what a step that goes through its batch in parts runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.base import Array
from ooc_cudnn.operations.launches import Buffer, Launch
from ooc_cudnn.operations.splittable import (
    ALONE,
    Accumulation,
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    Splittable,
)
from ooc_cudnn.operations.window import Range, Ranges
from perfmodel import Split
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class OfImages(Splittable):
    """Some images of a call; its tensors hold these images alone.

    Attributes
    ----------
    call : Splittable
        The call of all images.
    images : (int, int)
        The first of them, and the one after the last.
    """

    call: Splittable = None  # type: ignore[assignment]  # fields before it have defaults
    images: Range = (0, 0)

    @classmethod
    def of(cls, call: Splittable, images: Range) -> OfImages:
        """Some images of a call, with its alpha, beta and axis of rows."""
        return cls(
            call=call, images=images, alpha=call.alpha, beta=call.beta, row_axis=call.row_axis
        )

    @cached_property
    def inner(self) -> Splittable:
        """The call, told what this one is told."""
        return replace(self.call, alpha=self.alpha, beta=self.beta, row_axis=self.row_axis)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.call.dtype

    @property
    def lead(self) -> str:  # type: ignore[override]
        return self.call.lead

    @property
    def loop_order(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.call.loop_order

    @property
    def reduced(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.call.reduced

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        return self.call.sweeps

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.call.results

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        count = self.images[1] - self.images[0]
        return {
            name: operand._replace(shape=(count, *operand.shape[1:]))
            if "n" in operand.axes
            else operand
            for name, operand in self.inner.operands.items()
        }

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        return self.inner.loaded

    def scaling(self, result: str) -> tuple[float, float]:
        return self.inner.scaling(result)

    def sweeps_of(self, name: str) -> int:
        return self.inner.sweeps_of(name)

    @property
    def extents(self) -> Split:
        return replace(self.inner.extents, n=self.images[1] - self.images[0])

    @property
    def row_axes(self) -> tuple[int, ...]:
        return self.inner.row_axes

    def may_cut(self, axis: str) -> bool:
        return self.inner.may_cut(axis) and getattr(self.extents, axis) > 1

    def is_legal(self, split: Split) -> bool:
        whole_n = self.inner.extents.n if split.n >= self.extents.n else split.n
        return self.inner.is_legal(replace(split, n=whole_n))

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        if axis != "n":
            return self.inner.axis_ranges(axis, size)
        return super().axis_ranges(axis, size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        return self.inner.distinct(name, axis, cut)

    def region(self, name: str, piece: Piece) -> Region | None:
        found = self.inner.region(name, self._there(piece))
        if found is None or "n" not in self.inner.operands[name].axes:
            return found
        (start, stop), *rest = found
        return ((start - self.images[0], stop - self.images[0]), *rest)

    def _there(self, piece: Piece) -> Piece:
        """A piece of these images, as one of the whole call."""
        first = self.images[0]
        return piece._replace(n=(piece.n[0] + first, piece.n[1] + first))

    def row_key(self, piece: Piece) -> Hashable:
        return self.inner.row_key(self._there(piece))

    def launch_key(self, piece: Piece) -> Hashable:
        return self.inner.launch_key(self._there(piece))

    def meets_border(self, piece: Piece) -> bool:
        return self.inner.meets_border(self._there(piece))

    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        return self.inner.launches(
            self._there(piece), layout=layout, orders=orders, accumulation=accumulation
        )

    def patch(self, random: np.random.Generator) -> Piece:
        raise NotImplementedError("parts of a step are not verified by patches")

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        return self.inner.expected(self._there(piece), read)

    def rounding(self) -> Rounding:
        return self.inner.rounding()
