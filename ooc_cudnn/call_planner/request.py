"""A request for a plan, and the cost of its copies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ooc_cudnn.call_planner.loop_orders import LoopOrder, legal_orders
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.tensor import TensorSpec
from perfmodel import MachineModel, Slowdown
from perfmodel.cached import cached_property
from perfmodel.staging import AT_ONCE_BYTES

Direction = Literal["in", "out"]
#: No piece exceeds these, whatever memory would allow: cuDNN was seen wrong or slow beyond.
LARGEST_PIECE_ELEMENTS = 2**30
LARGEST_PIECE_BYTES = 2**31
LARGEST_BATCH = 65535
#: Below this many bytes in pageable memory, staging in the caller's time is faster than threads.
WORTH_THREADS_BYTES = 8 * 2**20
#: The same for each task of a long program: threads make its steps slower to issue, by 125 us each
#: on an H200.
WORTH_A_TASK_BYTES = 2 * 2**20
#: An operand that is staged without them takes next to nothing if it is no larger than this.
WITHOUT_THREADS_BYTES = 2**20


def worth_threads(specs: Iterable[TensorSpec], tasks: int = 1) -> bool:
    """True if enough of what tasks take is in memory that cannot be copied from as it is."""
    staged_bytes = sum(
        spec.nbytes
        for spec in specs
        if spec.placement in ("pageable", "disk")
        or (spec.placement == "pinned" and spec.order is None)
    )
    return staged_bytes > max(WORTH_THREADS_BYTES, WORTH_A_TASK_BYTES * tasks)


class CopyLine(NamedTuple):
    """Seconds of moving an operand one way: so many per byte, and so many per copy."""

    per_byte: float
    per_copy: float


@dataclass(frozen=True)
class Request:
    """Request for a plan: a call, where its operands live, and what may be used.

    `in_place` names the operands that lie on the device as launches take them, packed and aligned;
    each with whether every image of it starts aligned, so that pieces of n are taken in place, too.
    Those of them that are some channels of a wider tensor are in `wider`, with its channels.
    `orders` is the memory order (not that of the loops) of each operand, where it lies or in its
    slot; `layouts` are those in which windows may be computed, the preferred one first.
    `loop_order` is the one to take; empty where any legal one will do. `row_axes` are the spatial
    axes along which rows may lie; empty for the call's own.
    """

    function: str
    chain: TiledCall
    operands: tuple[tuple[str, TensorSpec], ...]
    in_place: tuple[tuple[str, bool], ...]
    wider: tuple[tuple[str, int], ...]
    orders: tuple[tuple[str, str], ...]
    machine: MachineModel
    memory_limit: int
    layouts: tuple[str, ...]
    overlap: bool = True
    loop_order: LoopOrder = ()
    row_axes: tuple[int, ...] = ()

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The operands by name."""
        return dict(self.operands)

    @cached_property
    def in_threads(self) -> bool:
        """True if threads stage what is copied, if there is more than one piece."""
        return worth_threads(self.specs.values())

    @cached_property
    def computed_on_in_place(self) -> Mapping[str, frozenset[str]]:
        """`in_place` by name, with the axes along which pieces are packed and aligned as well.

        Without operands of which the call needs some rows only (no window reaches the others): they
        have the strides of the whole, and launches are built for packed tensors. Rows of a single
        image in channels-last order are packed.
        """
        call, by_name = self.chain, dict[str, frozenset[str]]()
        for name, may_cut_n in self.in_place:
            spec, in_rows = self.specs[name], self._may_cut_rows(name)
            regions = (call.region(name, call.whole_piece(sweep)) for sweep in range(call.sweeps))
            partly = {
                axis
                for region in regions
                for axis, part in enumerate(region or ())
                if part != (0, spec.shape[axis])
            }
            if not partly or (partly == {ROW_AXIS} and in_rows):
                axes = {"n": may_cut_n, "h_y": in_rows and call.row_axis == ROW_AXIS}
                by_name[name] = frozenset(axis for axis, may in axes.items() if may)
        return by_name

    def _may_cut_rows(self, name: str) -> bool:
        """True if rows of a packed tensor are packed, and each begins as aligned as the first."""
        spec = self.specs[name]
        one_image = len(spec.shape) > ROW_AXIS and spec.shape[0] == 1
        row_bytes = spec.strides[ROW_AXIS] * spec.itemsize if one_image else 1
        return spec.order == "channels_last" and row_bytes % WIDEST_ACCESS_BYTES == 0

    @cached_property
    def loop_orders(self) -> tuple[LoopOrder, ...]:
        """The loop orders to choose from."""
        return (self.loop_order,) if self.loop_order else legal_orders(self.chain)

    def along(self, row_axis: int) -> Request:
        """The same with rows along one axis."""
        return replace(self, chain=self.chain.along(row_axis), row_axes=())

    @cached_property
    def turned(self) -> tuple[Request, ...]:
        """The same with rows along each axis of which one row needs less than along those before.

        Less of its lead, that is, halo included; else pieces have as wide halos, in narrower rows.
        """
        requests, least = list[Request](), math.inf
        for row_axis in self.row_axes or (self.chain.row_axis,):
            turned = self.along(row_axis)
            call = turned.chain
            middle = call.extents.h_y // 2
            piece = call.whole_piece(0)._replace(h_y=(middle, middle + 1))
            region = call.region(call.lead, piece)
            needed = math.prod(stop - start for start, stop in region or ())
            if needed < least:
                requests.append(turned)
                least = needed
        return tuple(requests)

    # The link -----------------------------------------------------------------------------------

    @cached_property
    def ways(self) -> tuple[tuple[Direction, str], ...]:
        """Operands that cross the link, and which way."""
        loaded: list[tuple[Direction, str]] = [("in", name) for name in self.chain.loaded]
        return (*loaded, *(("out", name) for name in self.chain.results))

    def crosses_as(self, name: str) -> str:
        """The placement by which copies of an operand are priced: as pinned where little is staged.

        Threads that stage are late by far more than it takes to copy so little.
        """
        spec = self.specs[name]
        little = AT_ONCE_BYTES if self.in_threads else WITHOUT_THREADS_BYTES
        return "pinned" if spec.placement != "device" and spec.nbytes <= little else spec.placement

    @cached_property
    def written_bytes(self) -> dict[str, int]:
        """Bytes of each result that the call makes: of a part of a call, not all."""
        call, nbytes = self.chain, dict[str, int]()
        for name in call.results:
            regions = (call.region(name, call.whole_piece(sweep)) for sweep in range(call.sweeps))
            sizes = (math.prod(stop - start for start, stop in each) for each in regions if each)
            nbytes[name] = max(sizes, default=0) * self.specs[name].itemsize
        return nbytes

    @cached_property
    def copy_lines(self) -> dict[tuple[Direction, str], CopyLine]:
        """The line that the seconds of each operand's copies lie on."""
        transfer, lines = self.machine.transfer, {}
        for way, name in self.ways:
            count, placement = max(self.specs[name].nbytes, 1), self.crosses_as(name)
            one, two = (
                transfer.copy_seconds(f"copy_{way}", placement, count, copies) for copies in (1, 2)
            )
            lines[way, name] = CopyLine((2 * one - two) / count, two - one)
        return lines

    @cached_property
    def lines_inside(self) -> dict[str, CopyLine]:
        """The same of copies inside the device: of what lies there to slots, and back."""
        compute, lines = self.machine.compute, {}
        for name, spec in self.operands:
            if spec.placement == "device":
                none, all_of_it = (
                    compute.seconds(Relayout(shape, spec.dtype).work())
                    for shape in ((0,), spec.shape)
                )
                lines[name] = CopyLine((all_of_it - none) / max(spec.nbytes, 1), none)
        return lines

    @cached_property
    def slowdown(self) -> Slowdown:
        """Slowdown of the two directions of the link by each other in this call.

        Each pair of placements counts by the seconds of moving its operands once.
        """
        spent: dict[str, dict[str, float]] = {"in": {}, "out": {}}
        for (way, name), line in self.copy_lines.items():
            placement = self.crosses_as(name)
            seconds = line.per_byte * self.specs[name].nbytes + line.per_copy
            spent[way][placement] = spent[way].get(placement, 0.0) + seconds
        return self.machine.transfer.mean_slowdown(spent["in"], spent["out"])

    @cached_property
    def setup_seconds(self) -> float:
        """Seconds until the first step is issued: `MachineModel.setup_seconds`."""
        return self.machine.setup_seconds(len(self.specs))
