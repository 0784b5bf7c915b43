"""Planning of a request: as one run, or, for a chain that memory is short for, as several."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from typing import cast

from ooc_cudnn import fork_safety
from ooc_cudnn.call_planner.chain_partition import (
    SHARE_OF_SMALLEST,
    WORTH_CUTTING,
    ChainPart,
    choose_cuts,
    intermediate_placement,
    join_plans,
    large_piece,
    partition_chain,
    sub_chain,
)
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import make_plan, smallest_bytes
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.engines.target import PlannedCall, PlannedPart, Target, make_request
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.operations.chain.chain import Chain

#: Plans that are remembered.
REMEMBERED_PLANS = 64

_remembered: OrderedDict[Hashable, PlannedCall] = OrderedDict()
_lock = fork_safety.lock()


def plan_segments(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool]
) -> PlannedCall:
    """Plan a call as one run; a chain that memory is short for as shorter chains, if better.

    Plans are remembered: what is asked for again costs nothing.
    """
    key = request, target.ask_workspace, available, tuple(aligned.items())
    with _lock:
        call = _remembered.pop(key, None)
    if call is None:
        call = _planned(request, target, available, aligned)
    with _lock:
        _remembered[key] = call
        while len(_remembered) > REMEMBERED_PLANS:
            _remembered.popitem(last=False)
    return call


def forget_plans() -> None:
    """Forget what was planned (after calibration, and in tests)."""
    with _lock:
        _remembered.clear()


def _planned(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool]
) -> PlannedCall:
    chain = request.chain
    may_be_cut = isinstance(chain, Chain) and bool(chain.seams)
    try:
        whole = make_plan(request, target.ask_workspace)
    except PlanInfeasibleError as error:
        if not may_be_cut:
            raise
        shorter = _plan_in_parts(request, target, available, aligned, "since it does not fit")
        if shorter is not None:
            return shorter
        smallest = (error.smallest_bytes, _smallest_in_parts(request, target, aligned))
        raise PlanInfeasibleError(
            function=request.function,
            limit_bytes=request.memory_limit,
            smallest_bytes=min((each for each in smallest if each is not None), default=None),
            reason=error.reason,
        ) from None
    if may_be_cut and _larger_pieces_help(request, whole):
        why = "since larger pieces of shorter chains are faster"
        most = whole.seconds / WORTH_CUTTING
        shorter = _plan_in_parts(request, target, available, aligned, why, most)
        if shorter is not None:
            return shorter
    return PlannedCall((PlannedPart(request.along(whole.row_axis), whole, {}),), whole, available)


def _larger_pieces_help(request: Request, whole: Plan) -> bool:
    """True if memory makes pieces so small that they slow the computing down, and the call with it.

    Shorter chains may have larger pieces, but compute no faster than one piece of everything, and
    what they read and write still crosses the link.
    """
    large = large_piece(request)
    return (
        large.memory_bytes > request.memory_limit
        and whole.compute_seconds > WORTH_CUTTING * large.compute_seconds
        and whole.seconds > WORTH_CUTTING * large.seconds
    )


def _part_request(request: Request, part: ChainPart, aligned: Mapping[str, bool]) -> Request:
    """Describe a part of a chain, its intermediates in pinned memory."""
    chain, x = request.chain, request.specs["x"]
    assert isinstance(chain, Chain)
    specs = {
        own: intermediate_placement(chain, int(name.split()[1]), x)
        if name.startswith("between")
        else request.specs[name]
        for own, name in part.names.items()
    }
    return make_request(
        request.function,
        part.chain,
        {own: specs[own] for own in part.chain.operands},
        request.machine,
        request.memory_limit,
        request.layouts,
        overlap=request.overlap,
        aligned={own: aligned.get(name, True) for own, name in part.names.items()},
    )


def _smallest_in_parts(request: Request, target: Target, aligned: Mapping[str, bool]) -> int | None:
    """The least memory with which a chain runs when it is cut wherever it can be.

    None if some part of it runs with none.
    """
    chain, smallest = request.chain, 0
    assert isinstance(chain, Chain)
    for part in partition_chain(chain, chain.seams):
        try:
            make_plan(_part_request(request, part, aligned), target.ask_workspace)
        except PlanInfeasibleError as error:
            if error.smallest_bytes is None:
                return None
            smallest = max(smallest, error.smallest_bytes)
    return smallest


def _plan_in_parts(
    request: Request,
    target: Target,
    available: int,
    aligned: Mapping[str, bool],
    why: str,
    most: float = math.inf,
) -> PlannedCall | None:
    """Plan a chain as shorter ones; None if it cannot be cut so that they fit and take less."""
    chain, x = cast("Chain", request.chain), request.specs["x"]

    @cache
    def part(start: int, stop: int) -> tuple[Request, Mapping[str, str]]:
        """Operations [start, stop) of the chain, and what its operands are in it."""
        made = sub_chain(chain, start, stop)
        return _part_request(request, made, aligned), made.names

    @cache
    def smallest(start: int, stop: int) -> int:
        """Memory of the smallest pieces of it."""
        return smallest_bytes(part(start, stop)[0])

    @cache
    def plan_of(start: int, stop: int) -> Plan:
        return make_plan(part(start, stop)[0], target.ask_workspace)

    def in_parts(cuts: tuple[int, ...]) -> PlannedCall | None:
        """The chain cut there, unless that takes `most` seconds or more."""
        ends = list(pairwise((0, *cuts, len(chain.operations))))
        seconds = [large_piece(part(*each)[0]).seconds for each in ends]
        for index, span in enumerate(ends):
            if sum(seconds) < most:
                seconds[index] = plan_of(*span).seconds
        if sum(seconds) >= most:
            return None
        plans = tuple(plan_of(*each) for each in ends)
        runs = [
            PlannedPart(made.along(plan.row_axis), plan, names)
            for (made, names), plan in zip((part(*each) for each in ends), plans, strict=True)
        ]
        handed_on = {f"between {cut}": intermediate_placement(chain, cut, x) for cut in cuts}
        return PlannedCall(tuple(runs), join_plans(request, plans, cuts, why), available, handed_on)

    def fits(share: float, start: int, stop: int) -> bool:
        return smallest(start, stop) <= share * request.memory_limit

    everywhere = chain.seams
    shares = (SHARE_OF_SMALLEST, 1.0) if len(everywhere) > 1 else ()
    candidates = [choose_cuts(chain, partial(fits, share)) for share in shares]
    calls: list[PlannedCall] = []
    for cuts in dict.fromkeys((*candidates, everywhere)):
        if cuts and not (cuts == everywhere and calls):
            with suppress(PlanInfeasibleError):
                calls += filter(None, [in_parts(cuts)])
    return min(calls, key=lambda planned: planned.plan.seconds, default=None)
