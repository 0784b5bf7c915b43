"""Stages of calls from pieces and rings, and their seconds by the closed form.

A row is a split with its rings, under one order of its loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.call_planner.loop_orders import LoopOrder
from ooc_cudnn.call_planner.pieces import Pieces, Values, product
from ooc_cudnn.call_planner.request import Direction, Request
from ooc_cudnn.call_planner.slot_rings import CopiesIn, Rings, block_pieces, count_copies_in
from ooc_cudnn.operations.core.pointwise import Relayout
from perfmodel.closed_form import Stages, closed_form
from perfmodel.machine import STEPS_OF_A_PIECE
from perfmodel.staging import staging_slots

NOTHING: Values = np.zeros(())


class Table(NamedTuple):
    """Calls that are priced, a row each.

    Attributes
    ----------
    pieces : Pieces
    order : tuple of str
        Of the loops.
    rings : Rings
    stages : Stages
    seconds : array
        Infinite where nothing fits, or the call cannot be cut so.
    bytes_in, bytes_out : array
        Over the link.
    """

    pieces: Pieces
    order: LoopOrder
    rings: Rings
    stages: Stages
    seconds: Values
    bytes_in: Values
    bytes_out: Values


class Copies(NamedTuple):
    """The copies of one operand one way: how many, the bytes of one, seconds of all on the link.

    `late` is what one of them is late by: nothing unless they are staged.
    """

    way: Direction
    name: str
    placement: str
    slots: Values
    number: Values
    copy_bytes: Values
    seconds: Values
    loads: CopiesIn
    is_staged: bool
    late: Values


def table(pieces: Pieces, order: LoopOrder, rings: Rings) -> Table:
    """Price splits with some rings under one order of their loops."""
    request, machine = pieces.request, pieces.request.machine
    copies = _copies(pieces, order, rings)
    number = pieces.number
    steps = number + sum((each.number for each in copies), NOTHING)
    inside, launching = _inside(request, copies)
    copy_in, first_in = _copies_in(pieces, order, copies)
    copy_out, last_out = _copies_out(pieces, order, copies)
    one_slot = (rings.depth <= 1) | (number == 1)
    beside = np.maximum(copy_in - first_in, 0.0) + np.maximum(copy_out - last_out, 0.0)
    beside = np.where(one_slot, 0.0, beside)
    turning, filing = _turning(request, copies)
    meeting_in, meeting_out = _meeting(copies)
    compute = pieces.seconds + inside
    waiting, before = _waiting(copies, copy_in, compute)
    stages = Stages(
        copy_in=copy_in,
        compute=compute + machine.lost_seconds(0.0, 0.0, steps * machine.step_seconds),
        copy_out=copy_out,
        first_in=np.minimum(first_in, copy_in),
        # a result leaves when its sum is whole
        first_compute=(pieces.first_seconds + inside / number)
        * product(pieces.counts[axis] for axis in request.chain.reduced),
        last_compute=pieces.last_seconds + inside / number,
        last_out=last_out,
        setup=np.where(steps > 1, request.setup_seconds, machine.repeated_seconds),
        issue=machine.issue_seconds(
            steps,
            pieces.launching + launching,
            staged=_staged_steps(request, number, steps, copies),
        ),
        turning=turning,
        filing=filing,
        lost=machine.lost_seconds(compute, beside, 0.0),
        one_slot=one_slot,
        waiting=waiting,
        before=before,
        meeting_in=meeting_in,
        meeting_out=meeting_out,
    )
    # Without overlap the same steps run, so the split is that of the overlapped call.
    seconds = closed_form(stages, request.slowdown)
    seconds = np.where(pieces.legal & (rings.depth > 0), seconds, np.inf)
    crossed = [each for each in copies if request.specs[each.name].placement != "device"]
    bytes_in, bytes_out = (
        sum((each.number * each.copy_bytes for each in crossed if each.way == way), NOTHING)
        for way in ("in", "out")
    )
    return Table(pieces, order, rings, stages, seconds, bytes_in, bytes_out)


def _copies(pieces: Pieces, order: LoopOrder, rings: Rings) -> list[Copies]:
    """Copies that cross the link; none of what is computed on where it lies."""
    copies, request, transfer = [], pieces.request, pieces.request.machine.transfer
    for way, name in request.ways:
        distinct, slots = pieces.distinct[name], rings.slots[name]
        total: Any = request.written_bytes[name] if way == "out" else pieces.read_bytes[name]
        once = CopiesIn(distinct, np.ones(()), NOTHING)
        loaded = once if way == "out" else count_copies_in(pieces, name, slots, order)
        copy_bytes, line = total / distinct, request.copy_lines[way, name]
        per_copy = copy_bytes * (line.per_byte + pieces.apart[way, name]) + line.per_copy
        number = loaded.number * pieces.moved[name]
        road = f"copy_{way}", request.crosses_as(name)
        staged = transfer.latency_of(*road) is not None
        late = (number > 0) * transfer.latency_seconds(*road, copy_bytes) if staged else NOTHING
        seconds = number * per_copy
        copies.append(
            Copies(way, name, road[1], slots, number, copy_bytes, seconds, loaded, staged, late)
        )
    return copies


def _inside(request: Request, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of all copies inside the device, which are in turn with what computes.

    And those of the host to launch them.
    """
    machine = request.machine
    compute = launching = NOTHING
    for copy in copies:
        if copy.name in request.lines_inside:
            line, spec = request.lines_inside[copy.name], request.specs[copy.name]
            compute = compute + copy.number * (copy.copy_bytes * line.per_byte + line.per_copy)
            work = Relayout(spec.shape, spec.dtype).work()
            taken = machine.compute.launching_seconds(work, machine.launch_seconds)
            launching = launching + copy.number * taken
    return compute, launching


def _copies_in(pieces: Pieces, order: LoopOrder, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of all copies in, and of those before anything can be computed."""
    call, block = pieces.request.chain, block_pieces(pieces, order)
    total = first = latest = late_in_all = NOTHING
    for copy in copies:
        if copy.way == "in":
            # A first sweep must see all pieces of its block before the second one makes a result.
            at_once = block if copy.name in call.streamed else 1.0
            total = total + copy.seconds
            share = np.minimum(1.0, at_once / np.maximum(copy.number, 1.0))
            first = first + copy.seconds * share
            if copy.is_staged:
                latest = np.maximum(latest, copy.late)
                late_in_all = np.maximum(late_in_all, copy.late + _late_again(pieces, copy))
    return total + late_in_all, first + latest


def _late_again(pieces: Pieces, copies: Copies) -> Values:
    """Seconds that copies after the first one are late by, in a ring of one slot.

    While a region stays in its only slot, for several pieces, no other one is staged; where each
    piece has a region of its own, the next one is staged as soon as the piece begins.
    """
    staying = np.maximum(1.0 - copies.number / pieces.number, 0.0)
    piece_seconds = pieces.seconds / pieces.number
    again = (copies.number - 1.0) * staying * np.maximum(copies.late - piece_seconds, 0.0)
    found: Values = np.where((copies.slots == 1) & (copies.number > 1), again, 0.0)
    return found


def _copies_out(pieces: Pieces, order: LoopOrder, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of all copies out, and of those after everything is computed."""
    call = pieces.request.chain
    block, stays = block_pieces(pieces, order), np.ones((), bool)
    for copy in copies:
        if copy.way == "in" and copy.name in call.streamed:
            stays = stays & (copy.number <= pieces.distinct[copy.name])
    total = last = latest = NOTHING
    for copy in copies:
        if copy.way == "out":
            # All results of a block leave at its end, unless it has to be loaded again for them.
            at_once = np.where(stays, block, 1.0) if copy.name in call.streamed else 1.0
            total = total + copy.seconds
            last = last + copy.seconds * np.minimum(1.0, at_once / np.maximum(copy.number, 1.0))
            latest = np.maximum(latest, copy.late)
    return total + latest, last + latest


def _meeting(copies: list[Copies]) -> tuple[Values, Values]:
    """Copies in and out that run beside each other where rings have one slot.

    Then a result leaves only while the next piece is copied in, if that needs any copy.
    """
    most: dict[str, Values] = {"in": np.ones(()), "out": np.ones(())}
    beyond_first: dict[str, Values] = {"in": NOTHING, "out": NOTHING}
    for copy in copies:
        number = np.maximum(copy.number, 1.0)
        most[copy.way] = np.maximum(most[copy.way], number)
        beyond_first[copy.way] = beyond_first[copy.way] + copy.seconds * (1.0 - 1.0 / number)
    meetings = np.minimum(most["in"], most["out"]) - 1.0
    copy_in, copy_out = (
        beyond_first[way] * meetings / np.maximum(most[way] - 1.0, 1.0) for way in ("in", "out")
    )
    return copy_in, copy_out


def _waiting(copies: list[Copies], copy_in: Values, compute: Values) -> tuple[Values, Values]:
    """Share of the copies in for which full rings have no slot until the last pass through them.

    And the share of all passes before that one. Of several rings, those of the one that binds.
    """
    waiting = before = longest = NOTHING
    for copy in copies:
        if copy.way == "in":
            share = copy.loads.waiting * copy.seconds / np.maximum(copy_in, 1e-30)
            passed = 1.0 - 1.0 / copy.loads.passes
            seconds = share * copy_in + passed * compute
            waiting = np.where(seconds > longest, share, waiting)
            before = np.where(seconds > longest, passed, before)
            longest = np.maximum(longest, seconds)
    return waiting, before


def _staged_steps(request: Request, number: Values, steps: Values, copies: list[Copies]) -> Values:
    """Steps that threads issue which stage, or that are issued beside them."""
    if request.in_threads:
        staged = steps
    else:
        of_staged = (each.number for each in copies if each.is_staged)
        staged = np.minimum(STEPS_OF_A_PIECE * sum(of_staged, NOTHING), steps)
    result: Values = np.where(number > 1, staged, 0.0)
    return result


def _turning(request: Request, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of the slots of the slowest ring that is staged, of plain memory and of files.

    They go round together: threads fill all of them side by side, and again once they are free;
    and they are slower while the other direction copies pinned memory. What is in flight of all
    that is staged is late by each other. Only staging takes so long that a short ring matters.
    """
    transfer, spent = request.machine.transfer, {"pageable": NOTHING, "disk": NOTHING}
    staged = [each for each in copies if each.is_staged]
    in_flight = sum((each.slots * (each.number > 1) for each in staged), NOTHING)
    others = np.maximum(in_flight - 1.0, 0.0)
    for copy in staged:
        direction, placement = f"copy_{copy.way}", copy.placement
        slots = staging_slots(direction, copy.copy_bytes, np.maximum(copy.slots, 1.0))
        turns = np.ceil(copy.number / slots)
        seconds = turns * transfer.turn_seconds(direction, placement, copy.copy_bytes, others)
        pinned = [o.seconds for o in copies if o.way != copy.way and o.placement == "pinned"]
        beside = sum(pinned, NOTHING)
        if copy.way == "in":
            seconds, _ = transfer.slowdown(placement, "pinned").together(seconds, beside)
        else:
            _, seconds = transfer.slowdown("pinned", placement).together(beside, seconds)
        kind = "disk" if placement == "disk" else "pageable"
        spent[kind] = np.maximum(spent[kind], seconds * (copy.number > 0))
    return spent["pageable"], spent["disk"]
