"""The planner of a call, from a request to a plan: the best split that the device can run.

Workspace is asked from the device, for the very pieces that were found, and never modelled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.call_planner.chain_layouts import layouts_to_plan, seconds_by_layout
from ooc_cudnn.call_planner.loop_orders import LoopOrder
from ooc_cudnn.call_planner.plan import Alternative, Plan
from ooc_cudnn.call_planner.request import (
    LARGEST_BATCH,
    LARGEST_PIECE_BYTES,
    LARGEST_PIECE_ELEMENTS,
    Request,
)
from ooc_cudnn.call_planner.search import LaunchOf, PricedSplit, Search
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.alignment import ALIGNMENT, align
from ooc_cudnn.operations.core.call import AXES
from perfmodel import Slowdown, Split
from perfmodel.cached import cached_property
from perfmodel.closed_form import binding_stage, closed_form, link_alone

#: How often the search is repeated with less memory when the device asks for workspace.
WORKSPACE_ATTEMPTS = 4
#: A call that takes no longer than so many times its copies is bound by the link.
LINK_BINDS = 1.008
#: Rows lie along another axis than the first where the call is so many times faster for it.
WORTH_TURNING = 1.02
#: Runners-up that a plan names.
ALTERNATIVES = 4

#: Why no memory is enough, where none is.
TOO_LARGE = (
    f"its smallest pieces exceed {LARGEST_PIECE_ELEMENTS} elements, {LARGEST_PIECE_BYTES} bytes or "
    f"a batch of {LARGEST_BATCH}, which cuDNN does not compute reliably"
)

#: `Device.workspace`: the scratch bytes of a set of launches and the names of their algorithms.
AskWorkspace = Callable[[tuple[LaunchOf, ...], int | None], tuple[int, tuple[str, ...]] | None]


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
    planner = Planner(request, ask_workspace)
    plan = planner.plan(split)
    if plan is None:
        raise PlanInfeasibleError(
            function=request.function,
            limit_bytes=request.memory_limit,
            smallest_bytes=planner.smallest_bytes(),
            reason=TOO_LARGE,
        )
    return plan


def smallest_bytes(request: Request) -> int:
    """Memory of the smallest pieces, without workspace."""
    return Planner(request, None).smallest_bytes() or 2**62


def distinct_launches(request: Request, plan: Plan) -> tuple[LaunchOf, ...]:
    """Every different launch of a plan, with its buffers."""
    return Search(request, plan.layout).launches(plan.split, plan.order)


class Corner(NamedTuple):
    """One of the smallest splits in one order of its loops, and the memory of one slot each."""

    search: Search
    split: Split
    order: LoopOrder
    memory_bytes: int


class Planner:
    """A request, searched along each axis in each of its layouts, and in those that a chain mixes.

    Parameters
    ----------
    request : Request
    ask_workspace : callable, optional
    """

    def __init__(self, request: Request, ask_workspace: AskWorkspace | None) -> None:
        self.request, self.ask_workspace = request, ask_workspace
        #: `Plan.by_layout`.
        self.by_layout = seconds_by_layout(request)
        layouts = layouts_to_plan(request, self.by_layout)
        self.searches = {
            (turned.chain.row_axis, layout): Search(turned, layout)
            for turned in request.turned
            for layout in layouts
        }

    def plan(self, split: Split | None) -> Plan | None:
        """The best plan, or that of a given split; None if nothing fits."""
        limit = self.request.memory_limit
        plan = self._search(limit, split)
        if plan is None and split is None:  # a search may overlook that something fits
            plan = next(self._smallest_plans(limit), None)
        if plan is None or self.ask_workspace is None:
            return plan
        return self._with_room(plan, self.ask_workspace, may_shrink=split is None)

    # Without workspace --------------------------------------------------------------------------

    def _search(self, limit: int, split: Split | None = None) -> Plan | None:
        """Search each layout and axis for what fits; the plan of the fastest."""
        best, candidates = None, list[PricedSplit]()
        for search in self.searches.values():
            beat = math.inf if best is None else self._to_beat(search, best)
            splits = search.best(limit, beat) if split is None else search.prices([split], limit)
            if splits and splits[0].seconds < beat * (1 - 1e-9):
                best = splits[0]
            candidates += splits
        if best is None:
            return None
        if split is None and not self._link_binds(best):
            best = self.searches[best.request.chain.row_axis, best.layout].finer(best, limit)
        others = [each for each in candidates if each.request is best.request and each is not best]
        return self._plan_of(best, sorted(others, key=lambda o: o.seconds)[:ALTERNATIVES])

    def _to_beat(self, search: Search, best: PricedSplit) -> float:
        """The seconds that a search has to beat; nothing where it cannot, or is not worth it."""
        request, whole = search.request, search.call.extents
        if request is best.request:
            # unless it computes faster or takes less, smaller pieces of it will not, either
            rival = self.searches[search.call.row_axis, best.layout].whole
            gains = search.whole[0] < rival[0] or search.whole[1] < rival[1]
            return best.seconds if gains and not self._link_binds(best) else 0.0
        # else every image is moved once, whole
        cuts_images = replace(best.split, n=whole.n) != best.request.chain.extents
        return best.seconds / WORTH_TURNING if cuts_images and search.layout == best.layout else 0.0

    def _link_binds(self, priced: PricedSplit) -> bool:
        """True if a call takes as long as its copies alone, whatever it computes and waits for."""
        least = closed_form(link_alone(priced.stages), self.request.slowdown)
        return bool(priced.seconds <= least * LINK_BINDS)

    def _seconds(self, priced: PricedSplit) -> float:
        request, slowdown = self.request, self.request.slowdown
        if request.overlap:
            return priced.seconds
        return float(closed_form(priced.stages, slowdown, overlap=False))

    def _plan_of(self, best: PricedSplit, others: list[PricedSplit]) -> Plan:
        request, stages, slowdown = best.request, best.stages, best.request.slowdown
        if not request.overlap:
            stages, slowdown = replace(stages, lost=0.0), Slowdown()
        ranges = request.chain.ranges(best.split).values()
        return Plan(
            function=request.function,
            operands=request.operands,
            split=best.split,
            pieces=math.prod(map(len, ranges)) * request.chain.sweeps,
            order=best.order,
            row_axis=request.chain.row_axis,
            rings=best.rings,
            layout=best.layout,
            algorithms=(),
            workspace_bytes=0,
            memory=best.memory,
            memory_limit=request.memory_limit,
            bytes_in=best.bytes_in,
            bytes_out=best.bytes_out,
            copy_in_seconds=float(stages.copy_in),
            compute_seconds=float(stages.compute),
            copy_out_seconds=float(stages.copy_out),
            seconds=self._seconds(best),
            binding_stage=binding_stage(stages, slowdown),
            overlap=request.overlap,
            machine=request.machine.name,
            by_layout=self.by_layout,
            alternatives=tuple(
                Alternative(each.split, each.layout, self._seconds(each), each.memory_bytes)
                for each in others
            ),
        )

    # The smallest pieces ------------------------------------------------------------------------

    @cached_property
    def _corners(self) -> list[Corner]:
        """Splits into single elements in their smallest rings, those of least memory first.

        With every axis that is summed over both cut and whole, for sums take memory; and both down
        the rows and not: whatever else the order of the loops is, they take as much. And the whole,
        which is computed on in place where it lies on the device.
        """
        corners = list[Corner]()
        for search in self.searches.values():
            call, whole = search.call, search.call.extents
            smallest = replace(whole, **{axis: 1 for axis in AXES if call.may_cut(axis)})
            ends = [{getattr(smallest, a), getattr(whole, a)} for a in call.reduced]
            sums = (
                dict(zip(call.reduced, sizes, strict=True)) for sizes in itertools.product(*ends)
            )
            splits = dict.fromkeys((*(replace(smallest, **sizes) for sizes in sums), whole))
            orders = search.request.loop_orders[::-1]
            for split in filter(call.is_legal, splits):
                for order in {search.goes_down(split, order): order for order in orders}.values():
                    pieces, rings = search.held(split, order, 1, False)
                    if pieces.legal[0]:
                        corners.append(Corner(search, split, order, int(rings.memory_bytes[0])))
        return sorted(corners, key=lambda corner: corner.memory_bytes)

    def _with_workspace(self, corner: Corner) -> int:
        """Minimum bytes of a corner split, including device workspace."""
        if self.ask_workspace is None:
            return corner.memory_bytes
        launches = corner.search.launches(corner.split, corner.order)
        budgets = (*(align(share * corner.memory_bytes // 8) for share in (1, 8, 64)), None)
        answers = (self.ask_workspace(launches, budget) for budget in budgets)
        answer = next((each for each in answers if each is not None), None)
        return corner.memory_bytes + align(answer[0] if answer else 0)

    def smallest_bytes(self) -> int | None:
        """The least limit that would do; None where none would."""
        return min(map(self._with_workspace, self._corners), default=None)

    def _smallest_plans(self, limit_bytes: int) -> Iterator[Plan]:
        """Plans of the smallest pieces that fit, the fastest first."""
        fitting = [
            corner.search.with_rings(corner.split, corner.order, 1, False)
            for corner in self._corners
            if corner.memory_bytes <= limit_bytes
        ]
        for priced in sorted(fitting, key=lambda each: each.seconds):
            yield self._plan_of(priced, [])

    # With workspace -----------------------------------------------------------------------------

    def _with_room(
        self, first: Plan, ask_workspace: AskWorkspace, *, may_shrink: bool
    ) -> Plan | None:
        """Give a plan the workspace that the device asks for, with smaller pieces if it must be."""
        limit, plan = self.request.memory_limit, first
        for _ in range(WORKSPACE_ATTEMPTS):
            answer = ask_workspace(self._launches(plan), None)
            if answer is not None and plan.device_bytes + align(answer[0]) <= limit:
                return assign_workspace(plan, *answer)
            if answer is None or not may_shrink:
                break
            # Leave workspace the share of memory that it took beside these pieces.
            needed = plan.device_bytes + align(answer[0])
            smaller = self._smaller(limit - limit * align(answer[0]) // needed)
            if smaller is None:
                break
            plan = smaller
        # No room for the algorithms that the device prefers: take those that fit beside the pieces.
        tried: list[Plan] = []
        smaller_still = self._smaller_and_smaller() if may_shrink else ()
        for candidate in itertools.chain((first, plan), smaller_still):
            if candidate not in tried:
                tried.append(candidate)
                # Workspace takes whole multiples of the alignment: less beside them is no room.
                budget = (limit - candidate.device_bytes) // ALIGNMENT * ALIGNMENT
                answer = ask_workspace(self._launches(candidate), budget)
                if answer is not None:
                    return assign_workspace(candidate, *answer)
        return None

    def _launches(self, plan: Plan) -> tuple[LaunchOf, ...]:
        return self.searches[plan.row_axis, plan.layout].launches(plan.split, plan.order)

    def _smaller(self, limit: int) -> Plan | None:
        """A plan that leaves some of the memory to workspace; None, quickly, where nothing fits."""
        fits = self._corners and self._corners[0].memory_bytes <= limit
        return self._search(limit) if fits else None

    def _smaller_and_smaller(self) -> Iterator[Plan]:
        """Plans that leave workspace more and more of the memory, down to the smallest pieces."""
        limit, call = self.request.memory_limit, self.request.chain
        yield from filter(None, (self._smaller(limit // share) for share in (2, 8, 32, 128)))
        if self.request.computed_on_in_place:
            # What is computed on in place takes no memory, however little is left: it is cut.
            for parts, axis in itertools.product((2, 8, 32, 128), AXES):
                size = -(-getattr(call.extents, axis) // parts)
                split = replace(call.extents, **{axis: size})
                if axis not in call.reduced and call.may_cut(axis) and call.is_legal(split):
                    yield from filter(None, (self._search(limit, split),))
        yield from self._smallest_plans(limit)


def assign_workspace(plan: Plan, workspace_bytes: int, algorithms: tuple[str, ...]) -> Plan:
    """The same plan, with workspace for these algorithms."""
    memory = plan.memory
    if workspace_bytes:
        memory += (("workspace", align(workspace_bytes)),)
    return replace(plan, workspace_bytes=workspace_bytes, algorithms=algorithms, memory=memory)
