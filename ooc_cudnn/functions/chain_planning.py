"""From a request to its plan: as one run, or, for a chain that memory is short for, as several."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace

from ooc_cudnn import forks
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.target import Planned, PlannedPart, Target, make_request
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.pricing.cutting import (
    SHARE_OF_SMALLEST,
    WORTH_CUTTING,
    Part,
    between,
    choose_cuts,
    joined,
    large_piece,
    part_between,
    parts_of,
)
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import make_plan, smallest_bytes
from ooc_cudnn.pricing.request import Request

#: Another axis is cut than the first one where the call is so many times faster for it.
WORTH_TURNING = 1.02
#: Plans that are remembered.
REMEMBERED_PLANS = 64

_remembered: OrderedDict[Hashable, Planned] = OrderedDict()
_lock = forks.lock()


def plan_in_runs(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool]
) -> Planned:
    """Plan a call as one run; a chain that memory is short for as shorter chains, if better.

    Plans are remembered: what is asked for again costs nothing.
    """
    key = request, target.ask_workspace, available, tuple(aligned.items())
    with _lock:
        found = _remembered.pop(key, None)
    if found is None:
        found = _along_the_best_axis(request, target, available, aligned)
    with _lock:
        _remembered[key] = found
        while len(_remembered) > REMEMBERED_PLANS:
            _remembered.popitem(last=False)
    return found


def _along_the_best_axis(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool]
) -> Planned:
    """Plan with rows along the first spatial axis; along another one where that is faster.

    Others are looked at where more than the batch is cut: else every image is moved once, whole.
    Only those that promise to be faster have the device asked for workspace, which may build
    engines.
    """

    def along(row_axis: int, target: Target) -> Planned:
        turned = replace(request, chain=request.chain.along(row_axis))
        return _planned(turned, target, available, aligned)

    best, least, reason = None, list[int | None](), ""
    for row_axis in request.chain.row_axes:
        try:
            if best is None:
                best = along(row_axis, target)
            elif _cuts_images(request, best) and _is_worth_turning(
                along(row_axis, target._replace(ask_workspace=None)), best
            ):
                found = along(row_axis, target)
                best = found if _is_worth_turning(found, best) else best
        except PlanInfeasibleError as error:
            least.append(error.smallest_bytes)
            reason = error.reason
    if best is None:
        # Not one of the errors themselves: kept in a frame that it knows, an error would keep the
        # user's arrays until the garbage is collected.
        raise PlanInfeasibleError(
            function=request.function,
            limit_bytes=request.memory_limit,
            smallest_bytes=min(least, key=lambda nbytes: nbytes or math.inf),
            reason=reason,
        )
    return best


def _cuts_images(request: Request, planned: Planned) -> bool:
    """Whether a plan cuts more than the batch."""
    whole = request.chain.extents
    return len(planned.parts) > 1 or replace(planned.plan.split, n=whole.n) != whole


def _is_worth_turning(rival: Planned, best: Planned) -> bool:
    return rival.plan.seconds * WORTH_TURNING < best.plan.seconds


def forget_plans() -> None:
    """Forget what was planned (after calibration, and in tests)."""
    with _lock:
        _remembered.clear()


def _planned(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool]
) -> Planned:
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
        shorter = _plan_in_parts(request, target, available, aligned, why)
        if shorter is not None and shorter.plan.seconds * WORTH_CUTTING < whole.seconds:
            return shorter
    return Planned((PlannedPart(request, whole, {}),), whole, available)


def _larger_pieces_help(request: Request, whole: Plan) -> bool:
    """Whether memory makes pieces so small that they slow the computing down, and the call with it.

    Shorter chains may have larger pieces, but compute no faster than one piece of everything, and
    what they read and write still crosses the link.
    """
    large = large_piece(request)
    least = max(large.seconds, whole.copy_in_seconds, whole.copy_out_seconds)
    return (
        large.memory_bytes > request.memory_limit
        and whole.compute_seconds > WORTH_CUTTING * large.seconds
        and whole.seconds > WORTH_CUTTING * least
    )


def _part_request(request: Request, part: Part, aligned: Mapping[str, bool]) -> Request:
    """Describe a part of a chain, its intermediates in pinned memory."""
    chain, x = request.chain, request.specs["x"]
    assert isinstance(chain, Chain)
    specs = {
        own: between(chain, int(name.split()[1]), x)
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
    for part in parts_of(chain, chain.seams):
        try:
            make_plan(_part_request(request, part, aligned), target.ask_workspace)
        except PlanInfeasibleError as error:
            if error.smallest_bytes is None:
                return None
            smallest = max(smallest, error.smallest_bytes)
    return smallest


def _plan_in_parts(
    request: Request, target: Target, available: int, aligned: Mapping[str, bool], why: str
) -> Planned | None:
    """Plan a chain as shorter ones; None if it cannot be cut so that they fit."""
    chain, x = request.chain, request.specs["x"]
    assert isinstance(chain, Chain)
    least: dict[tuple[int, int], int] = {}

    def smallest(start: int, stop: int) -> int:
        """Memory of the smallest pieces of operations [start, stop)."""
        if (start, stop) not in least:
            part = part_between(chain, start, stop)
            least[start, stop] = smallest_bytes(_part_request(request, part, aligned))
        return least[start, stop]

    planned: dict[tuple[str, str], tuple[Request, Plan]] = {}

    def plan_of(part: Part) -> tuple[Request, Plan]:
        """The same part may be one of several ways to cut."""
        key = part.names["x"], part.names["y"]
        if key not in planned:
            made = _part_request(request, part, aligned)
            planned[key] = made, make_plan(made, target.ask_workspace)
        return planned[key]

    everywhere = chain.seams
    room = request.memory_limit
    candidates = [
        choose_cuts(chain, lambda start, stop: smallest(start, stop) <= SHARE_OF_SMALLEST * room),
        choose_cuts(chain, lambda start, stop: smallest(start, stop) <= room),
        everywhere,
    ]
    found: list[Planned] = []
    for cuts in dict.fromkeys(candidates):
        if not cuts or (cuts == everywhere and found):
            continue
        parts = parts_of(chain, cuts)
        try:
            requests, plans = zip(*map(plan_of, parts), strict=True)
        except PlanInfeasibleError:
            continue
        found.append(
            Planned(
                tuple(
                    PlannedPart(each, plan, part.names)
                    for each, plan, part in zip(requests, plans, parts, strict=True)
                ),
                joined(request, plans, cuts, why),
                available,
                {f"between {cut}": between(chain, cut, x) for cut in cuts},
            )
        )
    return min(found, key=lambda planned: planned.plan.seconds, default=None)
