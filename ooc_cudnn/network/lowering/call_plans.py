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
from ooc_cudnn.devices.machines import computing_machine
from ooc_cudnn.engines.choose import lacks_room, seconds_by_engines
from ooc_cudnn.engines.target import Target, make_request
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.pipeline.loops import pieces
from ooc_cudnn.tensor import ORDERS, TensorSpec
from perfmodel import Split
from perfmodel.cached import cached_property

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
_kinds: OrderedDict[Hashable, CallKind] = OrderedDict()
_lock = fork_safety.lock()


class CallKind:
    """Calls that are alike, with operands that lie alike: what is planned of one is of all.

    Parameters
    ----------
    request : Request
        With all memory of the target, under any name.
    target : Target
    """

    def __init__(self, request: Request, target: Target) -> None:
        self._request, self._target = replace(request, function=""), target
        #: There is no plan within so many bytes; the least that would do, and why. No exception is
        #: kept: its traceback would hold what callers have, arrays of users as well.
        self._too_little: tuple[int, int | None, str] | None = None
        self._along = dict[int, Request]()

    def plan(self, function: str, limit_bytes: int) -> tuple[Request, Plan]:
        """Plan a call of this name within so many bytes; and as what it is planned.

        Raises
        ------
        PlanInfeasibleError
            If there is no plan within so many bytes, with the least for which there is one.
        """
        plan = self._plan_within(limit_bytes)
        if plan is None:
            assert self._too_little is not None
            _, smallest_bytes, reason = self._too_little
            raise PlanInfeasibleError(
                function=function,
                limit_bytes=limit_bytes,
                smallest_bytes=smallest_bytes,
                reason=reason,
            )
        axis = plan.row_axis
        if axis not in self._along:
            self._along[axis] = self._request.along(axis)
        limit_bytes = max(limit_bytes, plan.device_bytes)
        return self._along[axis], replace(plan, function=function, memory_limit=limit_bytes)

    @cached_property
    def _with_all_memory(self) -> Plan:
        if self._request.chain.on_host:
            return _on_host(self._request)
        return _planned(self._request, self._target)

    def _plan_within(self, limit_bytes: int) -> Plan | None:
        if self._too_little is not None and limit_bytes <= self._too_little[0]:
            return None
        try:
            # of what there is plenty for, the same plan does for every limit
            plan = self._with_all_memory
            if plan.device_bytes > limit_bytes and not self._request.chain.on_host:
                plan = _planned(replace(self._request, memory_limit=limit_bytes), self._target)
        except PlanInfeasibleError as error:
            self._too_little = limit_bytes, error.smallest_bytes, error.reason
            return None
        return plan

    @cached_property
    def least_bytes(self) -> int:
        """The least bytes of the device in which it has a plan; 0 where the host computes it."""
        if self._request.chain.on_host:
            return 0
        request = replace(self._request, memory_limit=0)
        return Planner(request, self._target.ask_workspace).smallest_bytes() or 0


def kind_of_call(
    call: TiledCall, specs: tuple[TensorSpec, ...], aligned: tuple[bool, ...], target: Target
) -> CallKind:
    """Return the kind of a call.

    Parameters
    ----------
    specs, aligned : tuple
        Of each of its operands, in order: where it lies, and whether on a 16-byte boundary.
    """
    machine = computing_machine(target.machine, on_host=call.on_host)
    how = target.room_bytes, target.layouts, target.overlap, target.ask_workspace
    key = call, specs, aligned, machine, how
    # others that are alike may be of another model: what another library computes is its own
    kind = None if call.is_external else _kinds.get(key)
    if kind is None:
        request = make_request(
            "",
            call,
            dict(zip(call.operands, specs, strict=True)),
            machine,
            target.room_bytes,
            target.layouts,
            overlap=target.overlap,
            aligned=dict(zip(call.operands, aligned, strict=True)),
        )
        kind = CallKind(request, target)
        if call.is_external:
            return kind
        with _lock:
            _kinds[key] = kind
            while len(_kinds) > REMEMBERED:
                _kinds.popitem(last=False)
    return kind


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
    smaller pieces were measured to be faster, or where it would lack tensor cores, or not be split,
    for want of workspace: along images, then, if it takes long, along rows.
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
    """Seconds of cuts by the fastest engines, whatever room workspace has; the fastest first."""
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

    True where none was, and nothing lacks for want of workspace: then nothing says what more of it
    would be worth.
    """
    if lacks_room(plan.algorithms):
        return False
    answer = ask_workspace and ask_workspace(distinct_launches(request, plan), None)
    if answer is None or not any(name.endswith(MEASURED) for name in answer[1]):
        return True
    return answer[0] <= plan.workspace_bytes
