"""Plans of calls that are alike: the layers of a network repeat, and so do parts of a call."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from operator import itemgetter

from ooc_cudnn import fork_safety
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import AskWorkspace, Planner, distinct_launches, make_plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.devices.engines import MEASURED
from ooc_cudnn.engines.choose import seconds_by_engines
from ooc_cudnn.engines.target import Target
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.pipeline.loops import pieces
from ooc_cudnn.tensor import ORDERS
from perfmodel import Split

#: Another cut is worth it where seconds differ by more than this: so much an engine must save that
#: needs more workspace (`engines.WORTH_WORKSPACE`).
WORTH_PIECES = 1.02
#: Into so many pieces a call that copies nothing is cut along an axis.
PARTS = (2, 4, 8, 16, 32, 64)
#: One that takes less is not cut along rows: there is little to be gained.
LONG_SECONDS = 1e-3
#: Kinds of calls whose plans are remembered.
REMEMBERED = 4096
#: What tells the pieces of a plan apart: by it, what is launched on them.
Signature = frozenset[Hashable]

_known: OrderedDict[Hashable, list[tuple[Plan, Signature]]] = OrderedDict()
#: The least bytes of such kinds.
_least: OrderedDict[Hashable, int] = OrderedDict()
_lock = fork_safety.lock()


def plan_request(request: Request, target: Target) -> Plan:
    """Plan a call, as far as another of the same kind was not planned before."""
    limit = request.memory_limit
    if request.chain.on_host:
        return _on_host(request)
    try:
        # of what there is plenty for, the same plan does for every limit
        plan = _planned(replace(request, memory_limit=target.room_bytes), target)
        if plan.device_bytes > limit:
            plan = _planned(request, target)
    except PlanInfeasibleError as error:
        raise PlanInfeasibleError(
            function=request.function,
            limit_bytes=limit,
            smallest_bytes=error.smallest_bytes,
            reason=error.reason,
        ) from None
    return replace(plan, function=request.function, memory_limit=limit)


def least_bytes(request: Request, target: Target) -> int:
    """The least bytes of the device in which a call has a plan; 0 where the host computes it."""
    if request.chain.on_host:
        return 0
    key = _kind(replace(request, memory_limit=0)), target.ask_workspace
    with _lock:
        known = _least.get(key)
    if known is None:
        known = Planner(request, target.ask_workspace).smallest_bytes() or 0
        with _lock:
            _least[key] = known
            while len(_least) > REMEMBERED:
                _least.popitem(last=False)
    return known


def _planned(request: Request, target: Target) -> Plan:
    ask_workspace = target.ask_workspace
    key = _kind(request), ask_workspace
    with _lock:
        candidates = tuple(_known.get(key, ()))
    for plan, signature in candidates:
        if _signature(request.chain, plan) == signature:
            return plan
    plan = _in_core(request, target) or make_plan(request, ask_workspace)
    with _lock:
        _known.setdefault(key, []).append((plan, _signature(request.chain, plan)))
        while len(_known) > REMEMBERED:
            _known.popitem(last=False)
    return plan


def _kind(request: Request) -> Hashable:
    """A key of all that a plan depends on, but for the very rows and images of a part of a call."""
    call = request.chain
    if not isinstance(call, SubCall):
        return replace(request, function="")
    return (
        call.inner,
        call.extents,
        tuple(operand.shape for operand in call.operands.values()),
        tuple(request.computed_on_in_place.items()),
        request.operands,
        request.in_place,
        request.orders,
        request.machine,
        request.memory_limit,
        request.layouts,
        request.overlap,
        request.row_axes,
    )


def _signature(call: TiledCall, plan: Plan) -> Signature:
    """The launches on the pieces of a call under a plan, as the schedule tells it."""
    turned = call.along(plan.row_axis)
    if not isinstance(call, SubCall) or not turned.is_legal(plan.split):
        return frozenset()
    return frozenset(
        (piece.sizes, piece.sweep, turned.row_key(piece), accumulation)
        for piece, accumulation in pieces(turned, plan.split, plan.order)
    )


def _on_host(request: Request) -> Plan:
    """The plan of a call that the host computes: in one piece, with nothing on the device."""
    call, computing = request.chain, request.machine.compute
    launches, _ = call.launches(call.whole_piece(), layout=ORDERS[0], orders=dict(request.orders))
    seconds = sum(float(computing.seconds(each.operation.work())) for each in launches)
    return Plan(
        function=request.function,
        operands=request.operands,
        split=call.extents,
        pieces=1,
        order=call.loop_order,
        rings=tuple((name, 0) for name in request.specs),
        layout=ORDERS[0],
        algorithms=(),
        workspace_bytes=0,
        memory=(),
        memory_limit=max(request.memory_limit, 0),
        bytes_in=0,
        bytes_out=0,
        copy_in_seconds=0.0,
        compute_seconds=seconds,
        copy_out_seconds=0.0,
        seconds=seconds,
        binding_stage="compute",
        overlap=request.overlap,
        machine=request.machine.name,
    )


def _in_core(request: Request, target: Target) -> Plan | None:
    """The plan of a call that copies nothing: in one piece, or in pieces that are worth it.

    It is cut where engines were measured, and only so there is room for the fastest, or where
    smaller pieces were measured to be faster: along images, then, if it takes long, along rows.
    Where no cut leaves room for the fastest engine, the fastest by the engines that there is room
    for, in whichever memory order. None if it copies something, or takes more memory so than there
    is; then a plan is searched.
    """
    if len(request.computed_on_in_place) < len(request.specs):
        return None
    whole_rows, whole = replace(request, row_axes=()), request.chain.extents
    ask_workspace = target.ask_workspace

    def seconds_of(plan: Plan | None) -> float:
        return math.inf if plan is None else seconds_by_engines(whole_rows, plan, target)

    def has_its_engines(plan: Plan | None) -> bool:
        return plan is not None and _has_its_engines(whole_rows, plan, ask_workspace)

    planner = Planner(whole_rows, ask_workspace)
    best = planner.plan(whole)
    if best and has_its_engines(best) and not _has_several_sizes(whole_rows, best):
        return best
    of_images, of_rows = _cuts(request.chain)
    for cuts in (of_images, of_rows):
        for expected, cut in _priced(whole_rows, cuts):
            if WORTH_PIECES * expected >= seconds_of(best):
                break  # what follows takes longer, even by the fastest engines
            plan = planner.plan(cut)
            if WORTH_PIECES * seconds_of(plan) < seconds_of(best):
                best = plan
        if best is None:
            return None  # a search finds what fits better than rows do
        if seconds_of(best) < LONG_SECONDS or (of_images and has_its_engines(best)):
            break
    if target.options is not None and not has_its_engines(best):
        for layout in request.layouts:
            plan = Planner(replace(whole_rows, layouts=(layout,)), ask_workspace).plan(whole)
            best = min(best, plan, key=seconds_of)
    return best


def _cuts(call: TiledCall) -> tuple[list[Split], list[Split]]:
    """Cuts of a call along its images; and along rows, of as few images as that."""

    def along(axis: str, of: Split) -> list[Split]:
        extent = getattr(of, axis)
        numbers = (parts for parts in PARTS if parts <= extent)
        cuts = (replace(of, **{axis: -(-extent // parts)}) for parts in numbers)
        return [cut for cut in cuts if call.is_legal(cut)]

    of_images = along("n", call.extents)
    return of_images, along("h_y", of_images[-1] if of_images else call.extents)


def _priced(request: Request, cuts: Iterable[Split]) -> list[tuple[float, Split]]:
    """What cuts take by the fastest engines, whatever the room for workspace; the fastest first."""
    planner = Planner(request, None)
    plans = ((planner.plan(cut), cut) for cut in cuts)
    priced = ((plan.seconds, cut) for plan, cut in plans if plan is not None)
    return sorted(priced, key=itemgetter(0))


def _has_several_sizes(request: Request, plan: Plan) -> bool:
    """True if something that a plan launches was measured at several sizes."""
    compute = request.machine.compute
    return compute.bends and any(
        len(compute.tried.get(launch.operation.work().kind, ())) > 1
        for launch, _ in distinct_launches(request, plan)
    )


def _has_its_engines(request: Request, plan: Plan, ask_workspace: AskWorkspace | None) -> bool:
    """True if a plan has the workspace of the engines that were measured to be the fastest.

    True where none was: then nothing says what more workspace would be worth.
    """
    answer = ask_workspace and ask_workspace(distinct_launches(request, plan), None)
    if answer is None or not any(name.endswith(MEASURED) for name in answer[1]):
        return True
    return answer[0] <= plan.workspace_bytes
