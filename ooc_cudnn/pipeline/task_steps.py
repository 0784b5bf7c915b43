"""The steps of one task: its pieces in loop order, each operand through the slots of its ring."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from ooc_cudnn.operations.core.call import Piece, Region
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.pipeline.hazards import Latest, latest_steps
from ooc_cudnn.pipeline.instruction_builder import InstructionBuilder
from ooc_cudnn.pipeline.instructions import Place
from ooc_cudnn.pipeline.loops import check_order, pieces
from ooc_cudnn.pipeline.program import COMPUTE, COPY_IN, COPY_OUT, Task
from ooc_cudnn.pipeline.task_buffers import place_buffers


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


class TaskSteps:
    """The steps of one task: its pieces in order, through its rings."""

    def __init__(self, issuer: InstructionBuilder, task: Task) -> None:
        self.issuer, self.task = issuer, task
        self.call, self.plan = task.request.chain, task.plan
        self.rings = {name: _Ring(depth) for name, depth in self.plan.rings if depth}
        specs = task.request.specs.items()
        self.on_device = {name for name, spec in specs if spec.placement == "device"}
        #: Results being made: where, and the last step that computed on them.
        self.open: dict[str, tuple[Place, int]] = {}
        self.piece = -1
        self.computed = -1
        #: What of the device's memory was asked for: slots and buffers, and operands in place.
        self.taken: set[tuple[str, int]] = set()
        #: Of each region of those, the last step that computed on it.
        self.in_place: dict[tuple[str, Region], int] = {}

    def add_all(self) -> None:
        """Append every step."""
        call, plan, orders = self.call, self.plan, dict(self.task.request.orders)
        check_order(call, plan.split, plan.order)
        variants: dict[Hashable, tuple[tuple[Launch, ...], Mapping[str, Buffer]]] = {}
        cut = list[tuple[Piece, tuple[tuple[Launch, ...], Mapping[str, Buffer]]]]()
        for piece, accumulation in pieces(call, plan.split, plan.order):
            key = (call.launch_key(piece), accumulation)
            if key not in variants:
                launches, buffers = launches_on(
                    call, piece, layout=plan.layout, orders=orders, accumulation=accumulation
                )
                variants[key] = launches, self._as_they_lie(buffers)
            cut.append((piece, variants[key]))
        largest: dict[str, int] = {}
        for _, buffers in variants.values():
            for name, buffer in buffers.items():
                block = buffer.block or name
                largest[block] = max(largest.get(block, 0), buffer.nbytes)
        self.issuer.sizes[-1] = largest
        if self.issuer.hazards is not None:
            self.offsets = place_buffers(plan, largest, self.task.offset)
        for piece, (launches, buffers) in cut:
            self._add(piece, launches, buffers)
        self._leave({})
        self._note()

    def _as_they_lie(self, buffers: Mapping[str, Buffer]) -> Mapping[str, Buffer]:
        """Buffers with the strides of operands that are computed on within wider tensors."""
        wider = {
            name: buffers[name]._replace(channels=channels)
            for name, channels in self.task.request.wider
            if name in buffers and name not in self.rings
        }
        return {**buffers, **wider}

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
            loaded = self._copy(place, COPY_IN, ring.used[slot])
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
                ring.used[place.slot] = self._copy(place, COPY_OUT, computed)
                ring.regions[place.slot] = None

    def _copy(self, place: Place, way: str, used: int) -> int:
        """Copy a region to its slot, or from there, after the step that last used the slot.

        What lies on the device is copied in turn with what computes: behind fetches from the host
        it would wait for the link.
        """
        writes, on_device = way == COPY_OUT, place.operand in self.on_device
        stream = COMPUTE if on_device else way
        others = self._before_copy(place, writes=writes)
        step = self.issuer.add(stream, self.piece, (place,), (used,), others=others, copies=way)
        if self.issuer.hazards is not None:
            bind = self.task.binds[place.operand]
            self.issuer.hazards.note(bind, place.region, {stream: step}, writes=writes)
        return step

    def _add(
        self, piece: Piece, launches: tuple[Launch, ...], buffers: Mapping[str, Buffer]
    ) -> None:
        regions = {name: self.call.region(name, piece) for name in self.call.operands}
        self._leave(regions)
        self.piece, self.issuer.pieces = self.issuer.pieces, self.issuer.pieces + 1
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
        computed = self.issuer.add(
            COMPUTE, self.piece, tuple(places), waits, launches, buffers, others
        )
        self.computed = computed
        for place in places:
            if place.slot >= 0:
                self.rings[place.operand].used[place.slot] = computed
            else:
                self.in_place[place.operand, place.region] = computed
            if place.operand in self.call.results:
                self.open[place.operand] = (place, computed)

    # Among tasks --------------------------------------------------------------------------------

    def _fresh(self, name: str, slot: int = 0) -> Latest:
        """The steps that used the memory of a buffer before this task; asked for once."""
        hazards = self.issuer.hazards
        if hazards is None or (name, slot) in self.taken:
            return {}
        self.taken.add((name, slot))
        span = self.offsets.span(name, slot)
        return hazards.users_of_bytes(span) if span else {}

    def _before_copy(self, place: Place, *, writes: bool) -> Latest:
        """The steps of earlier items that a copy to or from a slot waits for."""
        hazards = self.issuer.hazards
        if hazards is None:
            return {}
        steps = hazards.users(self.task.binds[place.operand], place.region, writes=writes)
        if not writes:
            latest_steps(steps, self._fresh(place.operand, place.slot))
        return steps

    def _before_computing(
        self, places: Iterable[Place], buffers: Iterable[tuple[str, Buffer]]
    ) -> Latest:
        """The steps of earlier items that computing waits for: for each region and buffer once."""
        hazards, steps = self.issuer.hazards, Latest()
        if hazards is None:
            return steps
        for place in places:
            name = place.operand
            if place.slot >= 0:
                latest_steps(steps, self._fresh(name, place.slot))
            elif (name, place.region) not in self.in_place:
                bind, writes = self.task.binds[name], name in self.call.results
                latest_steps(steps, hazards.users(bind, place.region, writes=writes))
        for block in {buffer.block or name for name, buffer in buffers} - set(self.call.operands):
            latest_steps(steps, self._fresh(block))
        latest_steps(steps, self._fresh("workspace"))
        return steps

    def _note(self) -> None:
        """Note what was used on the device, to the end of the task."""
        hazards, computed = self.issuer.hazards, {COMPUTE: self.computed}
        if hazards is None:
            return
        for (name, region), step in self.in_place.items():
            writes = name in self.call.results
            hazards.note(self.task.binds[name], region, {COMPUTE: step}, writes=writes)
        for name, slot in self.taken:
            span, steps = self.offsets.span(name, slot), dict(computed)
            if name in self.rings:
                ring = self.rings[name]
                steps = {}
                for step in (ring.loaded[slot], ring.used[slot]):
                    if step >= 0:
                        latest_steps(steps, {self.issuer.streams[step]: step})
            if span and steps:
                hazards.note_bytes(span, steps)
