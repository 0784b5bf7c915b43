"""The schedule: a program's steps in the order they are issued. One generator for every device.

For each task, and each piece of it in its plan's loop order: copy in what the piece needs and no
slot holds, compute, and copy out what no later piece of the same output region will change. A step
waits on the steps whose data it reads and on those that last used the memory it is about to
overwrite, be they of the same task (its rings know) or of earlier ones (residence). Steps of one
stream run in order and need no waits among themselves, but for what leaves: threads may write it to
the host later.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc_cudnn.operations.launches import Buffer, Launch
from ooc_cudnn.operations.splittable import AXES, SWEEP, Accumulation, Piece, Region, Splittable
from ooc_cudnn.pipeline.offsets import lay_out
from ooc_cudnn.pipeline.program import (
    COMPUTE,
    COPY_IN,
    COPY_OUT,
    Move,
    Program,
    Task,
    chunks,
    program_of,
)
from ooc_cudnn.pipeline.residence import Latest, Residence, later
from ooc_cudnn.pricing.loop_orders import runs_down
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.request import Request
from perfmodel import Split

__all__ = ["COMPUTE", "COPY_IN", "COPY_OUT", "Place", "Schedule", "Step", "make_schedule"]

NO_BUFFERS: Mapping[str, Buffer] = MappingProxyType({})


class Place(NamedTuple):
    """Where a piece of an operand is: a region of the whole operand, and a slot of its ring.

    Slot -1 means in place: the operand lives on the device and is computed on where it lies, or is
    moved from or to there.
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
        Indices of earlier steps that must have finished: on other streams, and of a copy out the
        one that wrote the same bytes of the host before.
    buffers : mapping
        Where its launches read and write, by name: shared by all steps that launch the same.
    signals : bool
        Whether a later step waits on this one.
    item : int
        Index of the item of the program that it belongs to.
    """

    stream: str
    piece: int
    places: tuple[Place, ...]
    launches: tuple[Launch, ...] = ()
    waits: tuple[int, ...] = ()
    buffers: Mapping[str, Buffer] = NO_BUFFERS
    signals: bool = False
    item: int = 0

    def __str__(self) -> str:
        what = ", ".join(f"{p.operand}[{p.slot}]" for p in self.places)
        waits = f" after {', '.join(map(str, self.waits))}" if self.waits else ""
        return f"{self.stream} of piece {self.piece}: {what}{waits}"


@dataclass(frozen=True)
class Schedule:
    """The ordered steps of a program.

    Attributes
    ----------
    program : Program
    steps : tuple of Step
    pieces : int
        Number of pieces of all tasks; a move counts as one.
    sizes : tuple of mappings
        Of each item the largest bytes of each buffer: what its slots must hold.
    """

    program: Program
    steps: tuple[Step, ...]
    pieces: int
    sizes: tuple[Mapping[str, int], ...]


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


def make_schedule(program: Program) -> Schedule:
    """Generate the steps of a program.

    Raises
    ------
    ValueError
        If a task cuts a reduced axis, and one outside of it.
    """
    generator = _Generator(program)
    for index, item in enumerate(program.items):
        generator.begin(index)
        if isinstance(item, Task):
            _TaskSteps(generator, item).add_all()
        elif isinstance(item, Move):
            generator.move(item)
        else:
            generator.synchronise()
        generator.end()
    return generator.finish()


def plan_schedule(request: Request, plan: Plan) -> Schedule:
    """Make the schedule of a call by itself."""
    return make_schedule(program_of(request, plan))


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
    """The steps of a program so far, and what they wait for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        #: All of each step but whether it signals, and its stream.
        self.steps: list[tuple[Any, ...]] = []
        self.streams: list[str] = []
        self.signals: set[int] = set()
        self.pieces = 0
        self.item = 0
        self.sizes: list[Mapping[str, int]] = []
        #: None where there is but one item, which has nothing to wait for.
        self.residence = Residence(program.homes) if len(program.items) > 1 else None
        #: The latest step of each stream, and what the next compute step is to wait for beside.
        self.latest: Latest = {}
        self.synchronised: Latest = {}

    def begin(self, item: int) -> None:
        """Start an item."""
        self.item = item
        self.sizes.append({})

    def end(self) -> None:
        """End an item: what it read and wrote counts for those that follow."""
        if self.residence is not None:
            self.residence.close()

    def add(
        self,
        stream: str,
        piece: int,
        places: tuple[Place, ...],
        used: Iterable[int],
        launches: tuple[Launch, ...] = (),
        buffers: Mapping[str, Buffer] = NO_BUFFERS,
        others: Latest | None = None,
    ) -> int:
        """Append a step that waits for those used, and others, as far as on another stream.

        A copy out waits for those whose bytes on the host it writes over, too.
        """
        latest: Latest = dict(others) if others else {}
        for index in used:
            if index >= 0 and index > latest.get(self.streams[index], -1):
                latest[self.streams[index]] = index
        if stream == COMPUTE and self.synchronised:
            later(latest, self.synchronised)
            self.synchronised = {}
        if stream != COPY_OUT:  # what left may be written to the host later, by threads
            latest.pop(stream, None)
        waits = tuple(sorted(latest.values()))
        self.signals.update(waits)
        self.latest[stream] = len(self.steps)
        self.streams.append(stream)
        self.steps.append((stream, piece, places, launches, waits, buffers, self.item))
        return len(self.steps) - 1

    def move(self, move: Move) -> None:
        """Copy a tensor over the link, in large copies."""
        spec, residence = self.program.homes[move.source].spec, self.residence
        index, self.pieces = self.pieces, self.pieces + 1
        for region in chunks(spec.shape, spec.itemsize):
            others: Latest = {}
            if residence is not None:
                others = residence.users(move.source, region, writes=False)
                later(others, residence.users(move.target, region, writes=True))
            step = self.add(move.stream, index, (Place("", region, -1),), (), others=others)
            if residence is not None:
                residence.note(move.source, region, {move.stream: step}, writes=False)
                residence.note(move.target, region, {move.stream: step}, writes=True)

    def synchronise(self) -> None:
        """Let the next compute step wait for all copies so far."""
        self.synchronised = {s: step for s, step in self.latest.items() if s != COMPUTE}

    def finish(self) -> Schedule:
        signals = self.signals
        steps = tuple(
            Step._make((*step[:-1], index in signals, step[-1]))
            for index, step in enumerate(self.steps)
        )
        return Schedule(self.program, steps, self.pieces, tuple(self.sizes))


class _TaskSteps:
    """The steps of one task: its pieces in order, through its rings."""

    def __init__(self, generator: _Generator, task: Task) -> None:
        self.generator, self.task = generator, task
        self.call, self.plan = task.request.chain, task.plan
        self.rings = {name: _Ring(depth) for name, depth in self.plan.rings if depth}
        #: Results being made: where, and the last step that computed on them.
        self.open: dict[str, tuple[Place, int]] = {}
        self.piece = -1
        self.computed = -1
        #: What of the device's memory was asked for: slots and buffers, and operands in place.
        self.taken: set[tuple[str, int]] = set()
        self.in_place: set[str] = set()

    def add_all(self) -> None:
        """Append every step."""
        call, plan, orders = self.call, self.plan, dict(self.task.request.orders)
        _check_order(call, plan.split, plan.order)
        made: dict[Hashable, tuple[tuple[Launch, ...], Mapping[str, Buffer]]] = {}
        cut = list[tuple[Piece, tuple[tuple[Launch, ...], Mapping[str, Buffer]]]]()
        for piece, accumulation in pieces(call, plan.split, plan.order):
            key = (call.launch_key(piece), accumulation)
            if key not in made:
                made[key] = call.launches(
                    piece, layout=plan.layout, orders=orders, accumulation=accumulation
                )
            cut.append((piece, made[key]))
        largest: dict[str, int] = {}
        for _, buffers in made.values():
            for name, buffer in buffers.items():
                block = buffer.block or name
                largest[block] = max(largest.get(block, 0), buffer.nbytes)
        self.generator.sizes[-1] = largest
        if self.generator.residence is not None:
            self.offsets = lay_out(plan, largest, self.task.offset)
        for piece, (launches, buffers) in cut:
            self._add(piece, launches, buffers)
        self._leave({})
        self._note()

    # Within the task ----------------------------------------------------------------------------

    def _load(self, name: str, region: Region) -> Place:
        """Bring a region to a slot of its ring, unless it is there."""
        ring = self.rings.get(name)
        if ring is None:
            return Place(name, region, -1)
        slot = ring.find(region)
        if slot is None:
            slot = ring.take(region)
            place = Place(name, region, slot)
            others = self._before_copy(place, writes=False)
            used = (ring.used[slot],)
            loaded = self.generator.add(COPY_IN, self.piece, (place,), used, others=others)
            self._copied(place, COPY_IN, loaded, writes=False)
            ring.loaded[slot] = ring.used[slot] = loaded
        return Place(name, region, slot)

    def _result(self, name: str, region: Region) -> Place:
        """A slot for a region of a result: the one it is being made in, or a fresh one."""
        if name in self.open:
            return self.open[name][0]
        ring = self.rings.get(name)
        if ring is None or name in self.call.loaded:
            return self._load(name, region)
        return Place(name, region, ring.take(region))

    def _leave(self, regions: Mapping[str, Region | None]) -> None:
        """Copy out every result that the next piece, of the given regions, does not go on with."""
        for name, (place, computed) in tuple(self.open.items()):
            if regions.get(name) == place.region:
                continue
            del self.open[name]
            if place.slot >= 0:
                ring = self.rings[name]
                others = self._before_copy(place, writes=True)
                left = self.generator.add(
                    COPY_OUT, self.piece, (place,), (computed,), others=others
                )
                self._copied(place, COPY_OUT, left, writes=True)
                ring.used[place.slot] = left
                ring.regions[place.slot] = None

    def _add(
        self, piece: Piece, launches: tuple[Launch, ...], buffers: Mapping[str, Buffer]
    ) -> None:
        regions = {name: self.call.region(name, piece) for name in self.call.operands}
        self._leave(regions)
        self.piece, self.generator.pieces = self.generator.pieces, self.generator.pieces + 1
        places: list[Place] = []
        waits: set[int] = set()
        for name, region in regions.items():
            if region is None:
                continue
            bring = self._result if name in self.call.results else self._load
            place = bring(name, region)
            places.append(place)
            if place.slot >= 0:
                ring = self.rings[name]
                waits |= {ring.loaded[place.slot], ring.used[place.slot]}
        others = self._before_computing(places, buffers.items())
        computed = self.generator.add(
            COMPUTE, self.piece, tuple(places), waits, launches, buffers, others
        )
        self.computed = computed
        for place in places:
            if place.slot >= 0:
                self.rings[place.operand].used[place.slot] = computed
            if place.operand in self.call.results:
                self.open[place.operand] = (place, computed)

    # Among tasks --------------------------------------------------------------------------------

    def _fresh(self, name: str, slot: int = 0) -> Latest:
        """The steps that used the memory of a buffer before this task; asked for once."""
        residence = self.generator.residence
        if residence is None or (name, slot) in self.taken:
            return {}
        self.taken.add((name, slot))
        span = self.offsets.span(name, slot)
        return residence.users_of_bytes(span) if span else {}

    def _before_copy(self, place: Place, *, writes: bool) -> Latest:
        """The steps of earlier items that a copy from or to the host waits for."""
        residence = self.generator.residence
        if residence is None:
            return {}
        found = residence.users(self.task.binds[place.operand], place.region, writes=writes)
        if not writes:
            later(found, self._fresh(place.operand, place.slot))
        return found

    def _copied(self, place: Place, stream: str, step: int, *, writes: bool) -> None:
        """Note a copy from or to the host."""
        if self.generator.residence is not None:
            bind = self.task.binds[place.operand]
            self.generator.residence.note(bind, place.region, {stream: step}, writes=writes)

    def _before_computing(
        self, places: Iterable[Place], buffers: Iterable[tuple[str, Buffer]]
    ) -> Latest:
        """The steps of earlier items that computing waits for: each once in the task."""
        residence, found = self.generator.residence, Latest()
        if residence is None:
            return found
        for place in places:
            name = place.operand
            if place.slot >= 0:
                later(found, self._fresh(name, place.slot))
            elif name not in self.in_place:
                self.in_place.add(name)
                bind, writes = self.task.binds[name], name in self.call.results
                later(found, residence.users(bind, None, writes=writes))
        for block in {buffer.block or name for name, buffer in buffers} - set(self.call.operands):
            later(found, self._fresh(block))
        later(found, self._fresh("workspace"))
        return found

    def _note(self) -> None:
        """Note what was used on the device, to the end of the task."""
        residence, computed = self.generator.residence, {COMPUTE: self.computed}
        if residence is None:
            return
        for name in self.in_place:
            writes = name in self.call.results
            residence.note(self.task.binds[name], None, computed, writes=writes)
        for name, slot in self.taken:
            span, steps = self.offsets.span(name, slot), dict(computed)
            if name in self.rings:
                ring = self.rings[name]
                steps = {}
                for step in (ring.loaded[slot], ring.used[slot]):
                    if step >= 0:
                        later(steps, {self.generator.streams[step]: step})
            if span and steps:
                residence.note_bytes(span, steps)
