"""One split of a call under one loop order, counted: memory, bytes over the link, seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ooc_cudnn.operations.splittable import SWEEP
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.measured import measured
from ooc_cudnn.pipeline.request import OPPOSITE, Direction, Request
from ooc_cudnn.pipeline.reuse import Reuse
from ooc_cudnn.pipeline.rings import Need, Turn
from perfmodel import PipelineCost, Price, Split, closed_form
from perfmodel.cached import cached_property
from perfmodel.machine import STEPS_OF_A_PIECE

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


class Counted:
    """One split under one loop order, counted: buffers, bytes and work.

    Attributes
    ----------
    measured : Measured
        The split, whatever the loop order.
    counts, pieces
        As of the split.
    """

    def __init__(self, request: Request, layout: str, split: Split, order: LoopOrder) -> None:
        self.request, self.chain, self.loop_order = request, request.chain, order
        self.measured = measured(request, layout, split, order)
        self._reuse = dict[str, Reuse]()
        self.counts, self.pieces = self.measured.counts, self.measured.pieces

    @cached_property
    def block_pieces(self) -> int:
        """Pieces that the first sweep goes through before the second one starts; else 1."""
        if self.chain.sweeps == 1:
            return 1
        inside = self.loop_order[self.loop_order.index(SWEEP) + 1 :]
        return math.prod(self.counts[axis] for axis in inside)

    @property
    def depths(self) -> tuple[tuple[int, ...], ...]:
        """Slots worth trying, the best first: in each group, more of them are never slower.

        With two sweeps, those that hold blocks of pieces are a group of their own: results that all
        wait for the second sweep leave later than those that it makes from what it loads again.
        """
        if self.pieces == 1:
            return ((1,),)
        if self.chain.sweeps == 1:
            return (RING_DEPTHS,)
        block = self.block_pieces
        return (2 * block, block + 1, block), RING_DEPTHS

    def best(self, limit_bytes: int) -> Priced:
        """The fastest rings that fit; the smallest ones where none do."""
        best: Priced | None = None
        tried = set[tuple[int, ...]]()
        for depth, whole_parameters, fits in self._worth_trying(limit_bytes):
            if not fits:
                smallest = depth, whole_parameters
                continue
            slots = tuple(need.slots(depth, whole_parameters) for need in self._needs)
            if slots in tried:
                continue
            tried.add(slots)
            priced = self.priced(depth, whole_parameters)
            if best is None or priced.price.seconds < best.price.seconds * (1 - 1e-9):
                best = priced
        return best or self.priced(*smallest)

    def no_order_is_faster(self, priced: Priced) -> bool:
        """Whether all is loaded once, is waited for by nothing, and finds as many slots as help."""
        call, cut_rows = self.chain, self.counts["h_y"] > 1
        if call.sweeps > 1 or priced.cost.waiting_seconds or (cut_rows and not self.measured.down):
            return False
        for name, slots in priced.rings:
            distinct = self.reuse(name).distinct
            if name in call.streamed and 0 < slots < min(distinct, RING_DEPTHS[0]):
                return False
            if name in call.loaded and slots and self.reuse(name).loads(slots) > distinct:
                return False
        return True

    def _worth_trying(self, limit_bytes: int) -> Iterator[tuple[int, bool, bool]]:
        """Rings that no others beat: (slots, whether parameters are whole, whether that fits)."""
        for group in self.depths:
            some_fit = False
            for depth in group:
                fits = self.memory_bytes(depth, True) <= limit_bytes
                yield depth, True, fits
                if fits:
                    break
                if not some_fit:
                    some_fit = self.memory_bytes(depth, False) <= limit_bytes
                    yield depth, False, some_fit

    def memory_bytes(self, depth: int, whole_parameters: bool) -> int:
        """Device memory with such rings."""
        total = self._scratch_bytes
        for need in self._needs:
            total += need.slots(depth, whole_parameters) * need.slot_bytes
        return total

    @cached_property
    def _scratch_bytes(self) -> int:
        operands = self.chain.operands
        return sum(count for name, count in self.measured.sizes.items() if name not in operands)

    @cached_property
    def _needs(self) -> list[Need]:
        """What each operand needs that is brought to slots."""
        chain, found = self.chain, list[Need]()
        for name in chain.operands:
            if name not in self.measured.in_place:
                streamed = name in chain.streamed
                once = streamed and chain.sweeps > 1 and chain.sweeps_of(name) == 1
                distinct = self.reuse(name).distinct
                most = min(distinct, RING_DEPTHS[0]) if once else distinct
                found.append(Need(name, self.measured.sizes[name], most, not streamed))
        return found

    def reuse(self, name: str) -> Reuse:
        """How the loops go through the regions of an operand."""
        found = self._reuse.get(name)
        if found is None:
            found = self._reuse[name] = Reuse(list(self._loops(name)))
        return found

    def _loops(self, name: str) -> Iterator[tuple[int, bool]]:
        for axis in self.loop_order:
            if axis == SWEEP:
                yield self.chain.sweeps_of(name), False
            elif (times := self.counts[axis]) > 1:
                seen = self.chain.distinct(name, axis, self.measured.axes[axis])
                yield seen, True
                yield times // seen, False

    def _at_once(self, name: str) -> int:
        """Regions that are copied in before anything can leave, or out after all came in."""
        return self.block_pieces if name in self.chain.streamed else 1

    def priced(self, depth: int, whole_parameters: bool) -> Priced:
        """Price the split with rings of `depth` slots, parameters kept whole or in a ring."""
        request, chain, split = self.request, self.chain, self.measured
        rings, memory = dict.fromkeys(chain.operands, 0), []
        for need in self._needs:
            rings[need.name] = need.slots(depth, whole_parameters)
        bytes_in, first_in = 0, 0.0
        stays, steps = True, self.pieces
        copies, turning = dict[str, float](), list[Turn]()
        late_in = late_first = late_out = 0.0
        for name, slots in rings.items():
            if not slots:
                continue
            purpose = f"{name}: {slots} slot{'s' * (slots > 1)}"
            memory.append((purpose, slots * split.sizes[name]))
            if name not in chain.loaded:
                continue
            distinct, loads = self.reuse(name).distinct, self.reuse(name).loads(slots)
            steps += loads
            count = split.distinct_bytes(name) * loads // distinct
            bytes_in += count if request.specs[name].placement != "device" else 0
            spent = request.copy_seconds("in", name, count, loads, split.rows(name))
            copies[name] = spent
            turn = Turn("in", name, slots, loads, count / loads, spent)
            late = self._late_seconds(turn)
            late_first = max(late_first, late)
            late_in = max(late_in, self._late_in_all(turn, late))
            turning.append(turn)
            # A first sweep must see all pieces of its block before the second one makes a result;
            first_in += spent * min(1.0, self._at_once(name) / loads)
            stays = stays and (loads == distinct or name not in chain.streamed)
        for name, count in split.sizes.items():
            if name not in rings:
                memory.append((name.replace("_", " "), count))
        bytes_out, copy_out, last_out = 0, 0.0, 0.0
        for name in chain.results:
            if rings[name]:
                pieces_out, spec = self.reuse(name).distinct, request.specs[name]
                steps += pieces_out
                bytes_out += 0 if spec.placement == "device" else spec.nbytes
                spent = request.copy_seconds("out", name, spec.nbytes, pieces_out, split.rows(name))
                copy_out += spent
                turn = Turn("out", name, rings[name], pieces_out, spec.nbytes / pieces_out, spent)
                late_out = max(late_out, self._late_seconds(turn))
                turning.append(turn)
                # ... which all leave at the end, unless the second sweep has to load them again.
                at_once = self._at_once(name) if stays else 1
                last_out += spent * min(1.0, at_once / pieces_out)
        copy_in, first_in = sum(copies.values()) + late_in, first_in + late_first
        copy_out, last_out = copy_out + late_out, last_out + late_out
        machine, beside = request.machine, 0.0
        if depth > 1:
            beside = max(copy_in - first_in, 0.0) + max(copy_out - last_out, 0.0)
        issued = steps * machine.step_seconds
        compute = split.compute_seconds + float(machine.lost_seconds(0.0, 0.0, issued))
        lost = float(machine.lost_seconds(split.compute_seconds, beside, 0.0))
        turning_seconds, filing_seconds = self._turning_seconds(turning)
        cost = PipelineCost(
            request.setup_seconds if steps > 1 else machine.repeated_seconds,
            copy_in, compute, copy_out,
            min(first_in, copy_in), min(split.first_compute, split.compute_seconds),
            min(split.last_compute, split.compute_seconds), last_out,
            machine.issue_seconds(
                steps, split.launching_seconds, staged=self._staged_steps(steps, turning)
            ),
            self._waiting_seconds(rings, copies, copy_out),
            turning_seconds,
            *meeting_seconds(turning),
            filing_seconds,
            lost,
        )  # fmt: skip
        # Without overlap the same steps run, so the split is that of the overlapped call.
        return Priced(
            self._price(sum(count for _, count in memory), cost, one_slot=depth == 1),
            self.loop_order, tuple(rings.items()), cost, tuple(memory), bytes_in, bytes_out,
        )  # fmt: skip

    def _staged_steps(self, steps: float, turns: list[Turn]) -> float:
        """Steps that threads issue which stage, or that are issued beside them."""
        if self.pieces == 1:
            return 0.0
        if self.request.in_threads:
            return steps
        staged = sum(turn.copies for turn in turns if turn[:2] in self.request.staged)
        return min(STEPS_OF_A_PIECE * staged, steps)

    def _late_seconds(self, turn: Turn) -> float:
        """What one copy is late by."""
        return float(self.request.latency_seconds(turn.direction, turn.name, turn.copy_bytes))

    def _late_in_all(self, turn: Turn, late: float) -> float:
        """What the copies in of a ring are late by: the first one, and in one slot later ones, too.

        While a region stays in its only slot, for several pieces, no other one is staged; where
        each piece has a region of its own, the next one is staged as soon as the piece begins.
        """
        if turn.slots > 1 or not late:
            return late
        staying = 1.0 - turn.copies / self.pieces
        piece = self.measured.compute_seconds / self.pieces
        return late + (turn.copies - 1) * max(staying, 0.0) * max(late - piece, 0.0)

    def _turning_seconds(self, turns: list[Turn]) -> tuple[float, float]:
        """What the slots of the slowest ring take, of plain memory and of files: `Request`.

        Only staging, for which each copy is late, takes so long that this matters where a ring is
        short; and what is in flight of all that is staged is late by each other.
        """
        staged = [turn for turn in turns if self._late_seconds(turn)]
        turning = filing = 0.0
        if not staged:
            return turning, filing
        in_flight = sum(turn.slots for turn in staged if turn.copies > 1)
        others = max(in_flight - 1, 0)
        pinned: dict[Direction, float] = {"in": 0.0, "out": 0.0}
        for turn in turns:
            if self.request.crosses_as(turn.name) == "pinned":
                pinned[turn.direction] += turn.seconds
        for way, name, slots, copies, copy_bytes, _ in staged:
            spent = self.request.turning_seconds(
                way, name, copies, copy_bytes, slots, others, pinned[OPPOSITE[way]]
            )
            if self.request.crosses_as(name) == "disk":
                filing = max(filing, float(spent))
            else:
                turning = max(turning, float(spent))
        return turning, filing

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
        pace = max(self.measured.compute_seconds / self.pieces, others)
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

    def _price(self, memory_bytes: int, cost: PipelineCost, *, one_slot: bool) -> Price:
        if self.measured.reason:
            return Price(memory_bytes, 0.0, legal=False, reason=self.measured.reason)
        seconds = closed_form(cost, self.request.slowdown, one_slot=one_slot)
        return Price(memory_bytes, seconds)


def meeting_seconds(turns: list[Turn]) -> tuple[float, float]:
    """Copies in and out that run beside each other where rings have one slot.

    Then a result leaves only while the next piece is copied in, if that needs any copy.
    """
    most, beyond_first = {"in": 1, "out": 1}, {"in": 0.0, "out": 0.0}
    for turn in turns:
        most[turn.direction] = max(most[turn.direction], turn.copies)
        beyond_first[turn.direction] += turn.seconds * (1.0 - 1.0 / turn.copies)
    meetings = min(most.values()) - 1
    copy_in, copy_out = (
        beyond_first[way] * meetings / max(most[way] - 1, 1) for way in ("in", "out")
    )
    return copy_in, copy_out
