"""What is to be planned, and what was found out about it so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ooc_cudnn.memory.blocks import rows_of
from ooc_cudnn.operations.splittable import AXES, Piece, Splittable
from ooc_cudnn.pipeline.cuts import Cuts
from ooc_cudnn.pipeline.loop_orders import LoopOrder, legal_orders
from ooc_cudnn.pipeline.piece_costs import PieceCosts
from ooc_cudnn.tensor import TensorSpec
from perfmodel import MachineModel, Slowdown, Split
from perfmodel.cached import cached_property
from perfmodel.rows import WHOLE, Rows
from perfmodel.staging import AT_ONCE_BYTES, SLABS, staging_slots

if TYPE_CHECKING:
    from ooc_cudnn.pipeline.counted import Counted
    from ooc_cudnn.pipeline.measured import Measured

Direction = Literal["in", "out"]
OPPOSITE: dict[Direction, Direction] = {"in": "out", "out": "in"}
#: No piece exceeds these, whatever memory would allow (DESIGN.md section 3).
LARGEST_PIECE_ELEMENTS = 2**30
LARGEST_PIECE_BYTES = 2**31
LARGEST_BATCH = 65535


class Floor(NamedTuple):
    """What a call moves at least, if every operand that cannot stay in place is moved once.

    Attributes
    ----------
    copy_in, copy_out : float
        Seconds of each direction alone.
    streamed_in, streamed_out : float
        Of these, those of operands which flow by in pieces.
    start_in, start_out : float
        Seconds that the copies of one piece take to start.
    streamed_bytes : int
        Of the operands that flow by and need slots.
    """

    copy_in: float
    copy_out: float
    streamed_in: float
    streamed_out: float
    start_in: float
    start_out: float
    streamed_bytes: int


class Link(NamedTuple):
    """Seconds of moving an operand one way: so many per byte, and so many per copy."""

    per_byte: float
    per_copy: float


#: Below this many bytes in pageable memory, staging in the caller's time is faster than threads.
WORTH_THREADS_BYTES = 8 * 2**20
#: An operand that is staged without them takes next to nothing if it is no larger than this.
WITHOUT_THREADS_BYTES = 2**20
#: Numbers of pieces that a floor is looked for among.
FLOOR_PIECES = 2.0 ** (np.arange(80) / 4)


def worth_threads(specs: Iterable[TensorSpec]) -> bool:
    """Whether enough of the operands is in memory that cannot be copied from as it is."""
    staged_bytes = sum(
        spec.nbytes
        for spec in specs
        if spec.placement in ("pageable", "disk")
        or (spec.placement == "pinned" and spec.order is None)
    )
    return staged_bytes > WORTH_THREADS_BYTES


@dataclass(frozen=True)
class Request:
    """What is to be planned: a call, where its operands live, and what may be used.

    `in_place` names the operands that lie on the device as launches take them, packed and aligned:
    each with whether pieces of n do, too (every image must start aligned).
    `orders` is the memory order in which each operand lies, or is brought to its slot.
    `loop_order` is the one to take; empty where any legal one will do.
    """

    function: str
    chain: Splittable
    operands: tuple[tuple[str, TensorSpec], ...]
    in_place: tuple[tuple[str, bool], ...]
    orders: tuple[tuple[str, str], ...]
    machine: MachineModel
    memory_limit: int
    layouts: tuple[str, ...]
    overlap: bool = True
    loop_order: LoopOrder = ()

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The operands by name."""
        return dict(self.operands)

    @cached_property
    def in_threads(self) -> bool:
        """Whether threads stage what is copied, if there is more than one piece."""
        return worth_threads(self.specs.values())

    @cached_property
    def computed_on_in_place(self) -> Mapping[str, bool]:
        """What `in_place` says, by name, of the operands of which the call needs all.

        Of one with rows that it does not need (those that see padding alone, say) what it needs has
        the strides of the whole, and launches are built for packed tensors.
        """
        call, found = self.chain, dict[str, bool]()
        for name, may_cut_n in self.in_place:
            everything = tuple((0, extent) for extent in self.specs[name].shape)
            regions = (call.region(name, call.whole_piece(sweep)) for sweep in range(call.sweeps))
            if all(region in (None, everything) for region in regions):
                found[name] = may_cut_n
        return found

    @cached_property
    def loop_orders(self) -> tuple[LoopOrder, ...]:
        """The loop orders to choose from."""
        return (self.loop_order,) if self.loop_order else legal_orders(self.chain)

    @cached_property
    def counted(self) -> dict[tuple[str, Split, LoopOrder], Counted]:
        """Splits counted so far: the same in every search, whatever memory is left."""
        return {}

    @cached_property
    def measured(self) -> dict[tuple[str, Split, bool], Measured]:
        """Splits measured so far: the same in every loop order in which pieces are the same."""
        return {}

    @cached_property
    def _piece_costs(self) -> dict[str, PieceCosts]:
        return {}

    def piece_costs(self, layout: str) -> PieceCosts:
        """What pieces cost in a layout."""
        if layout not in self._piece_costs:
            self._piece_costs[layout] = PieceCosts(
                self.chain, layout, dict(self.orders), self.machine
            )
        return self._piece_costs[layout]

    @cached_property
    def cuts(self) -> Cuts:
        """The axes of the call, cut."""
        return Cuts(self)

    @cached_property
    def different_layouts(self) -> tuple[str, ...]:
        """Of the layouts, those in which different things are launched: passes have but one."""
        call, found = self.chain, list[object]()
        n, c_y, h_y, c_x = (
            call.axis_ranges(axis, 1 if call.may_cut(axis) else getattr(call.extents, axis))[0]
            for axis in AXES
        )
        piece = Piece(n, c_y, h_y, c_x)
        pieces = [piece._replace(sweep=sweep) for sweep in range(call.sweeps)]
        layouts = []
        for layout in self.layouts:
            made = [call.launches(each, layout=layout, orders=dict(self.orders)) for each in pieces]
            if made not in found:
                found.append(made)
                layouts.append(layout)
        return tuple(layouts)

    def crosses_as(self, name: str) -> str:
        """The placement by which copies of an operand are priced: as pinned where little is staged.

        Threads that stage are late by far more than it takes to copy so little.
        """
        return self._crossing[name]

    @cached_property
    def _crossing(self) -> Mapping[str, str]:
        little = AT_ONCE_BYTES if self.in_threads else WITHOUT_THREADS_BYTES
        return {
            name: "pinned"
            if spec.nbytes <= little and spec.placement != "device"
            else spec.placement
            for name, spec in self.operands
        }

    @cached_property
    def slowdown(self) -> Slowdown:
        """How much the two directions of the link slow each other down in this call.

        Each pair of placements counts by the seconds of moving its operands once.
        """
        ways: dict[str, dict[str, float]] = {"in": {}, "out": {}}
        for way, name in self.ways:
            placement = self.crosses_as(name)
            spent = self.copy_seconds(way, name, self.specs[name].nbytes, 1)
            ways[way][placement] = ways[way].get(placement, 0.0) + spent
        return self.machine.transfer.mean_slowdown(ways["in"], ways["out"])

    @cached_property
    def ways(self) -> tuple[tuple[Direction, str], ...]:
        """What crosses the link, and which way."""
        loaded: list[tuple[Direction, str]] = [("in", name) for name in self.chain.loaded]
        return (*loaded, *(("out", name) for name in self.chain.results))

    @cached_property
    def setup_seconds(self) -> float:
        """Until the first step is issued: `MachineModel.setup_seconds`."""
        return self.machine.setup_seconds(len(self.specs))

    @property
    def moves(self) -> bool:
        """Whether anything crosses the link."""
        return any(self.specs[name].placement != "device" for _, name in self.ways)

    @cached_property
    def links(self) -> dict[tuple[Direction, str], Link]:
        """The lines that the seconds of each operand's copies lie on."""
        found = {}
        for way, name in self.ways:
            count = self.specs[name].nbytes
            one, two = (self.copy_seconds(way, name, count, copies) for copies in (1, 2))
            found[way, name] = Link((2 * one - two) / max(count, 1), two - one)
        return found

    @cached_property
    def floor(self) -> Floor:
        """What is moved at least."""
        alone, streamed, starts = ({"in": 0.0, "out": 0.0} for _ in range(3))
        for (way, name), link in self.links.items():
            one = link.per_byte * self.specs[name].nbytes + link.per_copy
            alone[way] += one
            if name in self.chain.streamed:
                streamed[way] += one
                starts[way] += link.per_copy
        slots = set(self.chain.streamed) - set(self.computed_on_in_place)
        return Floor(
            alone["in"], alone["out"], streamed["in"], streamed["out"], starts["in"], starts["out"],
            sum(self.specs[name].nbytes for name in slots),
        )  # fmt: skip

    def floor_seconds(self, compute_seconds: float, limit_bytes: int) -> float:
        """About what the call takes at least, with one sweep: `perfmodel.closed_form`.

        Everything is moved once and computed, in as many equal pieces as is best of those of which
        one fits, or two where they overlap.
        """
        floor, pieces = self.floor, FLOOR_PIECES
        latency_in, latency_out = (self._least_latency(way, pieces) for way in ("in", "out"))
        starts_in, starts_out = ((pieces - 1) * each for each in (floor.start_in, floor.start_out))
        copy_in, copy_out = floor.copy_in + starts_in, floor.copy_out + starts_out
        first_in = (floor.streamed_in + starts_in) / pieces
        first_in += floor.copy_in - floor.streamed_in + latency_in
        last_out = (floor.streamed_out + starts_out) / pieces
        last_out += floor.copy_out - floor.streamed_out + latency_out
        copy_in, copy_out = copy_in + latency_in, copy_out + latency_out
        piece = compute_seconds / pieces
        launching = self.machine.launch_seconds, *self.machine.compute.launching.values()
        issue = self.machine.issue_seconds(pieces, pieces * min(launching))
        slowed = self.slowdown.together(copy_in - first_in, copy_out - last_out)
        copy_in, copy_out = first_in + slowed[0], last_out + slowed[1]
        overlapped = np.maximum(
            np.maximum(copy_in + piece, first_in + compute_seconds) + last_out,
            first_in + piece + copy_out,
        )
        # Slots of what is staged are late one after the other.
        slots = np.clip(limit_bytes * pieces / max(floor.streamed_bytes, 1), 1.0, 3.0)
        turning = np.maximum(latency_in / slots, latency_out / np.maximum(slots, SLABS)) * pieces
        least = np.maximum(issue, turning)
        in_turn = compute_seconds + np.maximum(copy_in + last_out, first_in + copy_out)
        in_turn = np.maximum(in_turn, least)
        overlapped = np.maximum(overlapped, least + last_out)
        overlaps = (pieces >= 2.0) & (2 * floor.streamed_bytes <= limit_bytes * pieces)
        fits = floor.streamed_bytes <= limit_bytes * pieces
        found = np.where(overlaps, overlapped, np.where(fits, in_turn, np.inf)).min()
        return (self.setup_seconds if self.moves else self.machine.repeated_seconds) + float(found)

    def copy_seconds(
        self,
        direction: Direction,
        name: str,
        host_bytes: int,
        copies: int,
        rows: Rows = WHOLE,
    ) -> float:
        """One-way seconds of moving an operand, or parts of it, in so many equal copies.

        The only place, with those below, where the planner asks what the link costs.
        """
        placement, transfer = self.crosses_as(name), self.machine.transfer
        copy = transfer.copy_in_seconds if direction == "in" else transfer.copy_out_seconds
        apart = self.apart_seconds_per_byte(direction, name, rows)
        return copy(placement, host_bytes, copies) + host_bytes * apart

    def apart_seconds_per_byte(self, direction: Direction, name: str, rows: Rows) -> float:
        """What a byte of an operand takes longer in pieces that lie in rows apart."""
        placement = self.crosses_as(name)
        if placement == "device":
            return 0.0
        return self.machine.transfer.apart_seconds_per_byte(
            f"copy_{direction}", placement, rows, self._meanwhile[direction]
        )

    @cached_property
    def _meanwhile(self) -> Mapping[Direction, float]:
        """Share of the copies of each direction beside which the other one runs, too."""
        moved = {"in": 0, "out": 0}
        for way, name in self.ways:
            if self.specs[name].placement != "device":
                moved[way] += self.specs[name].nbytes
        inside, outside = max(moved["in"], 1), max(moved["out"], 1)
        return {"in": min(outside / inside, 1.0), "out": min(inside / outside, 1.0)}

    def latency_seconds(self, direction: Direction, name: str, copy_bytes: Any) -> Any:
        """Seconds that one copy of an operand is late by, where it is staged."""
        transfer, placement = self.machine.transfer, self.crosses_as(name)
        return transfer.latency_seconds(f"copy_{direction}", placement, copy_bytes)

    def turning_seconds(
        self,
        direction: Direction,
        name: str,
        copies: Any,
        copy_bytes: Any,
        slots: Any,
        others: Any,
        pinned_seconds: Any,
    ) -> Any:
        """Seconds that the ring of an operand takes that is staged: its slots go round together.

        Threads fill all slots side by side, and again once they are free; and they are slower while
        the other direction copies pinned memory, for `pinned_seconds`. Each copy is late by the
        `others` that are in flight, too.
        """
        transfer, placement = self.machine.transfer, self.crosses_as(name)
        way = f"copy_{direction}"
        each = transfer.turn_seconds(way, placement, copy_bytes, others)
        rounds = np.ceil(copies / staging_slots(way, copy_bytes, slots))
        if direction == "in":
            pair = transfer.slowdown(placement, "pinned")
            return pair.together(rounds * each, pinned_seconds)[0]
        return transfer.slowdown("pinned", placement).together(pinned_seconds, rounds * each)[1]

    @cached_property
    def staged(self) -> tuple[tuple[Direction, str], ...]:
        """Of what crosses the link, that of which copies are late."""
        transfer = self.machine.transfer
        return tuple(
            (way, name)
            for way, name in self.ways
            if transfer.latency_of(f"copy_{way}", self.crosses_as(name)) is not None
        )

    def _least_latency(self, direction: Direction, pieces: Any) -> Any:
        """Seconds that the first copy in or the last copy out takes beside, in so many pieces."""
        found = np.zeros_like(pieces)
        for way, name in self.staged:
            if way == direction:
                parts = pieces if name in self.chain.streamed else 1
                copy_bytes = self.specs[name].nbytes / parts
                found = np.maximum(found, self.latency_seconds(way, name, copy_bytes))
        return found

    def rows(self, name: str, piece: Piece) -> Rows:
        """How the region of an operand that a piece touches lies in the operand's memory."""
        spec, region = self.specs[name], self.chain.region(name, piece)
        if region is None:
            return WHOLE
        shape = tuple(stop - start for start, stop in region)
        return rows_of(shape, spec.strides, spec.itemsize)
