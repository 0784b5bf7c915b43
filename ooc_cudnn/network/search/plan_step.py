"""Plan a step: by one policy, or the fastest by replay of all that `best` compares."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import check_live_ranges
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.external_memory import reserve_external_memory
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.copy_skip_connections import copy_skip_connections, skipped_over
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.search.candidate import Candidate, lower_and_replay
from ooc_cudnn.network.search.gc_pause import no_garbage_collection
from ooc_cudnn.network.search.incumbent import ALL_PLANS, Incumbent
from ooc_cudnn.network.search.layout_assignment import assign_layout
from ooc_cudnn.network.search.memory_needs import memory_needs
from ooc_cudnn.network.search.micro_batch_counts import micro_batches_of
from ooc_cudnn.network.search.mo_sos import POLICIES as WHOLE
from ooc_cudnn.network.search.pass_pipeline import (
    apply_passes,
    canonicalize,
    rematerialize_in_parts,
    take_concatenations_apart,
)
from ooc_cudnn.network.search.plan_search import BEST_OF, VDNN, PlanSearch
from ooc_cudnn.network.search.policy_planner import PolicyPlanner
from ooc_cudnn.network.search.search_budget import SearchBudget
from ooc_cudnn.network.search.strategies.row_tiles import MOST_BANDS
from ooc_cudnn.network.search.strategies.strategy import PlanRequest
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.tensor import ORDERS

NAMES = ("best", *BEST_OF, *VDNN, *WHOLE)


@no_garbage_collection()
def plan_step(
    name: str,
    step: Step,
    constraints: PlanConstraints,
    *,
    policy: str = "best",
    micro_batches: int | None = None,
    seconds: float = float("inf"),
) -> LoweredStep:
    """Plan a step.

    Parameters
    ----------
    policy : str
        One of `NAMES`.
    micro_batches : int, optional
        Parts of the batch that follow each other; chosen when left out, and 1 for the policies of
        vDNN, and for those that are one integer program, which know no others.
    seconds : float
        The search ends after the work of so many seconds of a core, as soon as there is a plan
        (`search_budget.py`). By default it ends by itself.

    Raises
    ------
    ValueError
        If the policy is not known, micro_batches is no positive int, or the step cannot go
        through the network in parts.
    PlanInfeasibleError
        If the memory limit admits no plan, with the smallest that would.
    HostOutOfMemoryError
        If host memory has no room for what the step would keep there.
    """
    check_asked(policy, micro_batches)
    of_all = step, constraints
    step, constraints = reserve_external_memory(step, constraints)
    original, asked = step, constraints
    step, constraints = _canonical(original, asked, policy)
    if policy in WHOLE:
        from ooc_cudnn.network.search.mo_sos.plan import plan_mo_sos

        return plan_mo_sos(name, step, constraints, policy)
    if policy == "vdnn_dyn":
        return _vdnn_dyn(name, step, constraints, micro_batches or 1)
    if policy.startswith("vdnn"):
        micro_batches = micro_batches or 1  # it knows no others
    request = PlanRequest(name, step, constraints, micro_batches)
    # the same for each of vDNN's
    vdnn = _canonical(original, asked, "vdnn_all") if policy == "best" else None
    budget = SearchBudget(seconds)
    search = _search(request, policy, budget, vdnn)
    if search.incumbent.best is None and budget.is_spent:  # host memory was short for all so far
        budget = SearchBudget(seconds, needs_plan=True)
        search = _search(request, policy, budget, vdnn)
    incumbent = search.incumbent
    if incumbent.best is None and incumbent.skips and incumbent.least is not None:
        # with room for that nothing is passed over which wants less still
        enough = Room(incumbent.least.host_bytes, None, 0)
        with_more = replace(of_all[1], host=enough)
        incumbent.least = plan_step(name, of_all[0], with_more, seconds=seconds).plan
    if policy == "best":
        search.by_streaming_for_comparison()
    planned = _with_needs(_named(incumbent.found(), policy), request, incumbent.in_one_piece)
    if not incumbent.ends:
        return planned
    return planned._replace(plan=replace(planned.plan, searched_seconds=seconds))


def _with_needs(planned: LoweredStep, request: PlanRequest, in_one_piece: float) -> LoweredStep:
    """A plan that says what its limit costs."""
    needs = memory_needs(planned, request.step, request.constraints)
    return planned._replace(plan=replace(planned.plan, needs=needs, one_piece_seconds=in_one_piece))


def _search(
    request: PlanRequest,
    policy: str,
    budget: SearchBudget,
    vdnn: tuple[Step, PlanConstraints] | None,
) -> PlanSearch:
    """Search by a policy; for `best` by strategies, too, and by vDNN's policies in their step."""
    search = PlanSearch(request, policy, budget)
    search.by_policies()
    if vdnn is not None:
        search.try_strategies()
        search.by_vdnn(*vdnn)
    search.by_streaming()
    return search


def plan_with_bound(
    plan: NetworkPlan, step: Step, constraints: PlanConstraints, micro_batches: int | None = None
) -> NetworkPlan:
    """Return a step's plan beside its bound (`lower_bound.py`), over all micro-batch counts."""
    from ooc_cudnn.network.bound.lower_bound import bound_of

    taken = copy_skip_connections(canonicalize(step, "best"), plan.copied_skips)
    taken = apply_passes(taken, frozenset(), 1, 1)
    bound = bound_of(taken, constraints, micro_batches_of(taken, micro_batches, constraints))
    return replace(plan, bound_seconds=None if bound is None else bound.seconds)


def check_asked(policy: str, micro_batches: int | None) -> None:
    """Refuse what no plan can follow."""
    if policy not in NAMES:
        raise ValueError(f"policy must be one of {', '.join(NAMES)}, not {policy!r}")
    if micro_batches is not None and not (is_int(micro_batches) and micro_batches > 0):
        raise ValueError(f"micro_batches must be a positive int, not {micro_batches!r}")
    if policy in WHOLE and micro_batches not in (None, 1):
        raise ValueError(f"policy {policy!r} takes the batch whole, not in {micro_batches} parts")


def plan_again(step: Step, plan: NetworkPlan, constraints: PlanConstraints) -> LoweredStep:
    """Make the program of a plan that was made before.

    Raises
    ------
    ValueError
        If it is the plan of another step, or cannot be followed: plans are data, and may be edited.
    """
    check_asked(plan.policy, plan.micro_batches)
    for what, count in (("bands", plan.bands), ("slabs", plan.batch_slices)):
        if not (is_int(count) and count > 0):
            raise ValueError(f"{what} must be a positive int, not {count!r}")
    if plan.bands > MOST_BANDS:  # each is gone through, however few rows there are
        raise ValueError(f"bands must be at most {MOST_BANDS}, not {plan.bands}")
    again = frozenset(plan.rematerialized)
    step, constraints = reserve_external_memory(step, constraints, plan.on_host)
    step = canonicalize(step, plan.taken if plan.taken in VDNN else plan.policy)
    if plan.copied_skips:
        if strangers := set(plan.copied_skips) - set(skipped_over(step)):
            raise ValueError(
                f"the plan is of another network: it copies into {min(map(str, strangers))}, which "
                "is no concatenation with a skip connection here"
            )
        step = copy_skip_connections(step, plan.copied_skips)
    if plan.apart:
        step = take_concatenations_apart(step)
    anew = frozenset(plan.anew) if plan.apart else None
    if plan.policy in WHOLE:
        step = insert_remat_events(step, plan.again)
    elif plan.again:
        step = slice_batch(apply_passes(step, frozenset(), 1, 1), plan.batch_slices)
        step = rematerialize_in_parts(step, plan.again, plan.micro_batches)
        step = fuse_chains(step) if plan.apart else step
    else:
        step = apply_passes(step, again, plan.micro_batches, plan.bands, anew)
        step = slice_batch(step, plan.batch_slices)
    names = [figures.name for figures in plan.tasks], [phase.name for phase in step.phases]
    if names[0] != names[1]:  # live ranges count phases
        stranger, actual = next(pair for pair in zip_longest(*names) if pair[0] != pair[1])
        raise ValueError(
            f"the plan is of another network: it has {stranger or 'no phase'!r} where this one has "
            f"{actual or 'none'!r}"
        )
    check_live_ranges(step, dict(plan.live_ranges))
    if plan.order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {plan.order!r}")
    constraints = replace(
        constraints, order=plan.order, by_order=plan.by_order, synchronous=plan.synchronous
    )
    candidate = Candidate(
        step, dict(plan.live_ranges), constraints, plan.policy, plan, reserved=dict(plan.reserved)
    )
    planned = lower_and_replay(plan.name, candidate)
    assert planned is not None
    incumbent = Incumbent(constraints)
    figures = replace(
        planned.plan,
        taken=plan.taken,
        gap=plan.gap,
        needs=plan.needs,
        one_piece_seconds=plan.one_piece_seconds,
    )
    incumbent.take(planned._replace(plan=figures))
    return incumbent.found()


@no_garbage_collection()
def derive_plan(
    step: Step, plan: NetworkPlan, constraints: PlanConstraints, shapes: str
) -> LoweredStep:
    """Plan a step by what was decided for a larger one, which had inputs of these shapes.

    Raises
    ------
    ValueError
        If it has other phases then.
    PlanInfeasibleError, HostOutOfMemoryError
        As `plan_step`.
    """
    planned = plan_again(
        step, replace(plan, by_order=None, gap=0.0, needs=(), one_piece_seconds=None), constraints
    )
    return planned._replace(plan=replace(planned.plan, derived=shapes))


def _canonical(
    step: Step, constraints: PlanConstraints, policy: str
) -> tuple[Step, PlanConstraints]:
    """Return the step that a policy takes, and constraints with its fastest memory order."""
    step = canonicalize(step, policy)
    return step, assign_layout(step, constraints)


def _vdnn_dyn(name: str, step: Step, constraints: PlanConstraints, parts: int) -> LoweredStep:
    """vDNN's dynamic policy: the first of its passes that fits (section 3.4).

    Without offload, then with convolutions' inputs offloaded, then with all; else what is too large
    is streamed, where vDNN gives up.
    """
    incumbent = Incumbent(constraints)
    for policy in ("keep", "vdnn_conv", "vdnn_all"):
        candidates = PolicyPlanner(step, constraints, policy, parts).candidates(incumbent)
        if incumbent.explore(name, candidates, free_plans=ALL_PLANS):
            break
    else:
        planner = PolicyPlanner(step, constraints, "vdnn_all", parts)
        streaming = planner.candidates(incumbent, share=1.0)
        incumbent.explore(name, streaming, free_plans=ALL_PLANS)
    return _named(incumbent.found(), "vdnn_dyn")


def _named(planned: LoweredStep, policy: str) -> LoweredStep:
    """A plan under the policy that was asked for; `taken` keeps the name of its own."""
    return planned._replace(plan=replace(planned.plan, policy=policy, taken=planned.plan.policy))
