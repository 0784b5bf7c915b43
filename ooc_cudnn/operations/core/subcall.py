"""A part of a call: some images, or some rows, on tensors that hold no more than it touches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.call import (
    ALONE,
    Accumulation,
    Operand,
    Piece,
    Read,
    Region,
    Rounding,
    TiledCall,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.core.ranges import Range, Ranges
from perfmodel import Split
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class SubCall(TiledCall):
    """Some images or rows of a call; its tensors hold what these touch, and no more.

    Attributes
    ----------
    call : TiledCall
        The whole call.
    images, rows : (int, int)
        The first of them, and the one after the last.
    held : tuple of (str, region)
        Of operands that are not whole: the region that their tensor holds.
    """

    call: TiledCall = None  # type: ignore[assignment]  # fields before it have defaults
    images: Range = (0, 0)
    rows: Range = (0, 0)
    held: tuple[tuple[str, Region], ...] = ()

    @classmethod
    def of_images(cls, call: TiledCall, images: Range) -> SubCall:
        """Some images of a call: each tensor that has them holds these alone."""
        held = tuple(
            (name, (images, *((0, extent) for extent in operand.shape[1:])))
            for name, operand in call.operands.items()
            if "n" in operand.axes
        )
        return cls._of(call, images, (0, call.extents.h_y), held)

    @classmethod
    def of_rows(cls, call: TiledCall, rows: Range, held: tuple[tuple[str, Region], ...]) -> SubCall:
        """Some rows of a call."""
        return cls._of(call, (0, call.extents.n), rows, held)

    @classmethod
    def _of(
        cls, call: TiledCall, images: Range, rows: Range, held: tuple[tuple[str, Region], ...]
    ) -> SubCall:
        told = {"alpha": call.alpha, "beta": call.beta, "row_axis": call.row_axis}
        return cls(call=call, images=images, rows=rows, held=held, **told)  # type: ignore[arg-type]

    @cached_property
    def inner(self) -> TiledCall:
        """The call, told what this one is told."""
        told = self.alpha, self.beta, self.row_axis
        if told == (self.call.alpha, self.call.beta, self.call.row_axis):
            return self.call  # with all that it knows of itself
        return replace(self.call, alpha=self.alpha, beta=self.beta, row_axis=self.row_axis)

    @cached_property
    def _held(self) -> dict[str, Region]:
        return dict(self.held)

    @cached_property
    def _all_rows(self) -> bool:
        return self.rows == (0, self.call.extents.h_y)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.inner.dtype

    @property
    def lead(self) -> str:  # type: ignore[override]
        return self.inner.lead

    @property
    def loop_order(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.loop_order

    @property
    def reduced(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.reduced

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        return self.inner.sweeps

    @property
    def on_host(self) -> bool:  # type: ignore[override]
        return self.inner.on_host

    @property
    def is_external(self) -> bool:  # type: ignore[override]
        return self.inner.is_external

    @property
    def may_be_recorded(self) -> bool:  # type: ignore[override]
        return self.inner.may_be_recorded

    @property
    def results(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.results

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            name: operand._replace(shape=tuple(stop - start for start, stop in self._held[name]))
            if name in self._held
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

    @cached_property
    def extents(self) -> Split:
        inner = self.inner.extents
        h_y = inner.h_y if self._all_rows else self.rows[1] - self.rows[0]
        return replace(inner, n=self.images[1] - self.images[0], h_y=h_y)

    @property
    def row_axes(self) -> tuple[int, ...]:
        return self.inner.row_axes if self._all_rows else (self.row_axis,)

    def may_cut(self, axis: str) -> bool:
        return self.inner.may_cut(axis) and getattr(self.extents, axis) > 1

    def is_legal(self, split: Split) -> bool:
        extents, whole = self.extents, self.inner.extents
        sizes = {
            axis: getattr(whole, axis)
            for axis in ("n", "h_y")
            if getattr(split, axis) >= getattr(extents, axis)
        }
        return self.inner.is_legal(replace(split, **sizes))

    def axis_ranges(self, axis: str, size: int) -> Ranges:
        if axis == "n" or (axis == "h_y" and not self._all_rows):
            return super().axis_ranges(axis, size)
        return self.inner.axis_ranges(axis, size)

    def distinct(self, name: str, axis: str, cut: Ranges) -> int:
        return self.inner.distinct(name, axis, cut)

    def region(self, name: str, piece: Piece) -> Region | None:
        region = self.inner.region(name, self.there(piece))
        if region is None or name not in self._held:
            return region
        return tuple(
            (start - first, stop - first)
            for (start, stop), (first, _) in zip(region, self._held[name], strict=True)
        )

    def there(self, piece: Piece) -> Piece:
        """Return a piece of this part, as one of the whole call."""

        def shifted(part: Range, by: int) -> Range:
            return part[0] + by, part[1] + by

        first = 0 if self._all_rows else self.rows[0]
        return piece._replace(
            n=shifted(piece.n, self.images[0]),
            h_y=shifted(piece.h_y, first),
            after=None if piece.after is None else shifted(piece.after, first),
        )

    def row_key(self, piece: Piece) -> Hashable:
        return self.inner.row_key(self.there(piece))

    def launch_key(self, piece: Piece) -> Hashable:
        return self.inner.launch_key(self.there(piece))

    def meets_border(self, piece: Piece) -> bool:
        return self.inner.meets_border(self.there(piece))

    def launches(
        self,
        piece: Piece,
        *,
        layout: str,
        orders: Mapping[str, str],
        accumulation: Accumulation = ALONE,
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        return self.inner.launches(
            self.there(piece), layout=layout, orders=orders, accumulation=accumulation
        )

    def patch(self, random: np.random.Generator) -> Piece:
        raise NotImplementedError("parts of a step are not verified by patches")

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        return self.inner.expected(self.there(piece), read)

    def rounding(self) -> Rounding:
        return self.inner.rounding()
