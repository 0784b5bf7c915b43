"""What one piece costs: the launches on it, their buffers and their seconds, each made once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ooc_cudnn.operations.splittable import Accumulation, Buffer, Launch, Piece, Splittable
from ooc_cudnn.operations.window import Range
from ooc_cudnn.tensor import DTYPES
from perfmodel import MachineModel
from perfmodel.cached import cached_property

if TYPE_CHECKING:
    from ooc_cudnn.pipeline.piece_lines import Ratios


class PieceCost(NamedTuple):
    """One piece of a class.

    Attributes
    ----------
    seconds : float
        Of computing it.
    sizes : mapping
        Bytes of each block of memory, operands' slots among them.
    largest_elements, largest_bytes : int
        Of its buffers.
    launching : float
        Seconds of the host to launch what it takes.
    """

    seconds: float
    sizes: Mapping[str, int]
    largest_elements: int
    largest_bytes: int
    launching: float


class Probe(NamedTuple):
    """One piece: seconds of all sweeps, on the device and to launch; the most memory of a sweep."""

    seconds: float
    memory: Mapping[str, int]
    launching: float


class PieceCosts:
    """Costs of the pieces of a call in one layout.

    Pieces of equal sizes, rows and place in a sum launch the same, under whatever split.
    """

    def __init__(
        self, call: Splittable, layout: str, orders: Mapping[str, str], machine: MachineModel
    ) -> None:
        self.call, self.layout, self.orders, self.machine = call, layout, orders, machine
        self._known: dict[Hashable, PieceCost] = {}
        self._row_keys: dict[tuple[Range, Range | None], Hashable] = {}
        #: What is known of pieces by their sizes and place: the same in every grid.
        self.probes: dict[tuple[tuple[int, ...], Accumulation], Probe] = {}
        #: And of those that are cut along one axis alone: (axis, sizes looked at, the largest).
        self.ratios: dict[tuple[str, tuple[int, ...], int], Ratios] = {}

    @cached_property
    def channels_cut_freely(self) -> bool:
        """Whether channels may be cut just as one likes: with groups they may not."""
        call, whole = self.call, self.call.extents
        c_y, c_x = (
            (1 if call.may_cut(axis) else getattr(whole, axis), getattr(whole, axis))
            for axis in ("c_y", "c_x")
        )
        corners = itertools.product(c_y, c_x)
        return all(call.is_legal(replace(whole, c_y=one, c_x=other)) for one, other in corners)

    def of(self, piece: Piece, accumulation: Accumulation) -> PieceCost:
        """The cost of a piece that stands there in the sum over the reduced axes."""
        rows = piece.h_y, piece.after
        row_key = self._row_keys.get(rows)
        if row_key is None:
            row_key = self._row_keys[rows] = self.call.row_key(piece)
        key = (piece.sizes, piece.sweep, row_key, accumulation)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._measure(piece, accumulation)
        return found

    def _measure(self, piece: Piece, accumulation: Accumulation) -> PieceCost:
        launches, buffers = self.launches(piece, accumulation)
        sizes: dict[str, int] = {}
        largest_elements = largest_bytes = 0
        for name, buffer in buffers.items():
            shape, dtype, _, block, rows, _ = buffer
            elements = math.prod(shape if rows is None else buffer.whole)
            count = elements * DTYPES[dtype]
            block = block or name
            if count > sizes.get(block, -1):
                sizes[block] = count
            if count > largest_bytes:
                largest_bytes = count
            if elements > largest_elements:
                largest_elements = elements
        seconds = launching = 0.0
        compute, otherwise = self.machine.compute, self.machine.launch_seconds
        for launch in launches:
            work = launch.operation.work()
            seconds += compute.seconds(work)
            launching += compute.launching_seconds(work, otherwise)
        return PieceCost(seconds, sizes, largest_elements, largest_bytes, launching)

    def launches(
        self, piece: Piece, accumulation: Accumulation
    ) -> tuple[tuple[Launch, ...], Mapping[str, Buffer]]:
        """What a piece launches, and its buffers: made anew, as only those of a plan are needed."""
        return self.call.launches(
            piece, layout=self.layout, orders=self.orders, accumulation=accumulation
        )
