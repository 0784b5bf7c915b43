"""What the splits of a grid are estimated to cost within a memory limit, all at once.

It says which splits are worth pricing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooc_cudnn.operations.splittable import AXES
from ooc_cudnn.pipeline.grid import ONE, Grid, Mask
from ooc_cudnn.pipeline.grid_reuse import gate
from ooc_cudnn.pipeline.grid_reuse import loads as loads_of
from ooc_cudnn.pipeline.grid_rings import GridRings
from ooc_cudnn.pipeline.loop_orders import LoopOrder
from ooc_cudnn.pipeline.piece_model import Values
from ooc_cudnn.pipeline.request import OPPOSITE, Direction
from ooc_cudnn.pipeline.ways import Way
from perfmodel import Split
from perfmodel.cached import cached_property
from perfmodel.machine import STEPS_OF_A_PIECE
from perfmodel.pipeline import with_turning
from perfmodel.search_guided import WORTH_A_CUT, WORTH_TWICE_THE_PIECES

_NOTHING: Values = np.zeros((1,) * 5)


class Estimates:
    """Seconds of every split of a grid, with its best rings.

    Parameters
    ----------
    grid : Grid
    limit_bytes : int
    orders : tuple of LoopOrder, optional
        Those to look at; all that differ when left out.
    """

    def __init__(
        self, grid: Grid, limit_bytes: int, orders: tuple[LoopOrder, ...] | None = None
    ) -> None:
        self.grid, self.call, self.request = grid, grid.call, grid.request
        self.limit_bytes, self.orders = limit_bytes, orders or grid.orders
        self.rings = GridRings(grid, limit_bytes)

    # Copies -------------------------------------------------------------------------------------

    @cached_property
    def _per_load(self) -> dict[str, Values]:
        """Seconds of copying one region in; nothing where it is computed on as it lies."""
        grid, found = self.grid, {}
        for name in self.call.loaded:
            link = self.request.links["in", name]
            per_byte = link.per_byte + grid.apart["in", name]
            each = per_byte * grid.bytes_read[name] / grid.distinct[name] + link.per_copy
            found[name] = grid.where_moved(name, each)
        return found

    @cached_property
    def _copies_out(self) -> dict[str, Values]:
        """Seconds of copying each result out."""
        grid, found = self.grid, {}
        for name in self.call.results:
            link = self.request.links["out", name]
            per_byte = link.per_byte + grid.apart["out", name]
            spent = per_byte * self.request.specs[name].nbytes + link.per_copy * grid.distinct[name]
            found[name] = grid.where_moved(name, spent)
        return found

    @cached_property
    def _latency(self) -> dict[tuple[Direction, str], Values]:
        """Seconds that a copy of each operand is late by; only of those that are staged."""
        grid, found = self.grid, {}
        for way, name in self.request.staged:
            count = grid.bytes_read[name] if way == "in" else self.request.specs[name].nbytes
            late = self.request.latency_seconds(way, name, count / grid.distinct[name])
            if np.any(late):
                found[way, name] = grid.where_moved(name, late)
        return found

    @cached_property
    def _copy_bytes(self) -> dict[tuple[Direction, str], Values]:
        """Bytes of a copy of what is staged."""
        grid, found = self.grid, {}
        for way, name in self._latency:
            count = grid.bytes_read[name] if way == "in" else self.request.specs[name].nbytes
            found[way, name] = np.asarray(count / grid.distinct[name])
        return found

    def _latest(self, direction: Direction) -> Values:
        """Seconds that the first copy in or the last copy out takes beside."""
        late = _NOTHING
        for (way, _), seconds in self._latency.items():
            if way == direction:
                late = np.maximum(late, seconds)
        return late

    def _late_in_all(self, slots: dict[str, Values], loads: dict[str, Values]) -> Values:
        """What all copies in are late by: `Counted`."""
        grid, late = self.grid, _NOTHING
        for (way, name), seconds in self._latency.items():
            if way == "in":
                staying = np.maximum(1.0 - loads[name] / grid.steps, 0.0)
                again = (
                    (loads[name] - 1.0) * staying * np.maximum(seconds - grid.piece_seconds, 0.0)
                )
                again = np.where(slots[name] == 1.0, again, 0.0)
                late = np.maximum(late, seconds + grid.where_moved(name, again))
        return late

    @cached_property
    def _copy_out(self) -> Values:
        return sum(self._copies_out.values(), _NOTHING)

    @cached_property
    def _steps_beside_loads(self) -> Values:
        grid = self.grid
        moved = (grid.where_moved(name, grid.distinct[name]) for name in self.call.results)
        return sum(moved, grid.steps)

    def _waiting(
        self,
        order: LoopOrder,
        slots: dict[str, Values],
        loads: dict[str, Values],
        depths: Values,
    ) -> Values:
        """For how long copies in wait for slots: `Counted._waiting_seconds`."""
        gates = {name: gate(self.grid, name, slots[name], order) for name in loads}
        if not any(gates.values()):
            return _NOTHING
        gated, others = _NOTHING, _NOTHING
        for name, at in gates.items():
            spent = self._per_load[name] * loads[name]
            if at is None:
                others = others + spent
            else:
                gated = gated + np.where(at.here, spent, 0.0)
                others = others + np.where(at.here, 0.0, spent)
        grid = self.grid
        others = others / grid.steps
        pace, leaving = np.maximum(grid.piece_seconds, others), self._copy_out / grid.steps
        held = grid.steps
        for name in self.call.results:
            distinct = grid.distinct[name]
            held = np.minimum(held, np.minimum(distinct, depths) * grid.steps / distinct)
        waiting = _NOTHING
        for name, at in gates.items():
            if at is not None:
                here, pieces, block_pieces, regions = at
                until = np.maximum(pieces * pace, (pieces - held) * leaving)
                ahead = (slots[name] - regions) * gated / loads[name]
                each = until - block_pieces * others - ahead
                each = np.where(here, (loads[name] / regions - 1) * each, 0.0)
                waiting = np.maximum(waiting, each)
        return waiting

    def _staged_steps(self, steps: Values, loads: dict[str, Values]) -> Values | float:
        """Steps that threads issue which stage, or that are issued beside them: `Counted`."""
        grid = self.grid
        if self.request.in_threads:
            return np.where(grid.steps > 1, steps, 0.0)
        if not self.request.staged:
            return 0.0
        staged = _NOTHING
        for way, name in self.request.staged:
            copies = loads[name] if way == "in" else grid.distinct[name]
            staged = staged + grid.where_moved(name, copies)
        return np.where(grid.steps > 1, np.minimum(STEPS_OF_A_PIECE * staged, steps), 0.0)

    def _turning(
        self, slots: dict[str, Values], loads: dict[str, Values], depths: Values
    ) -> tuple[Values, Values]:
        """What the slots of the slowest ring take, of plain memory and of files: `Counted`."""
        grid, turning, filing = self.grid, _NOTHING, _NOTHING
        moved: list[tuple[Direction, str, Values, Values]] = [
            ("in", name, loads[name], slots[name]) for name in loads
        ]
        moved += [
            ("out", name, distinct, np.minimum(distinct, depths))
            for name in self._copies_out
            for distinct in (grid.distinct[name],)
        ]
        pinned: dict[Direction, Values] = {"in": _NOTHING, "out": _NOTHING}
        for way, name, copies, _ in moved:
            if self.request.crosses_as(name) == "pinned":
                spent = self._per_load[name] * copies if way == "in" else self._copies_out[name]
                pinned[way] = pinned[way] + spent
        moved = [turn for turn in moved if turn[:2] in self._copy_bytes]
        in_flight = _NOTHING
        for _, name, copies, ring in moved:
            in_flight = in_flight + grid.where_moved(name, ring * (copies > 1))
        others = np.maximum(in_flight - 1.0, 0.0)
        for way, name, copies, ring in moved:
            spent = self.request.turning_seconds(
                way, name, copies, self._copy_bytes[way, name], np.maximum(ring, 1.0), others,
                pinned[OPPOSITE[way]],
            )  # fmt: skip
            if self.request.crosses_as(name) == "disk":
                filing = np.maximum(filing, grid.where_moved(name, spent))
            else:
                turning = np.maximum(turning, grid.where_moved(name, spent))
        return turning, filing

    # The price ----------------------------------------------------------------------------------

    def _way(self, order: LoopOrder) -> Way:
        """What a loop order makes of copies, with the rings that are worth trying in it."""
        depths, whole = self.rings.of(order)
        slots = {name: self.rings.slots(name, depths, whole) for name in self.call.loaded}
        loads = {name: loads_of(self.grid, name, slots[name], order) for name in slots}
        waiting = self._waiting(order, slots, loads, depths)
        return Way(depths, self.rings.block(order), slots, loads, waiting)

    @cached_property
    def _once(self) -> tuple[Values, Values]:
        """Seconds of the first copies in and of the last ones out, with one sweep."""
        grid = self.grid
        ends = (spent / grid.distinct[name] for name, spent in self._copies_out.items())
        return sum(self._per_load.values(), _NOTHING), sum(ends, _NOTHING)

    def _ends(self, way: Way) -> tuple[Values, Values]:
        """The same with two: what the first one goes through before the second one starts."""
        grid, call, at_once = self.grid, self.call, way.at_once
        first_in = last_out = _NOTHING
        stays: Mask | bool = True
        for name, loads in way.loads.items():
            if name in call.streamed:
                first_in = first_in + self._per_load[name] * np.minimum(loads, at_once)
                stays = stays & (loads == grid.distinct[name])
            else:
                first_in = first_in + self._per_load[name]
        for name, spent in self._copies_out.items():
            kept = np.where(stays, at_once, 1.0) if name in call.streamed else ONE
            last_out = last_out + spent * np.minimum(1.0, kept / grid.distinct[name])
        return first_in, last_out

    @cached_property
    def _most_out(self) -> Values:
        """Copies of the result that leaves in most pieces."""
        most = ONE
        for name in self._copies_out:
            most = np.maximum(most, self.grid.where_moved(name, self.grid.distinct[name]))
        return most

    def _spared(self, copy_in: Values, most_in: Values) -> Values:
        """What the directions save by meeting in rings of one slot: `counted.meeting_seconds`."""
        (first_in, last_out), most_out = self._once, self._most_out
        meetings = np.minimum(most_in, most_out) - 1.0
        alone_in = (copy_in - first_in) * (meetings / np.maximum(most_in - 1.0, 1.0))
        alone_out = (self._copy_out - last_out) * (meetings / np.maximum(most_out - 1.0, 1.0))
        slowed_in, slowed_out = self.request.slowdown.together(alone_in, alone_out)
        spared: Values = alone_in + alone_out - np.maximum(slowed_in, slowed_out)
        return spared

    def _seconds(self, way: Way) -> Values:
        """Seconds of every split in some ways; infinite where none fit: `Counted.priced`."""
        grid, request, machine = self.grid, self.request, self.request.machine
        depths, loads = way.depths, way.loads
        copy_in, steps, most_in = _NOTHING, self._steps_beside_loads, ONE
        for name, times in loads.items():
            copy_in = copy_in + self._per_load[name] * times
            moved = grid.where_moved(name, times)
            steps, most_in = steps + moved, np.maximum(most_in, moved)
        first_in, last_out = self._once if self.call.sweeps == 1 else self._ends(way)
        copy_out = self._copy_out
        spared = self._spared(copy_in, most_in) if np.any(depths == 1.0) else _NOTHING
        if self._latency:
            latency_in, latency_out = self._latest("in"), self._latest("out")
            copy_in, first_in = copy_in + self._late_in_all(way.slots, loads), first_in + latency_in
            copy_out, last_out = copy_out + latency_out, last_out + latency_out
        compute, piece = grid.compute_seconds, grid.piece_seconds
        # perfmodel.closed_form, with several slots and with one
        rest_in, rest_out = copy_in - first_in, copy_out - last_out
        slowed_in, slowed_out = request.slowdown.together(rest_in, rest_out)
        slowed_in, slowed_out = slowed_in + first_in, slowed_out + last_out
        if way.waiting is not _NOTHING:
            slowed_in = slowed_in + way.waiting
        staged = self._staged_steps(steps, loads)
        least = machine.issue_seconds(steps, grid.launching_seconds, staged=staged)
        turning: Values | float = 0.0
        if self._latency:
            turning, filing = self._turning(way.slots, loads, depths)
            least = np.maximum(least, filing)
        in_turn = compute
        if machine.losses:
            lost = machine.lost_seconds(compute, rest_in + rest_out, 0.0)
            in_turn = compute + machine.lost_seconds(0.0, 0.0, steps * machine.step_seconds)
            compute = in_turn + lost
        overlapped = np.maximum(
            np.maximum(np.maximum(slowed_in + piece, first_in + compute), least),
            first_in + piece + slowed_out - last_out,
        )
        several = (depths > 1) & (grid.steps > 1)
        one_slot = np.maximum(in_turn + copy_in + copy_out - spared, least)
        longest = np.where(several, overlapped, one_slot)
        seconds = with_turning(longest, turning) + np.where(several, last_out, 0.0)
        before = np.where(steps > 1, request.setup_seconds, machine.repeated_seconds)
        seconds = np.where((depths > 0) & grid.legal, seconds + before, np.inf)
        return np.broadcast_to(seconds, (len(seconds), *grid.shape))

    @cached_property
    def _all_ways(self) -> Values:
        """Seconds of every split in every way."""
        return self._seconds(Way.joined([self._way(order) for order in self.orders]))

    @cached_property
    def fastest(self) -> Values:
        """Seconds of every split with its best rings in its best loop order."""
        best: Values = self._all_ways.min(axis=0)
        return best

    @property
    def best_order(self) -> LoopOrder:
        """The loop order of the fastest split."""
        way = int(self._all_ways.argmin()) // self.fastest.size
        return self.orders[way * len(self.orders) // len(self._all_ways)]

    def best(self, count: int) -> Iterator[tuple[float, Split]]:
        """The splits that are estimated to be fastest, in no order, with their seconds."""
        if not self.rings.some_fit:
            return
        grid, seconds = self.grid, self.fastest.ravel()
        rank = seconds * self._caution
        count = min(count, len(rank))
        chosen = np.argpartition(rank, count - 1)[:count]
        chosen = chosen[np.isfinite(rank[chosen])]
        places = zip(*(at.tolist() for at in np.unravel_index(chosen, grid.shape)), strict=True)
        for found, place in zip(seconds[chosen].tolist(), places, strict=True):
            sizes = {axis: grid.sizes[axis][at] for axis, at in zip(AXES, place, strict=True)}
            yield found, Split(**sizes)

    @property
    def floor_seconds(self) -> float:
        """About what no split can be faster than: `Request.floor_seconds`."""
        return self.request.floor_seconds(float(self.grid.compute_seconds.min()), self.limit_bytes)

    @cached_property
    def _caution(self) -> Values:
        """`perfmodel.search_guided.caution` of every split."""
        found: Values = 1.0 + WORTH_TWICE_THE_PIECES * np.log2(self.grid.pieces)
        for axis, worth in WORTH_A_CUT.items():
            found = found + worth * (self.grid.counts[axis] > 1)
        return np.broadcast_to(found[0], self.grid.shape).ravel()
