"""The schedule: a plan's steps, in the order they are issued. The one generator, for every device.

For each piece, in the plan's loop order: copy in what the piece needs and no slot holds, compute,
and copy out what no later piece of the same output region will change. A step waits on the steps
whose data it reads and on those that last used the slot it is about to overwrite; steps of one
stream run in order and need no waits among themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc_cudnn.operations.launches import Buffer, Launch
from ooc_cudnn.operations.splittable import AXES, SWEEP, Accumulation, Piece, Region, Splittable
from ooc_cudnn.pricing.loop_orders import runs_down
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.request import Request
from perfmodel import Split

COPY_IN, COPY_OUT, COMPUTE = "copy_in", "copy_out", "compute"
NO_BUFFERS: Mapping[str, Buffer] = MappingProxyType({})


class Place(NamedTuple):
    """Where a piece of an operand is: a region of the whole operand, and a slot of its ring.

    Slot -1 means in place: the operand lives on the device and is computed on where it lies.
    """

    operand: str
    region: Region
    slot: int


class Step(NamedTuple):
    """One copy-in, compute or copy-out of one piece.

    Attributes
    ----------
    stream : str
        "copy_in", "compute" or "copy_out".
    piece : int
        Index of the piece it belongs to, in loop order.
    places : tuple of Place
        The operand copied, or every operand computed on.
    launches : tuple of Launch
        What a compute step runs.
    waits : tuple of int
        Indices of earlier steps, on other streams, that must have finished.
    buffers : mapping
        Where its launches read and write, by name: shared by all steps that launch the same.
    signals : bool
        Whether a later step waits on this one.
    """

    stream: str
    piece: int
    places: tuple[Place, ...]
    launches: tuple[Launch, ...] = ()
    waits: tuple[int, ...] = ()
    buffers: Mapping[str, Buffer] = NO_BUFFERS
    signals: bool = False

    def __str__(self) -> str:
        what = ", ".join(f"{p.operand}[{p.slot}]" for p in self.places)
        waits = f" after {', '.join(map(str, self.waits))}" if self.waits else ""
        return f"{self.stream} of piece {self.piece}: {what}{waits}"


@dataclass(frozen=True)
class Schedule:
    """The ordered steps of a plan.

    Attributes
    ----------
    steps : tuple of Step
    pieces : int
        Number of pieces.
    sizes : mapping
        Largest bytes of each buffer: what its slots must hold.
    """

    steps: tuple[Step, ...]
    pieces: int
    sizes: Mapping[str, int]


def pieces(
    call: Splittable, split: Split, loop_order: tuple[str, ...]
) -> Iterator[tuple[Piece, Accumulation]]:
    """Every piece of a split in loop order, with its place in the sum over the reduced axes."""
    axes = call.ranges(split)
    counts = {axis: len(axes[axis]) for axis in AXES} | {SWEEP: call.sweeps}
    reduced = [axis for axis in call.reduced if counts[axis] > 1]
    down = runs_down(loop_order, counts)
    for indices in itertools.product(*(range(counts[axis]) for axis in loop_order)):
        at = dict(zip(loop_order, indices, strict=True))
        h_y = at["h_y"]
        yield (
            Piece(
                axes["n"][at["n"]],
                axes["c_y"][at["c_y"]],
                axes["h_y"][h_y],
                axes["c_x"][at["c_x"]],
                at.get(SWEEP, 0),
                axes["h_y"][h_y - 1] if down and h_y else None,
            ),
            Accumulation(
                first=all(at[axis] == 0 for axis in reduced),
                last=all(at[axis] == counts[axis] - 1 for axis in reduced),
            ),
        )


def make_schedule(
    call: Splittable,
    split: Split,
    *,
    loop_order: tuple[str, ...],
    rings: Mapping[str, int],
    layout: str,
    orders: Mapping[str, str],
) -> Schedule:
    """Generate the steps of a call.

    Parameters
    ----------
    call, split, loop_order
        What is computed, the piece sizes, and the loop order, outermost axis first. Reduced axes
        must be innermost where they are cut: sums are completed before the next ones start.
    rings : mapping
        Slots of each operand's ring; 0 for an operand computed on in place.
    layout, orders
        As for `Splittable.launches`.

    Raises
    ------
    ValueError
        If a reduced axis is cut, and outside of another one that is cut.
    """
    _check_order(call, split, loop_order)
    generator = _Generator(call, rings)
    made: dict[Hashable, tuple[tuple[Launch, ...], Mapping[str, Buffer]]] = {}
    for piece, accumulation in pieces(call, split, loop_order):
        # Pieces of equal shape and padding launch the same.
        key = (piece.sizes, piece.sweep, call.row_key(piece), accumulation)
        if key not in made:
            made[key] = call.launches(
                piece, layout=layout, orders=orders, accumulation=accumulation
            )
        generator.add(piece, *made[key])
    steps = generator.finish()
    largest: dict[str, int] = {}
    for _, buffers in made.values():
        for name, buffer in buffers.items():
            block = buffer.block or name
            largest[block] = max(largest.get(block, 0), buffer.nbytes)
    return Schedule(steps, generator.pieces, largest)


def plan_schedule(request: Request, plan: Plan) -> Schedule:
    """Make a plan's schedule."""
    return make_schedule(
        request.chain,
        plan.split,
        loop_order=plan.order,
        rings=dict(plan.rings),
        layout=plan.layout,
        orders=dict(request.orders),
    )


def _check_order(call: Splittable, split: Split, loop_order: tuple[str, ...]) -> None:
    axes = call.ranges(split)
    cut = [axis for axis in loop_order if axis == SWEEP or len(axes[axis]) > 1]
    summed = [axis in call.reduced for axis in cut]
    if summed != sorted(summed):
        raise ValueError(
            f"{' and '.join(call.reduced)} must be the innermost loops where they are cut, since "
            f"they are summed over; the order is {loop_order}"
        )


class _Ring:
    """The slots of one operand: what each holds, and the steps that last used it."""

    def __init__(self, depth: int) -> None:
        self.regions: list[Region | None] = [None] * depth
        self.loaded: list[int] = [-1] * depth  # the copy-in that filled the slot
        self.used: list[int] = [-1] * depth  # the last step that reads or writes the slot
        self.next = 0

    def find(self, region: Region) -> int | None:
        return self.regions.index(region) if region in self.regions else None

    def take(self, region: Region) -> int:
        slot = self.next
        self.next = (slot + 1) % len(self.regions)
        self.regions[slot] = region
        return slot


class _Generator:
    def __init__(self, call: Splittable, rings: Mapping[str, int]) -> None:
        self.call = call
        self.rings = {name: _Ring(depth) for name, depth in rings.items() if depth}
        #: All of each step but whether it signals, and its stream.
        self.steps: list[tuple[Any, ...]] = []
        self.streams: list[str] = []
        self.signals: set[int] = set()
        self.pieces = 0
        #: Results being made: where, and the last step that computed on them.
        self.open: dict[str, tuple[Place, int]] = {}

    def _add(
        self,
        stream: str,
        piece: int,
        places: tuple[Place, ...],
        used: Iterable[int],
        launches: tuple[Launch, ...] = (),
        buffers: Mapping[str, Buffer] = NO_BUFFERS,
    ) -> int:
        """Append a step that waits for those, as far as they are the latest on another stream."""
        latest: dict[str, int] = {}
        for index in used:
            other = self.streams[index] if index >= 0 else stream
            if other != stream and index > latest.get(other, -1):
                latest[other] = index
        waits = tuple(sorted(latest.values()))
        self.signals.update(waits)
        self.streams.append(stream)
        self.steps.append((stream, piece, places, launches, waits, buffers))
        return len(self.steps) - 1

    def _load(self, index: int, name: str, region: Region) -> Place:
        """Bring a region to a slot of its ring, unless it is there."""
        ring = self.rings.get(name)
        if ring is None:
            return Place(name, region, -1)
        slot = ring.find(region)
        if slot is None:
            slot = ring.take(region)
            place = Place(name, region, slot)
            loaded = self._add(COPY_IN, index, (place,), (ring.used[slot],))
            ring.loaded[slot] = ring.used[slot] = loaded
        return Place(name, region, slot)

    def _result(self, index: int, name: str, region: Region) -> Place:
        """A slot for a region of a result: the one it is being made in, or a fresh one."""
        if name in self.open:
            return self.open[name][0]
        ring = self.rings.get(name)
        if ring is None or name in self.call.loaded:
            return self._load(index, name, region)
        return Place(name, region, ring.take(region))

    def _leave(self, regions: Mapping[str, Region | None]) -> None:
        """Copy out every result that the next piece, of the given regions, does not go on with."""
        for name, (place, computed) in tuple(self.open.items()):
            if regions.get(name) == place.region:
                continue
            del self.open[name]
            if place.slot >= 0:
                ring = self.rings[name]
                left = self._add(COPY_OUT, self.pieces - 1, (place,), (computed,))
                ring.used[place.slot] = left
                ring.regions[place.slot] = None

    def add(
        self, piece: Piece, launches: tuple[Launch, ...], buffers: Mapping[str, Buffer]
    ) -> None:
        regions = {name: self.call.region(name, piece) for name in self.call.operands}
        self._leave(regions)
        index, self.pieces = self.pieces, self.pieces + 1
        places: list[Place] = []
        waits: set[int] = set()
        for name, region in regions.items():
            if region is None:
                continue
            bring = self._result if name in self.call.results else self._load
            place = bring(index, name, region)
            places.append(place)
            if place.slot >= 0:
                ring = self.rings[name]
                waits |= {ring.loaded[place.slot], ring.used[place.slot]}
        computed = self._add(COMPUTE, index, tuple(places), waits, launches, buffers)
        for place in places:
            if place.slot >= 0:
                self.rings[place.operand].used[place.slot] = computed
            if place.operand in self.call.results:
                self.open[place.operand] = (place, computed)

    def finish(self) -> tuple[Step, ...]:
        self._leave({})
        signals = self.signals
        return tuple(Step._make((*step, index in signals)) for index, step in enumerate(self.steps))
