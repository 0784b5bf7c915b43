"""The schedule: a plan's steps, in the order they are issued. The one generator, for every device.

For each piece, in the plan's loop order: copy in what the piece needs and no slot holds, compute,
and copy out what no later piece of the same output region will change. A step waits on the steps
whose data it reads and on those that last used the slot it is about to overwrite; steps of one
stream run in order and need no waits among themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ooc_cudnn.operations.chain import Accumulation, Buffer, Chain, Launch, Piece, Region
from perfmodel import Split

COPY_IN, COPY_OUT, COMPUTE = "copy_in", "copy_out", "compute"


class Place(NamedTuple):
    """Where a piece of an operand is: a region of the whole operand, and a slot of its ring.

    Slot -1 means in place: the operand lives on the device and is computed on where it lies.
    """

    operand: str
    region: Region
    slot: int


@dataclass(frozen=True, slots=True)
class Step:
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
    signals : bool
        Whether a later step waits on this one.
    """

    stream: str
    piece: int
    places: tuple[Place, ...]
    launches: tuple[Launch, ...] = ()
    waits: tuple[int, ...] = ()
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
    buffers : mapping
        The buffers of each different tuple of launches, by name.
    sizes : mapping
        Largest bytes of each buffer: what its slots must hold.
    """

    steps: tuple[Step, ...]
    pieces: int
    buffers: Mapping[tuple[Launch, ...], Mapping[str, Buffer]]
    sizes: Mapping[str, int]


def pieces(
    chain: Chain, split: Split, order: tuple[str, ...]
) -> Iterator[tuple[Piece, Accumulation]]:
    """Every piece of a split in loop order, with its place in the sum over cX."""
    axes = chain.ranges(split)
    last = len(axes["c_x"]) - 1
    counts = [range(len(axes[axis])) for axis in order]
    for indices in itertools.product(*counts):
        at = dict(zip(order, indices, strict=True))
        piece = Piece(**{axis: axes[axis][index] for axis, index in at.items()})
        yield piece, Accumulation(first=at["c_x"] == 0, last=at["c_x"] == last)


def make_schedule(
    chain: Chain,
    split: Split,
    *,
    order: tuple[str, ...],
    rings: Mapping[str, int],
    layout: str,
    orders: Mapping[str, str],
) -> Schedule:
    """Generate the steps of a call.

    Parameters
    ----------
    chain, split, order
        What is computed, the piece sizes, and the loop order, outermost axis first. cX must be
        innermost where it is cut: sums are completed before the next output region starts.
    rings : mapping
        Slots of each operand's ring; 0 for an operand computed on in place.
    layout, orders
        As for `Chain.launches`.

    Raises
    ------
    ValueError
        If cX is cut and not the innermost axis.
    """
    if len(chain.ranges(split)["c_x"]) > 1 and order[-1] != "c_x":
        raise ValueError(f"c_x is cut, so it must be the innermost loop, not {order}")
    generator = _Generator(chain, rings)
    made: dict[Hashable, tuple[tuple[Launch, ...], Mapping[str, Buffer]]] = {}
    count = 0
    for count, (piece, accumulation) in enumerate(pieces(chain, split, order), start=1):
        # Pieces of equal shape and padding launch the same.
        rows = tuple((r.stop - r.start, r.before, r.after) for r in chain.rows(piece.h_y))
        key = (tuple(stop - start for start, stop in piece), rows, accumulation)
        if key not in made:
            made[key] = chain.launches(
                piece, layout=layout, orders=orders, accumulation=accumulation
            )
        generator.add(count - 1, piece, accumulation, made[key][0])
    sizes: dict[str, int] = {}
    for _, buffers in made.values():
        for name, buffer in buffers.items():
            sizes[name] = max(sizes.get(name, 0), buffer.nbytes)
    return Schedule(generator.finish(), count, dict(made.values()), sizes)


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
    def __init__(self, chain: Chain, rings: Mapping[str, int]) -> None:
        self.chain = chain
        self.rings = {name: _Ring(depth) for name, depth in rings.items() if depth}
        self.steps: list[Step] = []
        self.signals: set[int] = set()
        self.y_slot = -1

    def _add(self, step: Step, waits: set[int]) -> int:
        """Append a step, keeping of its waits the latest on each other stream."""
        latest: dict[str, int] = {}
        for index in waits:
            if index >= 0 and self.steps[index].stream != step.stream:
                stream = self.steps[index].stream
                latest[stream] = max(latest.get(stream, -1), index)
        self.signals.update(latest.values())
        self.steps.append(
            Step(
                step.stream,
                step.piece,
                step.places,
                step.launches,
                tuple(sorted(latest.values())),
            )
        )
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
            step = Step(COPY_IN, index, (place,))
            ring.loaded[slot] = ring.used[slot] = self._add(step, {ring.used[slot]})
        return Place(name, region, slot)

    def add(
        self, index: int, piece: Piece, accumulation: Accumulation, launches: tuple[Launch, ...]
    ) -> None:
        chain = self.chain
        places, waits = [], set()
        for name in chain.operands:
            region = chain.region(name, piece)
            if name != "y":
                place = self._load(index, name, region)
            elif "y" not in self.rings:
                place = Place("y", region, -1)
            elif not accumulation.first:
                place = Place("y", region, self.y_slot)
            elif chain.beta:
                place = self._load(index, "y", region)
                self.y_slot = place.slot
            else:
                self.y_slot = self.rings["y"].take(region)
                place = Place("y", region, self.y_slot)
                waits.add(self.rings["y"].used[self.y_slot])
            places.append(place)
            if place.slot >= 0:
                waits.add(self.rings[name].loaded[place.slot])
        computed = self._add(Step(COMPUTE, index, tuple(places), launches), waits)
        for place in places:
            if place.slot >= 0:
                self.rings[place.operand].used[place.slot] = computed
        if accumulation.last and "y" in self.rings:
            out = Step(COPY_OUT, index, (places[-1],))
            self.rings["y"].used[self.y_slot] = self._add(out, {computed})
            self.rings["y"].regions[self.y_slot] = None

    def finish(self) -> tuple[Step, ...]:
        return tuple(
            Step(step.stream, step.piece, step.places, step.launches, step.waits, True)
            if index in self.signals
            else step
            for index, step in enumerate(self.steps)
        )
