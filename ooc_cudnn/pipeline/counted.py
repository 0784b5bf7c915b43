"""One split of a call under one loop order, counted: memory, bytes over the link, seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ooc_cudnn.operations.splittable import SWEEP, Buffer, Launch
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.piece_classes import PieceClasses
from ooc_cudnn.pipeline.piece_costs import PieceCost
from ooc_cudnn.pipeline.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Request,
    aligned,
)
from ooc_cudnn.pipeline.reuse import Reuse
from perfmodel import PipelineCost, Price, Split, closed_form
from perfmodel.transfer import Rows

#: Slots of the rings of x and y, the best first: three let both copies and compute run at once.
RING_DEPTHS = (3, 2, 1)


@dataclass(frozen=True)
class Priced:
    """Everything that is known of one split under one layout."""

    price: Price
    order: LoopOrder
    rings: tuple[tuple[str, int], ...]
    cost: PipelineCost
    memory: tuple[tuple[str, int], ...]
    bytes_in: int
    bytes_out: int


class Counted(PieceClasses):
    """One split, counted: buffers, bytes and work."""

    def __init__(self, request: Request, layout: str, split: Split, order: LoopOrder) -> None:
        super().__init__(request.chain, split, order)
        self.request, self.chain, self.split = request, request.chain, split
        self._measure(layout)

    def _measure(self, layout: str) -> None:
        """One piece of every class: the largest of each buffer, and the work of all."""
        costs, self.sizes = self.request.piece_costs(layout), dict[str, int]()
        self.largest_elements = self.largest_bytes = 0
        self.compute_seconds, self.launched = 0.0, 0
        self.measured: list[PieceCost] = []
        found = self.classes()
        self._first_piece = found[0][0]
        for piece, accumulation, times in found:
            cost = costs.of(piece, accumulation)
            for block, count in cost.sizes.items():
                self.sizes[block] = max(self.sizes.get(block, 0), count)
            self.largest_elements = max(self.largest_elements, cost.largest_elements)
            self.largest_bytes = max(self.largest_bytes, cost.largest_bytes)
            self.compute_seconds += times * cost.seconds
            self.launched += times * len(cost.launches)
            self.measured.append(cost)
        self.first_compute = self.measured[0].seconds
        self.last_compute = self.measured[-1].seconds

    @property
    def launches(self) -> Mapping[Launch, Mapping[str, Buffer]]:
        """Every different launch, with its buffers."""
        found: dict[Launch, Mapping[str, Buffer]] = {}
        for cost in self.measured:
            for launch in cost.launches:
                found.setdefault(launch, cost.buffers)
        return found

    @cached_property
    def reason(self) -> str:
        """Why no memory is enough for it; empty where some is."""
        batch = min(self.split.n, self.chain.extents.n)
        if (
            self.largest_elements <= LARGEST_PIECE_ELEMENTS
            and self.largest_bytes <= LARGEST_PIECE_BYTES
            and batch <= LARGEST_BATCH
        ):
            return ""
        return (
            f"a piece would exceed {LARGEST_PIECE_ELEMENTS} elements, "
            f"{LARGEST_PIECE_BYTES} bytes or a batch of {LARGEST_BATCH}"
        )

    @property
    def depths(self) -> tuple[int, ...]:
        """Slots worth trying: with two sweeps, first as many as hold two blocks of pieces."""
        if self.pieces == 1:
            return (1,)
        if self.chain.sweeps == 1:
            return RING_DEPTHS
        block = self.block_pieces
        return tuple(dict.fromkeys((2 * block, block + 1, block, *RING_DEPTHS)))

    def best(self, limit_bytes: int) -> Priced:
        """The fastest rings that fit; the smallest ones where none do."""
        best: Priced | None = None
        for depth, whole_parameters in self._worth_trying(limit_bytes):
            if self.memory_bytes(depth, whole_parameters) > limit_bytes:
                smallest = depth, whole_parameters
                continue
            priced = self.priced(depth, whole_parameters)
            if best is None or priced.price.seconds < best.price.seconds * (1 - 1e-9):
                best = priced
        return best or self.priced(*smallest)

    def _worth_trying(self, limit_bytes: int) -> Iterator[tuple[int, bool]]:
        """Rings that no others beat in memory and seconds: (slots, whether parameters are whole).

        More slots are never slower, but with two sweeps: results that all wait for the second one
        leave later than those that it makes from what it loads again.
        """
        some_fit = False
        for depth in self.depths:
            yield depth, True
            if self.chain.sweeps == 1 and self.memory_bytes(depth, True) <= limit_bytes:
                return
            if not some_fit:
                yield depth, False
                some_fit = self.memory_bytes(depth, False) <= limit_bytes

    def memory_bytes(self, depth: int, whole_parameters: bool) -> int:
        """Device memory with such rings."""
        slots = self._slots(depth, whole_parameters)
        return sum(slots.get(name, 1) * aligned(count) for name, count in self.sizes.items())

    def _slots(self, depth: int, whole_parameters: bool) -> dict[str, int]:
        """Slots of each operand, in rings of `depth` at most; none where it is computed on."""
        chain, found = self.chain, dict[str, int]()
        for name in chain.operands:
            if name in self._in_place:
                found[name] = 0
                continue
            distinct, streamed = self.reuse(name).distinct, name in chain.streamed
            slots = min(distinct, depth) if streamed or not whole_parameters else distinct
            if streamed and chain.sweeps > 1 and chain.sweeps_of(name) == 1:
                slots = min(slots, RING_DEPTHS[0])
            found[name] = slots
        return found

    def _distinct_bytes(self, name: str) -> int:
        """Bytes of every region of an operand once: halo rows count in each piece they go to."""
        spec, operand = self.request.specs[name], self.chain.operands[name]
        if "h_y" not in operand.axes or len(spec.shape) < 3:
            return spec.nbytes
        rows = 0
        for found in self.row_classes:
            piece = self.piece_of(found.range, found.after, self.chain.sweeps - 1)
            region = self.chain.region(name, piece)
            rows += found.times * (region[2][1] - region[2][0]) if region else 0
        return spec.nbytes // spec.shape[2] * rows

    def _rows(self, name: str) -> Rows:
        """How the pieces of an operand lie in its memory."""
        if name not in self._lying:
            piece = self._first_piece._replace(sweep=self.call.sweeps - 1)
            self._lying[name] = self.request.rows(name, piece)
        return self._lying[name]

    @cached_property
    def _lying(self) -> dict[str, Rows]:
        return {}

    def reuse(self, name: str) -> Reuse:
        """How the loops go through the regions of an operand."""
        if name not in self._reuse:
            self._reuse[name] = Reuse(list(self._loops(name)))
        return self._reuse[name]

    @cached_property
    def _reuse(self) -> dict[str, Reuse]:
        return {}

    def _loops(self, name: str) -> Iterator[tuple[int, bool]]:
        for axis in self.loop_order:
            if axis == SWEEP:
                yield self.chain.sweeps_of(name), False
            elif (times := self.counts[axis]) > 1:
                seen = self.chain.distinct(name, axis, self.axes[axis])
                yield seen, True
                yield times // seen, False

    def _stays_in_place(self, name: str) -> bool:
        """Whether the pieces of an operand on the device are computed on where they lie.

        Only whole images are: cuDNN is slow, and beyond 2**31 elements wrong, on pieces whose rows
        or channels are strided, so those are brought to a slot by a copy on the device.
        """
        may_cut_n = self.request.computed_on_in_place.get(name)
        if may_cut_n is None:
            return False
        axes = self.chain.operands[name].axes - ({"n"} if may_cut_n else set())
        return all(self.counts[axis] == 1 for axis in axes)

    @cached_property
    def _in_place(self) -> frozenset[str]:
        return frozenset(name for name in self.chain.operands if self._stays_in_place(name))

    def _at_once(self, name: str) -> int:
        """Regions that are copied in before anything can leave, or out after all came in."""
        return self.block_pieces if name in self.chain.streamed else 1

    def priced(self, depth: int, whole_parameters: bool) -> Priced:
        """Price the split with rings of `depth` slots, parameters kept whole or in a ring."""
        request, chain = self.request, self.chain
        rings, memory = self._slots(depth, whole_parameters), []
        bytes_in, first_in = 0, 0.0
        stays, steps = True, self.pieces
        copies, turning = dict[str, float](), list[float]()
        late_in = late_out = 0.0
        for name, slots in rings.items():
            if not slots:
                continue
            purpose = f"{name}: {slots} slot{'s' * (slots > 1)}"
            memory.append((purpose, slots * aligned(self.sizes[name])))
            if name not in chain.loaded:
                continue
            distinct, loads = self.reuse(name).distinct, self.reuse(name).loads(slots)
            steps += loads
            count = self._distinct_bytes(name) * loads // distinct
            bytes_in += count if request.specs[name].placement != "device" else 0
            spent = request.copy_seconds("in", name, count, loads, self._rows(name))
            copies[name] = spent
            late = float(request.latency_seconds("in", name, count / loads))
            late_in = max(late_in, late)
            turning.append(self._turning_seconds(late, slots, loads, spent))
            # A first sweep must see all pieces of its block before the second one makes a result;
            first_in += spent * min(1.0, self._at_once(name) / loads)
            stays = stays and (loads == distinct or name not in chain.streamed)
        for name, count in self.sizes.items():
            if name not in rings:
                memory.append((name.replace("_", " "), aligned(count)))
        bytes_out, copy_out, last_out = 0, 0.0, 0.0
        for name in chain.results:
            if rings[name]:
                pieces_out, spec = self.reuse(name).distinct, request.specs[name]
                steps += pieces_out
                bytes_out += 0 if spec.placement == "device" else spec.nbytes
                spent = request.copy_seconds("out", name, spec.nbytes, pieces_out, self._rows(name))
                copy_out += spent
                late = float(request.latency_seconds("out", name, spec.nbytes / pieces_out))
                late_out = max(late_out, late)
                turning.append(self._turning_seconds(late, rings[name], pieces_out, spent))
                # ... which all leave at the end, unless the second sweep has to load them again.
                at_once = self._at_once(name) if stays else 1
                last_out += spent * min(1.0, at_once / pieces_out)
        copy_in, first_in = sum(copies.values()) + late_in, first_in + late_in
        copy_out, last_out = copy_out + late_out, last_out + late_out
        machine, beside = request.machine, 0.0
        if depth > 1:
            beside = max(copy_in - first_in, 0.0) + max(copy_out - last_out, 0.0)
        compute = self.compute_seconds + float(
            machine.lost_seconds(self.compute_seconds, beside, steps * machine.step_seconds)
        )
        cost = PipelineCost(
            machine.call_seconds, copy_in, compute, copy_out,
            min(first_in, copy_in), min(self.first_compute, self.compute_seconds),
            min(self.last_compute, self.compute_seconds), last_out,
            steps * machine.step_seconds + self.launched * machine.launch_seconds,
            self._waiting_seconds(rings, copies, copy_out),
            max(turning, default=0.0),
        )  # fmt: skip
        # Without overlap the same steps run, so the split is that of the overlapped call.
        return Priced(
            self._price(sum(count for _, count in memory), cost, overlap=depth > 1),
            self.loop_order, tuple(rings.items()), cost, tuple(memory), bytes_in, bytes_out,
        )  # fmt: skip

    def _turning_seconds(self, late: float, slots: int, copies: int, seconds: float) -> float:
        """What the slots of a ring take to be staged, copied and computed on, one after the other.

        Only staging, for which each copy is `late`, takes so long that this matters where a ring is
        short.
        """
        if not late:
            return 0.0
        each = late + seconds / copies + self.compute_seconds / self.pieces
        return each * copies / slots

    def _waiting_seconds(
        self, rings: Mapping[str, int], copies: Mapping[str, float], copy_out: float
    ) -> float:
        """For how long copies in wait for slots whose regions are still needed."""
        gates = {name: self.reuse(name).gate(rings[name]) for name in copies}
        if not any(gates.values()):
            return 0.0
        gated = sum(spent for name, spent in copies.items() if gates[name])
        # What else is copied in goes on meanwhile, and may be what computing waits for.
        others = (sum(copies.values()) - gated) / self.pieces
        pace = max(self.compute_seconds / self.pieces, others)
        # Results leave at their own pace; computing is ahead of that by as many as have a slot.
        held = min(
            (
                rings[name] * self.pieces / self.reuse(name).distinct
                for name in self.chain.results
                if rings[name]
            ),
            default=self.pieces,
        )
        waiting = 0.0
        for gate in gates.values():
            if gate:
                until = max(gate.pieces * pace, (gate.pieces - held) * copy_out / self.pieces)
                ahead = gate.spare * gated / (gate.blocks * gate.regions)
                each = until - gate.block_pieces * others - ahead
                waiting = max(waiting, (gate.blocks - 1) * each)
        return waiting

    def _price(self, memory_bytes: int, cost: PipelineCost, *, overlap: bool) -> Price:
        if self.reason:
            return Price(memory_bytes, 0.0, legal=False, reason=self.reason)
        seconds = closed_form(cost, self.request.slowdown, overlap=overlap)
        return Price(memory_bytes, seconds)
