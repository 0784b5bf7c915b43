"""From a request to a plan: the search for the best split that the device can run.

`perfmodel.guided_search` finds the piece sizes by what `pricing` says they cost. Workspace is
asked from the device, for the very pieces that were found, and never modelled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.alignment import ALIGNMENT, aligned
from ooc_cudnn.operations.splittable import AXES, Buffer, Launch
from ooc_cudnn.pipeline.plan import Alternative, Plan
from ooc_cudnn.pipeline.pricing import Priced, Request, SplitProblem
from ooc_cudnn.pipeline.promising import NEAR_THE_FLOOR
from ooc_cudnn.pipeline.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
)
from perfmodel import InfeasibleError, Price, Slowdown, Split, binding_stage, closed_form
from perfmodel.search_guided import guided_search

#: How often the search is repeated with less memory when the device asks for workspace.
WORKSPACE_ATTEMPTS = 4

#: A second layout is not searched where the best splits of the first are so much slower in it.
CLEARLY = 1.1
#: How many of them are looked at.
TRIED = 1

#: Why no memory is enough, where none is.
TOO_LARGE = (
    f"its smallest pieces exceed {LARGEST_PIECE_ELEMENTS} elements, {LARGEST_PIECE_BYTES} bytes or "
    f"a batch of {LARGEST_BATCH}, which cuDNN does not compute reliably"
)

#: `Device.workspace`: the scratch bytes of a set of launches and the names of their algorithms.
AskWorkspace = Callable[
    [tuple[tuple[Launch, Mapping[str, Buffer]], ...], int | None],
    tuple[int, tuple[str, ...]] | None,
]


def make_plan(
    request: Request, ask_workspace: AskWorkspace | None = None, split: Split | None = None
) -> Plan:
    """Search the best split that the device can run within the limit.

    Parameters
    ----------
    request : Request
    ask_workspace : callable, optional
        Asks the device; without it (no card at hand) the plan assumes no workspace.
    split : Split, optional
        Take this one instead of searching.

    Raises
    ------
    PlanInfeasibleError
        With the smallest limit that would do.
    """
    plan = _search(request, 0, split) or (None if split else _smallest_plan(request))
    if plan is not None and ask_workspace is not None:
        plan = _with_room(request, plan, ask_workspace, may_shrink=split is None)
    if plan is None:
        smallest = min((sum(found[2:]) for found in _corners(request, ask_workspace)), default=None)
        raise PlanInfeasibleError(
            function=request.function,
            limit_bytes=request.memory_limit,
            smallest_bytes=smallest,
            reason=TOO_LARGE,
        )
    return plan


def _smallest_plan(request: Request) -> Plan | None:
    """A plan of the smallest pieces, if these fit: a search may overlook that they do."""
    for alone, corner, piece_bytes, _ in _corners(request, None):
        if piece_bytes <= request.memory_limit:
            return _search(alone, 0, corner)
    return None


def with_alternative(request: Request, plan: Plan) -> Plan:
    """Return a plan with the runner-up, priced, if there is one: a search needs none to end."""
    if plan.alternatives:
        return plan
    problem = SplitProblem(request, plan.layout, aligned(plan.workspace_bytes))
    for _, split in problem.promising(problem.limit_bytes):
        price = problem.price(split)
        if split != plan.split and price.legal and price.memory_bytes <= problem.limit_bytes:
            other = Alternative(split, plan.layout, problem.seconds(split), price.memory_bytes)
            return replace(plan, alternatives=(other,))
    return plan


def smallest_bytes(request: Request) -> int:
    """Memory of the smallest pieces, without workspace."""
    return min((piece_bytes for _, _, piece_bytes, _ in _corners(request, None)), default=2**62)


def distinct_launches(
    request: Request, plan: Plan
) -> tuple[tuple[Launch, Mapping[str, Buffer]], ...]:
    """Every different launch of a plan, with its buffers."""
    counted = SplitProblem(request, plan.layout, 0).counted(plan.split, plan.order)
    return tuple(counted.measured.launches.items())


def _with_room(
    request: Request, first: Plan, ask_workspace: AskWorkspace, *, may_shrink: bool
) -> Plan | None:
    """Give a plan the workspace that the device asks for, with smaller pieces if it must be."""
    limit, plan = request.memory_limit, first
    for _ in range(WORKSPACE_ATTEMPTS):
        answer = ask_workspace(distinct_launches(request, plan), None)
        if answer is not None and plan.device_bytes + aligned(answer[0]) <= limit:
            return _with_workspace(plan, *answer)
        if answer is None or not may_shrink:
            break
        # Leave workspace the share of memory that it took beside these pieces.
        needed = plan.device_bytes + aligned(answer[0])
        smaller = _search(request, limit * aligned(answer[0]) // needed, None)
        if smaller is None:
            break
        plan = smaller
    # No room for the algorithms that the device prefers: take those that fit beside the pieces.
    candidates: Iterator[Plan | None] = iter((first, plan))
    if may_shrink:
        candidates = itertools.chain(candidates, _smaller_and_smaller(request, ask_workspace))
    for candidate in candidates:
        if candidate is not None:
            # Workspace takes whole multiples of the alignment: what is left beside them is no room.
            budget = (limit - candidate.device_bytes) // ALIGNMENT * ALIGNMENT
            answer = ask_workspace(distinct_launches(request, candidate), budget)
            if answer is not None:
                return _with_workspace(candidate, *answer)
    return None


def _smaller_and_smaller(request: Request, ask_workspace: AskWorkspace) -> Iterator[Plan | None]:
    """Plans that leave workspace more and more of the memory, down to the smallest pieces."""
    limit = request.memory_limit
    for share in (2, 8, 32, 128):
        yield _search(request, limit - limit // share, None)
    for alone, corner, piece_bytes, workspace_bytes in _corners(request, ask_workspace):
        if piece_bytes + workspace_bytes <= limit:
            yield _search(alone, limit - piece_bytes, corner)


def _corners(
    request: Request, ask_workspace: AskWorkspace | None
) -> Iterator[tuple[Request, Split, int, int]]:
    """Splits into single elements: (request for one layout, split, bytes, workspace bytes).

    Both with cX cut and with cX whole, where there are no sums to hold.
    """
    call = request.chain
    whole = call.extents
    smallest = replace(whole, **{axis: 1 for axis in AXES if call.may_cut(axis)})
    splits = [replace(smallest, c_x=c_x) for c_x in {smallest.c_x, whole.c_x}]
    for layout, split in itertools.product(request.different_layouts, splits):
        alone = replace(request, memory_limit=2**62, layouts=(layout,))
        problem = SplitProblem(alone, layout, 0)
        smallest_rings = [counted.priced(1, False) for counted in problem.counts(split)]
        if not smallest_rings or smallest_rings[0].price.legal is False:
            continue
        priced = min(smallest_rings, key=lambda each: each.price.memory_bytes)
        workspace_bytes = 0
        if ask_workspace is not None:
            # A search may take any of the loop orders that need no more memory.
            made = {
                launch: buffers
                for each in smallest_rings
                if each.price.memory_bytes == priced.price.memory_bytes
                for launch, buffers in problem.counted(split, each.order).measured.launches.items()
            }
            launches, beside = tuple(made.items()), priced.price.memory_bytes
            budgets = (*(aligned(share * beside // 8) for share in (1, 8, 64)), None)
            answers = (ask_workspace(launches, budget) for budget in budgets)
            answer = next((each for each in answers if each is not None), None)
            workspace_bytes = aligned(answer[0] if answer else 0)
        alone = replace(alone, memory_limit=request.memory_limit)
        yield alone, split, priced.price.memory_bytes, workspace_bytes


def _with_workspace(plan: Plan, workspace_bytes: int, algorithms: tuple[str, ...]) -> Plan:
    memory = plan.memory
    if workspace_bytes:
        memory += (("workspace", aligned(workspace_bytes)),)
    return replace(plan, workspace_bytes=workspace_bytes, algorithms=algorithms, memory=memory)


def _search(request: Request, reserved_bytes: int, split: Split | None) -> Plan | None:
    """Search each layout and return the plan of the fastest; None if nothing fits."""
    best: tuple[str, Split, Priced, float] | None = None
    alternatives: list[Alternative] = []
    for layout in request.layouts:
        if best is not None and _link_binds(request, best[2]):
            break  # in whichever layout it is computed
        if layout != request.layouts[0] and layout not in request.different_layouts:
            continue
        problem = SplitProblem(request, layout, reserved_bytes)
        try:
            tried = _tried(problem, alternatives)
            if best is not None and tried and tried[0][1].seconds > CLEARLY * best[2].price.seconds:
                found, others = tried[0][0], tuple(tried[1:])
            else:
                found, others = _find(problem, split)
        except InfeasibleError:
            continue
        priced = problem.priced[found]
        alternatives += [
            Alternative(other, layout, problem.seconds(other), price.memory_bytes)
            for other, price in ((found, priced.price), *others)
        ]
        if best is None or priced.price.seconds < best[2].price.seconds * (1 - 1e-9):
            best = layout, found, priced, problem.seconds(found)
    if best is None:
        return None
    layout, found, priced, seconds = best
    alternatives.sort(key=lambda other: (other.seconds, other.device_bytes))
    cost, slowdown = priced.cost, request.slowdown
    if not request.overlap:
        cost, slowdown = replace(cost, lost_seconds=0.0), Slowdown()
    return Plan(
        function=request.function,
        operands=request.operands,
        split=found,
        pieces=math.prod(len(r) for r in request.chain.ranges(found).values())
        * request.chain.sweeps,
        order=priced.order,
        row_axis=request.chain.row_axis,
        rings=priced.rings,
        layout=layout,
        algorithms=(),
        workspace_bytes=0,
        memory=priced.memory,
        memory_limit=request.memory_limit,
        bytes_in=priced.bytes_in,
        bytes_out=priced.bytes_out,
        copy_in_seconds=cost.copy_in_seconds,
        compute_seconds=cost.compute_seconds,
        copy_out_seconds=cost.copy_out_seconds,
        seconds=seconds,
        binding_stage=binding_stage(cost, slowdown),
        overlap=request.overlap,
        machine=request.machine.name,
        alternatives=tuple(
            other for other in alternatives if (other.split, other.layout) != (found, layout)
        )[:4],
    )


def _tried(problem: SplitProblem, known: list[Alternative]) -> list[tuple[Split, Price]]:
    """Prices of the best splits in another layout, fastest first, of those that fit in this one."""
    found = [(other.split, problem.price(other.split)) for other in known[:TRIED]]
    return sorted(
        (
            (split, price)
            for split, price in found
            if price.legal and price.memory_bytes <= problem.limit_bytes
        ),
        key=lambda each: each[1].seconds,
    )


def _link_binds(request: Request, priced: Priced) -> bool:
    """Whether a call would take as long if nothing had to be computed."""
    nothing = dict.fromkeys(
        ("compute_seconds", "first_compute", "last_compute", "lost_seconds", "waiting_seconds"), 0.0
    )
    copies = replace(priced.cost, **nothing)
    return priced.price.seconds <= closed_form(copies, request.slowdown) * NEAR_THE_FLOOR


def _find(
    problem: SplitProblem, split: Split | None
) -> tuple[Split, tuple[tuple[Split, Price], ...]]:
    """Return the split to take, and the runners-up of a search."""
    if split is None:
        result = guided_search(problem, max(problem.limit_bytes, 0))
        return result.split, result.alternatives
    price = problem.price(split)
    if not price.legal or price.memory_bytes > problem.limit_bytes:
        raise InfeasibleError(
            problem.limit_bytes, price.memory_bytes if price.legal else None, price.reason
        )
    return split, ()
