"""From a step to its plan: by one policy, or by all that `best` compares, the fastest by replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.apart import apart
from ooc_cudnn.network.bound import bound_of
from ooc_cudnn.network.collecting import no_garbage_collection
from ooc_cudnn.network.computing import order_seconds
from ooc_cudnn.network.deciding import MOST_IN_VAIN, Alone, Deciding
from ooc_cudnn.network.fastest import NEAR, Fastest, PlannedStep
from ooc_cudnn.network.first_reads import streamed_first
from ooc_cudnn.network.fusing import fused
from ooc_cudnn.network.fusing_backward import summed
from ooc_cudnn.network.in_place import in_place
from ooc_cudnn.network.least_seconds import least_seconds
from ooc_cudnn.network.made_again import ALL, INPUTS
from ooc_cudnn.network.micro_batches import WholeBatchError, images_of, micro_batched
from ooc_cudnn.network.mo_sos.planning import CANDIDATES as WHOLE
from ooc_cudnn.network.mo_sos.planning import plan_mo_sos
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import (
    Terms,
    most_touched,
    place_step,
)
from ooc_cudnn.network.plan import NetworkPlan
from ooc_cudnn.network.predicted import predicted
from ooc_cudnn.network.repeating import repeated
from ooc_cudnn.network.residency import check_stays
from ooc_cudnn.network.rewriting import as_planned, as_taken, repeated_in_parts
from ooc_cudnn.network.room_outside import with_room_outside
from ooc_cudnn.network.searched import searched
from ooc_cudnn.network.slabs import in_slabs
from ooc_cudnn.network.time_to_copy import with_time_to_copy
from ooc_cudnn.network.ways import (
    MICRO_BATCHES,
    MOST_BANDS,
    WAITING,
    WAYS,
    by_search_in_slabs,
    has_room_for_shared,
    waits,
)
from ooc_cudnn.operations.window_arguments import is_int
from ooc_cudnn.pipeline.program import Task
from ooc_cudnn.tensor import ORDERS

#: What `best` chooses from, in the order in which equals are taken; and beside them plans whose
#: events a search found (`SEARCHED`), which tell early what cannot be the fastest.
BEST_OF = ("keep", "remake", "checkpoint", "offload", "mixed")
#: And of other steps than those.
VDNN = ("vdnn_all", "vdnn_conv", "vdnn_dyn")
NAMES = ("best", *BEST_OF, *VDNN, *WHOLE)
#: Where the fastest plan takes less than so many times its computing, nothing is streamed call by
#: call to compare with it: that only copies more.
WAITING_A_LITTLE = 1.05
#: Of the memory that is free, the shares that time to copy may take, one after the other: with all
#: of it, addresses may find no place.
FOR_COPIES = (1.0, 0.0)


@no_garbage_collection()
def plan_step(
    name: str, step: Step, terms: Terms, *, policy: str = "best", micro_batches: int | None = None
) -> PlannedStep:
    """Plan a step.

    Parameters
    ----------
    policy : str
        One of `NAMES`.
    micro_batches : int, optional
        Parts of the batch that follow each other; chosen when left out, and 1 for the policies of
        vDNN, and for those that are one integer program, which know no others.

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
    of_all = step, terms
    step, terms = with_room_outside(step, terms)
    given, asked = step, terms
    step, terms = _taken(given, asked, policy)
    if policy in WHOLE:
        return plan_mo_sos(name, step, terms, policy)
    if policy == "vdnn_dyn":
        return _vdnn_dyn(name, step, terms, micro_batches or 1)
    if policy.startswith("vdnn"):
        micro_batches = micro_batches or 1  # it knows no others
    fastest, in_vain = Fastest(terms, step), 0
    fastest.skips = policy == "best" and micro_batches in (None, 1)  # as `by_host_memory` does
    alone = BEST_OF if policy == "best" else (policy,)
    ready = in_place(summed(step))
    named = [Alone(step, ready, terms, each, fastest.computing) for each in alone]
    for parts in _counts(step, micro_batches, terms):
        taken = micro_batched(ready, parts)
        if not fastest.may_be(taken):
            break  # nor may more micro-batches, which compute longer still
        if policy == "best" and most_touched(taken, terms) > terms.target.room_bytes:
            continue  # no policy has what a phase touches there
        searches = policy == "best" and in_vain < MOST_IN_VAIN
        if not searches and all(each.has_ended for each in named):
            break
        found = list[bool]()
        for each in named:
            made = each.planned(name, parts, fastest)
            found.append(fastest.take(made))
            if made is None and each.policy == "keep" and searches:
                ways = (INPUTS, ALL) if parts == 1 else (INPUTS,)
                plans = searched(name, ready, terms, fastest, ways, parts=parts)
                found.append(fastest.compare(plans))
                if parts == 1:  # the faster it is, the fewer others may be
                    _in_time(name, terms, fastest)
        in_vain = 0 if fastest.best is None or any(found) else in_vain + 1
    if policy == "best":
        _in_time(name, terms, fastest)
        if fastest.is_slow(WAITING):
            fastest.compare(by_search_in_slabs(name, step, terms, micro_batches, fastest))
    for way in WAYS if policy == "best" else ():
        if fastest.best is None or waits(fastest.best.plan):
            fastest.compare(way(name, step, terms, micro_batches, fastest))
    parts = micro_batches or 1
    if policy == "best":
        whole, by = _taken(given, asked, "vdnn_all")  # the same for each
        ready = in_place(summed(whole))
        copying = [Alone(whole, ready, by, each, fastest.computing) for each in VDNN]
        for each in copying:
            fastest.take(each.planned(name, parts, fastest))
        named += copying
    for each in named:
        for made in each.streamed(name, parts, fastest) if each.fits_nowhere else ():
            fastest.take(made)
    if fastest.best is None and fastest.least is None and fastest.skips:
        fastest.skips = False  # all was passed over: what is streamed says what it wants
        for each in named:
            for made in each.streamed(name, parts, fastest):
                fastest.take(made)
    if fastest.best is None and fastest.skips and fastest.least is not None:
        # with room for that nothing is passed over which wants less still
        enough = Room(fastest.least.host_bytes, None, 0)
        fastest.least = plan_step(name, of_all[0], replace(of_all[1], host=enough)).plan
    if policy == "best":
        for each in named if waits(fastest.found().plan, WAITING_A_LITTLE) else ():
            fastest.compare(each.streamed(name, parts, fastest))
        _in_time(name, terms, fastest)
    made = fastest.found()
    return made._replace(plan=replace(made.plan, policy=policy, taken=made.plan.policy))


def bounded(
    plan: NetworkPlan, step: Step, terms: Terms, micro_batches: int | None = None
) -> NetworkPlan:
    """Return the plan of a step beside the bound: `bound.py`, over all numbers of micro-batches."""
    taken = as_planned(as_taken(step, "best"), frozenset(), 1, 1)
    found = bound_of(taken, terms, _counts(taken, micro_batches, terms))
    return replace(plan, bound_seconds=None if found is None else found.seconds)


def check_asked(policy: str, micro_batches: int | None) -> None:
    """Refuse what no plan can follow."""
    if policy not in NAMES:
        raise ValueError(f"policy must be one of {', '.join(NAMES)}, not {policy!r}")
    if micro_batches is not None and not (is_int(micro_batches) and micro_batches > 0):
        raise ValueError(f"micro_batches must be a positive int, not {micro_batches!r}")
    if policy in WHOLE and micro_batches not in (None, 1):
        raise ValueError(f"policy {policy!r} takes the batch whole, not in {micro_batches} parts")


def plan_again(step: Step, plan: NetworkPlan, terms: Terms) -> PlannedStep:
    """Make the program of a plan that was made before.

    Raises
    ------
    ValueError
        If it is the plan of another step, or cannot be followed: plans are data, and may be edited.
    """
    check_asked(plan.policy, plan.micro_batches)
    for what in ("bands", "slabs"):
        count = getattr(plan, what)
        if not (is_int(count) and count > 0):
            raise ValueError(f"{what} must be a positive int, not {count!r}")
    if plan.bands > MOST_BANDS:  # each is gone through, however few rows there are
        raise ValueError(f"bands must be at most {MOST_BANDS}, not {plan.bands}")
    again = frozenset(plan.remade)
    step, terms = with_room_outside(step, terms, plan.on_host)
    step = as_taken(step, plan.taken if plan.taken in VDNN else plan.policy)
    if plan.apart:
        step = apart(step)
    anew = frozenset(plan.anew) if plan.apart else None
    if plan.policy in WHOLE:
        step = repeated(step, plan.again)
    elif plan.again:
        step = in_slabs(as_planned(step, frozenset(), 1, 1), plan.slabs)
        step = repeated_in_parts(step, plan.again, plan.micro_batches)
        step = fused(step) if plan.apart else step
    else:
        step = as_planned(step, again, plan.micro_batches, plan.bands, anew)
        step = in_slabs(step, plan.slabs)
    planned, phases = ([each.name for each in of] for of in (plan.tasks, step.phases))
    if planned != phases:  # stays count phases
        pairs = zip_longest(planned, phases)
        stranger, own = next(pair for pair in pairs if pair[0] != pair[1])
        raise ValueError(
            f"the plan is of another network: it has {stranger or 'no phase'!r} where this one has "
            f"{own or 'none'!r}"
        )
    check_stays(step, dict(plan.stays))
    if plan.order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {plan.order!r}")
    terms = replace(terms, order=plan.order, by_order=plan.by_order, synchronous=plan.synchronous)
    placed = place_step(plan.name, step, dict(plan.stays), terms, reserved=dict(plan.reserved))
    assert placed is not None
    made = Fastest(terms)
    figures = predicted(plan.name, plan.policy, step, placed, plan, terms)
    made.take(PlannedStep(replace(figures, taken=plan.taken, gap=plan.gap), step, placed))
    return made.found()


def _taken(step: Step, terms: Terms, policy: str) -> tuple[Step, Terms]:
    """The step that a policy takes, and terms with the memory order that it computes fastest in."""
    step, target = as_taken(step, policy), terms.target
    if len(target.layouts) > 1:
        by_order = order_seconds(step, target.machine, target.layouts)
        terms = replace(terms, order=by_order.fastest, by_order=by_order)
    return step, terms


def _in_time(name: str, terms: Terms, fastest: Fastest) -> None:
    """Take plans near the fastest with time to copy, the fastest first."""
    near, fastest.near = sorted(fastest.near, key=lambda each: each.plan.seconds), []
    untimed = fastest.untimed
    near = [made for made in near if made.plan.seconds <= NEAR * untimed]
    ways = [iter(_with_time(name, made, terms, fastest)) for made in near]
    plans = (made for turn in zip_longest(*ways) for made in turn if made is not None)
    fastest.take(next(plans, None))  # it is worth that, whatever was compared before
    fastest.compare(plans)
    fastest.near, fastest.untimed = [], untimed


def _with_time(
    name: str, made: PlannedStep, terms: Terms, fastest: Fastest
) -> Iterator[PlannedStep]:
    """The same plan with time to copy, where it may be the fastest then.

    First with inputs that first readers stream, then without.
    """
    plan, step, placed = made
    assert fastest.best is not None
    if plan.compute_seconds >= fastest.best.plan.seconds:
        return
    tasks = [item for item in placed.program.items if isinstance(item, Task)]
    machine = terms.target.machine
    room = terms.target.room_bytes - np.array([task.plan.device_bytes for task in tasks])
    seconds, pieces = zip(*((task.seconds, task.pieces) for task in plan.tasks), strict=True)
    there = fastest.on_device
    for stays in (*streamed_first(step, placed.residency), placed.residency):
        for share in FOR_COPIES:  # addresses may want more
            each = with_time_to_copy(step, stays, machine, seconds, share * room, there)
            if each == placed.residency:
                break
            least = least_seconds(step, each, machine, seconds, there, pieces).seconds
            if not fastest.is_worth_time(least):
                break
            again = place_step(name, step, each, terms, may_stream=False, is_worth=fastest.may_be)
            if again is not None:
                figures = predicted(name, plan.policy, step, again, plan, terms)
                yield PlannedStep(figures, step, again)
                break


def _counts(step: Step, asked: int | None, terms: Terms) -> Iterator[int]:
    """Numbers of micro-batches to try, while the next one may be better."""
    if asked is not None:
        yield asked
        return
    yield 1
    if step.pauses or not has_room_for_shared(step, terms):
        return  # `by_halves_of_parts` has those of a step that pauses
    images = images_of(step)
    try:
        for parts in (count for count in MICRO_BATCHES if count <= images):
            micro_batched(step, parts)
            yield parts
    except WholeBatchError:
        return


def _planned(
    name: str, step: Step, terms: Terms, policy: str, parts: int, fastest: Fastest
) -> PlannedStep | None:
    """Plan a step by one policy; None where it does not fit as the policy has it, or is no use."""
    return Deciding(step, terms, policy, parts).planned(name, fastest)


def _vdnn_dyn(name: str, step: Step, terms: Terms, parts: int) -> PlannedStep:
    """vDNN's dynamic policy: the first of its passes that fits (section 3.4).

    Without offload, then with convolutions' inputs offloaded, then with all; else what is too large
    is streamed, where vDNN gives up.
    """
    fastest = Fastest(terms)
    for policy in ("keep", "vdnn_conv", "vdnn_all"):
        if fastest.take(_planned(name, step, terms, policy, parts, fastest)):
            break
    else:
        streamed = Deciding(step, terms, "vdnn_all", parts)
        fastest.take(streamed.planned(name, fastest, share=1.0))
    made = fastest.found()
    return made._replace(plan=replace(made.plan, policy="vdnn_dyn", taken=made.plan.policy))
