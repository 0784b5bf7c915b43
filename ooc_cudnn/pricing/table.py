"""From pieces and rings to the stages of calls, and by the closed form to their seconds.

A row is a split with its rings, under one order of its loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.pricing.loop_orders import LoopOrder
from ooc_cudnn.pricing.pieces import Pieces, Values, product
from ooc_cudnn.pricing.request import OPPOSITE, Direction, Request
from ooc_cudnn.pricing.rings import Loads, Rings, block_pieces, loads
from perfmodel.closed_form import Stages, closed_form
from perfmodel.machine import STEPS_OF_A_PIECE

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
    """The copies of one operand one way: how many, the bytes of one, the seconds of all."""

    way: Direction
    name: str
    slots: Values
    number: Values
    copy_bytes: Values
    seconds: Values
    loads: Loads


def table(pieces: Pieces, order: LoopOrder, rings: Rings) -> Table:
    """Price splits with some rings under one order of their loops."""
    request, machine = pieces.request, pieces.request.machine
    copies = _copies(pieces, order, rings)
    number = pieces.number
    steps = number + sum((each.number for each in copies), NOTHING)
    copy_in, first_in = _copies_in(pieces, order, copies)
    copy_out, last_out = _copies_out(pieces, order, copies)
    one_slot = (rings.depth <= 1) | (number == 1)
    beside = np.maximum(copy_in - first_in, 0.0) + np.maximum(copy_out - last_out, 0.0)
    beside = np.where(one_slot, 0.0, beside)
    turning, filing = _turning(request, copies)
    meeting_in, meeting_out = _meeting(copies)
    waiting, before = _waiting(copies, copy_in, pieces.seconds)
    stages = Stages(
        copy_in=copy_in,
        compute=pieces.seconds + machine.lost_seconds(0.0, 0.0, steps * machine.step_seconds),
        copy_out=copy_out,
        first_in=np.minimum(first_in, copy_in),
        # a result leaves when its sum is whole
        first_compute=pieces.first_seconds
        * product(pieces.counts[axis] for axis in request.chain.reduced),
        last_compute=pieces.last_seconds,
        last_out=last_out,
        setup=np.where(steps > 1, request.setup_seconds, machine.repeated_seconds),
        issue=machine.issue_seconds(
            steps, pieces.launching, staged=_staged_steps(request, number, steps, copies)
        ),
        turning=turning,
        filing=filing,
        lost=machine.lost_seconds(pieces.seconds, beside, 0.0),
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
    """What crosses the link; nothing of what is computed on where it lies."""
    found, request = [], pieces.request
    for way, name in request.ways:
        distinct, slots = pieces.distinct[name], rings.slots[name]
        total: Any = request.specs[name].nbytes if way == "out" else pieces.read_bytes[name]
        loaded = loads(pieces, name, slots, order)
        number = distinct if way == "out" else loaded.number
        copy_bytes, line = total / distinct, request.copy_lines[way, name]
        each = copy_bytes * (line.per_byte + pieces.apart[way, name]) + line.per_copy
        number = number * pieces.moved[name]
        found.append(Copies(way, name, slots, number, copy_bytes, number * each, loaded))
    return found


def _copies_in(pieces: Pieces, order: LoopOrder, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of all copies in, and of those before anything can be computed."""
    request, call = pieces.request, pieces.request.chain
    block = block_pieces(pieces, order)
    total = first = latest = late_in_all = NOTHING
    for each in copies:
        if each.way == "in":
            # A first sweep must see all pieces of its block before the second one makes a result.
            at_once = block if each.name in call.streamed else 1.0
            total = total + each.seconds
            share = np.minimum(1.0, at_once / np.maximum(each.number, 1.0))
            first = first + each.seconds * share
            late = request.latency_seconds("in", each.name, each.copy_bytes)
            if np.any(late):
                late = late * (each.number > 0)
                latest = np.maximum(latest, late)
                late_in_all = np.maximum(late_in_all, late + _late_again(pieces, each, late))
    return total + late_in_all, first + latest


def _late_again(pieces: Pieces, copies: Copies, late: Values) -> Values:
    """What copies after the first one are late by, in a ring of one slot.

    While a region stays in its only slot, for several pieces, no other one is staged; where each
    piece has a region of its own, the next one is staged as soon as the piece begins.
    """
    staying = np.maximum(1.0 - copies.number / pieces.number, 0.0)
    piece_seconds = pieces.seconds / pieces.number
    again = (copies.number - 1.0) * staying * np.maximum(late - piece_seconds, 0.0)
    found: Values = np.where((copies.slots == 1) & (copies.number > 1), again, 0.0)
    return found


def _copies_out(pieces: Pieces, order: LoopOrder, copies: list[Copies]) -> tuple[Values, Values]:
    """Seconds of all copies out, and of those after everything is computed."""
    request, call = pieces.request, pieces.request.chain
    block, stays = block_pieces(pieces, order), np.ones((), bool)
    for each in copies:
        if each.way == "in" and each.name in call.streamed:
            stays = stays & (each.number <= pieces.distinct[each.name])
    total = last = latest = NOTHING
    for each in copies:
        if each.way == "out":
            # All results of a block leave at its end, unless it has to be loaded again for them.
            at_once = np.where(stays, block, 1.0) if each.name in call.streamed else 1.0
            total = total + each.seconds
            last = last + each.seconds * np.minimum(1.0, at_once / np.maximum(each.number, 1.0))
            late = request.latency_seconds("out", each.name, each.copy_bytes)
            latest = np.maximum(latest, late * (each.number > 0))
    return total + latest, last + latest


def _meeting(copies: list[Copies]) -> tuple[Values, Values]:
    """Copies in and out that run beside each other where rings have one slot.

    Then a result leaves only while the next piece is copied in, if that needs any copy.
    """
    most: dict[str, Values] = {"in": np.ones(()), "out": np.ones(())}
    beyond_first: dict[str, Values] = {"in": NOTHING, "out": NOTHING}
    for each in copies:
        number = np.maximum(each.number, 1.0)
        most[each.way] = np.maximum(most[each.way], number)
        beyond_first[each.way] = beyond_first[each.way] + each.seconds * (1.0 - 1.0 / number)
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
    for each in copies:
        if each.way == "in":
            share = each.loads.waiting * each.seconds / np.maximum(copy_in, 1e-30)
            passed = 1.0 - 1.0 / each.loads.passes
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
        of_staged = (each.number for each in copies if each[:2] in request.staged)
        staged = np.minimum(STEPS_OF_A_PIECE * sum(of_staged, NOTHING), steps)
    found: Values = np.where(number > 1, staged, 0.0)
    return found


def _turning(request: Request, copies: list[Copies]) -> tuple[Values, Values]:
    """What the slots of the slowest ring take, of plain memory and of files: `Request`.

    Only staging, for which each copy is late, takes so long that this matters where a ring is
    short; and what is in flight of all that is staged is late by each other.
    """
    turning = filing = NOTHING
    staged = [each for each in copies if each[:2] in request.staged]
    if not staged:
        return turning, filing
    in_flight = sum((each.slots * (each.number > 1) for each in staged), NOTHING)
    others = np.maximum(in_flight - 1.0, 0.0)
    pinned: dict[str, Values] = {"in": NOTHING, "out": NOTHING}
    for each in copies:
        if request.crosses_as(each.name) == "pinned":
            pinned[each.way] = pinned[each.way] + each.seconds
    for each in staged:
        spent = request.turning_seconds(
            each.way, each.name, each.number, each.copy_bytes, np.maximum(each.slots, 1.0), others,
            pinned[OPPOSITE[each.way]],
        ) * (each.number > 0)  # fmt: skip
        if request.crosses_as(each.name) == "disk":
            filing = np.maximum(filing, spent)
        else:
            turning = np.maximum(turning, spent)
    return turning, filing
