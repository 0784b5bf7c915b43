"""What a split costs: its pieces counted by class, their memory, their bytes, their seconds.

The chain says which regions a piece needs and what is launched on it; the machine model says what
moving and computing them costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ooc_cudnn.operations.splittable import (
    SWEEP,
    Buffer,
    Launch,
    Piece,
    Splittable,
)
from ooc_cudnn.pipeline.piece_classes import PieceClasses
from ooc_cudnn.tensor import TensorSpec
from perfmodel import (
    MachineModel,
    PipelineCost,
    Price,
    Split,
    closed_form,
    default_candidates,
)

#: Device memory is handed out in multiples of this (bytes).
ALIGNMENT = 256
#: No piece exceeds these, whatever memory would allow (DESIGN.md section 3).
LARGEST_PIECE_ELEMENTS = 2**30
LARGEST_PIECE_BYTES = 2**31
LARGEST_BATCH = 65535
#: Slots of the rings of x and y, the best first: three let both copies and compute run at once.
RING_DEPTHS = (3, 2, 1)


def aligned(count: int) -> int:
    """Round bytes up to the alignment of the arena.

    >>> aligned(1), aligned(256)
    (256, 256)
    """
    return -(-count // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Request:
    """What is to be planned: a call, where its operands live, and what may be used.

    `in_place` names the operands that live on the device and can be computed on as they lie, if
    at all: each with whether pieces of n may be, too (every image must start aligned).
    `order` is the memory order in which each operand lies, or is brought to its slot.
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
    loop_order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.loop_order:
            object.__setattr__(self, "loop_order", self.chain.loop_order)

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The operands by name."""
        return dict(self.operands)

    @cached_property
    def counted(self) -> dict[tuple[str, Split], Counted]:
        """Splits counted so far, by layout: the same in every search, whatever memory is left."""
        return {}


@dataclass(frozen=True)
class Priced:
    """Everything that is known of one split under one layout."""

    price: Price
    rings: tuple[tuple[str, int], ...]
    cost: PipelineCost
    memory: tuple[tuple[str, int], ...]
    bytes_in: int
    bytes_out: int


class SplitProblem:
    """The search's view of a request, for one layout: a `perfmodel.Problem`."""

    def __init__(self, request: Request, layout: str, reserved_bytes: int) -> None:
        self.request, self.chain, self.layout = request, request.chain, layout
        self.limit_bytes = request.memory_limit - reserved_bytes
        self.orders = dict(request.orders)
        self.priced: dict[Split, Priced] = {}

    @property
    def extents(self) -> Split:
        """Full sizes."""
        return self.chain.extents

    def candidates(self, axis: str) -> tuple[int, ...]:
        """Piece sizes worth trying on an axis."""
        extent = getattr(self.extents, axis)
        if not self.chain.may_cut(axis):
            return (extent,)
        if axis == "n":
            extent = min(extent, LARGEST_BATCH)
        return default_candidates(extent)

    def price(self, split: Split) -> Price:
        """Seconds and memory of a split; the ring is as deep as fits the limit."""
        if not self.chain.is_legal(split):
            return Price(0, 0.0, legal=False, reason="cX cannot be cut beside several groups")
        if split not in self.priced:
            key = self.layout, split
            counted = self.request.counted.get(key)
            if counted is None:
                counted = self.request.counted[key] = Counted(self, split)
            best: Priced | None = None
            for depth in counted.depths:
                for whole in (True, False):
                    best = counted.priced(depth, whole)
                    if best.price.memory_bytes <= self.limit_bytes:
                        self.priced[split] = best
                        return best.price
            assert best is not None
            self.priced[split] = best
        return self.priced[split].price

    def seconds(self, split: Split) -> float:
        """Predicted seconds of a split that was priced, its steps overlapped or one by one."""
        priced = self.priced[split]
        if self.request.overlap:
            return priced.price.seconds
        return closed_form(priced.cost, self.request.machine.transfer, overlap=False)


class Counted(PieceClasses):
    """One split, counted: buffers, bytes and work."""

    def __init__(self, problem: SplitProblem, split: Split) -> None:
        self.request, self.chain = problem.request, problem.chain
        super().__init__(self.chain, split, self.request.loop_order)
        self.layout, self.orders = problem.layout, problem.orders
        self.split = split
        self._measure()

    def _measure(self) -> None:
        """Launch every class of piece once: the largest of each buffer, and the work of all."""
        seconds, self.sizes = self.request.machine.compute.seconds, dict[str, int]()
        self.largest_elements = self.largest_bytes = 0
        self.compute_seconds = 0.0
        piece_seconds: dict[Piece, float] = {}
        self.launches: dict[Launch, Mapping[str, Buffer]] = {}
        for piece, accumulation, times in self.classes():
            launches, buffers = self.chain.launches(
                piece, layout=self.layout, orders=self.orders, accumulation=accumulation
            )
            for name, buffer in buffers.items():
                elements, count = math.prod(buffer.whole), buffer.nbytes
                block = buffer.block or name
                self.sizes[block] = max(self.sizes.get(block, 0), count)
                self.largest_elements = max(self.largest_elements, elements)
                self.largest_bytes = max(self.largest_bytes, count)
            for launch in launches:
                self.launches.setdefault(launch, buffers)
            spent = sum(seconds(launch.operation.work()) for launch in launches)
            piece_seconds[piece] = spent
            self.compute_seconds += times * spent
        self.first_compute = next(iter(piece_seconds.values()))
        self.last_compute = list(piece_seconds.values())[-1]

    @property
    def depths(self) -> tuple[int, ...]:
        """Slots worth trying: with two sweeps, first as many as hold two blocks of pieces."""
        if self.pieces == 1:
            return (1,)
        if self.chain.sweeps == 1:
            return RING_DEPTHS
        block = self.block_pieces
        return tuple(dict.fromkeys((2 * block, block + 1, block, *RING_DEPTHS)))

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

    def _loops(self, name: str) -> list[tuple[int, bool]]:
        """The loops, outermost first: (times, whether an operand's region depends on it)."""
        found = []
        for axis in self.request.loop_order:
            if axis == SWEEP:
                found.append((self.chain.sweeps_of(name), False))
                continue
            times = self.counts[axis]
            seen = self.chain.distinct(name, axis, self.axes[axis])
            found += [(seen, True), (times // seen, False)]
        return found

    def distinct(self, name: str) -> int:
        """How many different regions of an operand the pieces need."""
        return math.prod(times for times, depends in self._loops(name) if depends)

    def loads(self, name: str, depth: int) -> int:
        """How many regions are copied in, with `depth` slots to find earlier ones in."""
        inner = self.distinct(name)
        outside: list[tuple[int, bool]] = []
        for times, depends in self._loops(name):
            if inner <= depth:
                break
            outside.append((times, depends))
            if depends:
                inner //= times
        while outside and (not outside[-1][1] or outside[-1][0] == 1):
            outside.pop()
        return inner * math.prod(times for times, _ in outside)

    def _stays_in_place(self, name: str) -> bool:
        """Whether the pieces of an operand on the device are computed on where they lie.

        Only whole images are: cuDNN is slow, and beyond 2**31 elements wrong, on pieces whose rows
        or channels are strided, so those are brought to a slot by a copy on the device.
        """
        may_cut_n = dict(self.request.in_place).get(name)
        if may_cut_n is None:
            return False
        axes = self.chain.operands[name].axes - ({"n"} if may_cut_n else set())
        return all(self.counts[axis] == 1 for axis in axes)

    def _at_once(self, name: str) -> int:
        """Regions that are copied in before anything can leave, or out after all came in."""
        return self.block_pieces if name in self.chain.streamed else 1

    def priced(self, depth: int, whole_parameters: bool) -> Priced:
        """Price the split with rings of `depth` slots, parameters kept whole or in a ring."""
        request, chain = self.request, self.chain
        transfer = request.machine.transfer
        rings, memory = [], []
        bytes_in, copy_in, setup, first_in = 0, 0.0, 0.0, 0.0
        stays = True
        for name in chain.operands:
            if self._stays_in_place(name):
                rings.append((name, 0))
                continue
            distinct = self.distinct(name)
            streamed = name in chain.streamed
            slots = min(distinct, depth) if streamed or not whole_parameters else distinct
            if chain.sweeps_of(name) == 1 and streamed:
                slots = min(slots, RING_DEPTHS[0])
            rings.append((name, slots))
            purpose = f"{name}: {slots} slot{'s' * (slots > 1)}"
            memory.append((purpose, slots * aligned(self.sizes[name])))
            if name not in chain.loaded:
                continue
            loads = self.loads(name, slots)
            count = self._distinct_bytes(name) * loads // distinct
            placement = request.specs[name].placement
            bytes_in += count if placement != "device" else 0
            spent = transfer.copy_in_seconds(placement, count, copies=loads)
            copy_in += spent
            # A first sweep must see all pieces of its block before the second one makes a result;
            first_in += spent * min(1.0, self._at_once(name) / loads)
            stays = stays and (loads == distinct or not streamed)
        others = [name for name in self.sizes if name not in chain.operands]
        for name in others:
            memory.append((name.replace("_", " "), aligned(self.sizes[name])))
        bytes_out, copy_out, last_out = 0, 0.0, 0.0
        for name in chain.results:
            if not self._stays_in_place(name):
                pieces_out, spec = self.distinct(name), request.specs[name]
                bytes_out += 0 if spec.placement == "device" else spec.nbytes
                spent = transfer.copy_out_seconds(spec.placement, spec.nbytes, copies=pieces_out)
                copy_out += spent
                # ... which all leave at the end, unless the second sweep has to load them again.
                at_once = self._at_once(name) if stays else 1
                last_out += spent * min(1.0, at_once / pieces_out)
        cost = PipelineCost(
            setup, copy_in, self.compute_seconds, copy_out,
            min(first_in, copy_in), min(self.first_compute, self.compute_seconds),
            min(self.last_compute, self.compute_seconds), last_out,
        )  # fmt: skip
        # Without overlap the same steps run, so the split is that of the overlapped call.
        overlap = depth > 1
        return Priced(
            self._price(sum(count for _, count in memory), cost, overlap),
            tuple(rings), cost, tuple(memory), bytes_in, bytes_out,
        )  # fmt: skip

    def _price(self, memory_bytes: int, cost: PipelineCost, overlap: bool) -> Price:
        batch = min(self.split.n, self.chain.extents.n)
        if (
            self.largest_elements > LARGEST_PIECE_ELEMENTS
            or self.largest_bytes > LARGEST_PIECE_BYTES
            or batch > LARGEST_BATCH
        ):
            return Price(
                memory_bytes, 0.0, legal=False,
                reason=f"a piece would exceed {LARGEST_PIECE_ELEMENTS} elements, "
                f"{LARGEST_PIECE_BYTES} bytes or a batch of {LARGEST_BATCH}",
            )  # fmt: skip
        seconds = closed_form(cost, self.request.machine.transfer, overlap=overlap)
        return Price(memory_bytes, seconds)
