"""One split of a call, measured: its pieces' memory and work, whatever the order of its loops."""

from __future__ import annotations

from collections.abc import Mapping

from ooc_cudnn.memory.alignment import aligned
from ooc_cudnn.operations.splittable import AXES, SWEEP, Buffer, Launch
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.piece_classes import PieceClasses
from ooc_cudnn.pipeline.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Request,
)
from ooc_cudnn.pipeline.schedule import runs_down
from perfmodel import Split
from perfmodel.cached import cached_property
from perfmodel.rows import Rows


def measured(request: Request, layout: str, split: Split, order: LoopOrder) -> Measured:
    """Measure a split, once for all loop orders in which its pieces are the same."""
    counts = {axis: request.cuts.cut(axis, getattr(split, axis)).times for axis in AXES}
    down = runs_down(order, counts | {SWEEP: request.chain.sweeps})
    key = layout, split, down
    found = request.measured.get(key)
    if found is None:
        found = request.measured[key] = Measured(request, layout, split, down=down)
    return found


class Measured(PieceClasses):
    """One piece of every class of a split: the largest of each buffer, and the work of all.

    Attributes
    ----------
    sizes : mapping
        Bytes of each block of memory, as it lies in the arena.
    compute_seconds, launching_seconds : float
        Of all pieces: on the device, and of the host to launch them.
    first_compute, last_compute : float
        Seconds of the first piece and of the last one.
    """

    def __init__(self, request: Request, layout: str, split: Split, *, down: bool) -> None:
        super().__init__(request.chain, split, down=down)
        self.request = request
        self._distinct_bytes, self._rows = dict[str, int](), dict[str, Rows]()
        self._costs, sizes = request.piece_costs(layout), dict[str, int]()
        self._largest_elements = self._largest_bytes = 0
        self.compute_seconds = self.launching_seconds = 0.0
        self._found = self.classes()
        self._first_piece = self._found[0][0]
        measured = [self._costs.of(piece, place) for piece, place, _ in self._found]
        for cost, (_, _, times) in zip(measured, self._found, strict=True):
            for block, count in cost.sizes.items():
                if count > sizes.get(block, -1):
                    sizes[block] = count
            self._largest_elements = max(self._largest_elements, cost.largest_elements)
            self._largest_bytes = max(self._largest_bytes, cost.largest_bytes)
            self.compute_seconds += times * cost.seconds
            self.launching_seconds += times * cost.launching
        self.sizes = {block: aligned(count) for block, count in sizes.items()}
        self.first_compute = measured[0].seconds
        self.last_compute = measured[-1].seconds

    @property
    def launches(self) -> Mapping[Launch, Mapping[str, Buffer]]:
        """Every different launch, with its buffers."""
        found: dict[Launch, Mapping[str, Buffer]] = {}
        for piece, accumulation, _ in self._found:
            launches, buffers = self._costs.launches(piece, accumulation)
            for launch in launches:
                found.setdefault(launch, buffers)
        return found

    @cached_property
    def reason(self) -> str:
        """Why no memory is enough for it; empty where some is."""
        batch = min(self.split.n, self.call.extents.n)
        if (
            self._largest_elements <= LARGEST_PIECE_ELEMENTS
            and self._largest_bytes <= LARGEST_PIECE_BYTES
            and batch <= LARGEST_BATCH
        ):
            return ""
        return (
            f"a piece would exceed {LARGEST_PIECE_ELEMENTS} elements, "
            f"{LARGEST_PIECE_BYTES} bytes or a batch of {LARGEST_BATCH}"
        )

    def distinct_bytes(self, name: str) -> int:
        """Bytes of every region of an operand once: halo rows count in each piece they go to."""
        if name not in self._distinct_bytes:
            self._distinct_bytes[name] = self._all_bytes(name)
        return self._distinct_bytes[name]

    def _all_bytes(self, name: str) -> int:
        spec, operand = self.request.specs[name], self.call.operands[name]
        if "h_y" not in operand.axes or len(spec.shape) < 3:
            return spec.nbytes
        rows = 0
        for found in self.row_classes:
            piece = self.piece_of(found.range, found.after, self.call.sweeps - 1)
            region = self.call.region(name, piece)
            if region is not None:
                start, stop = region[self.call.row_axis]
                rows += found.times * (stop - start)
        return spec.nbytes // spec.shape[self.call.row_axis] * rows

    def rows(self, name: str) -> Rows:
        """How the pieces of an operand lie in its memory."""
        if name not in self._rows:
            piece = self._first_piece._replace(sweep=self.call.sweeps - 1)
            self._rows[name] = self.request.rows(name, piece)
        return self._rows[name]

    @cached_property
    def in_place(self) -> frozenset[str]:
        """The operands whose pieces are computed on where they lie on the device.

        Only whole images are: cuDNN is slow, and beyond 2**31 elements wrong, on pieces whose rows
        or channels are strided, so those are brought to a slot by a copy on the device.
        """
        found = []
        for name, may_cut_n in self.request.computed_on_in_place.items():
            axes = self.call.operands[name].axes - ({"n"} if may_cut_n else set())
            if all(self.counts[axis] == 1 for axis in axes):
                found.append(name)
        return frozenset(found)
