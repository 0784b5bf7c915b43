"""From a step to its plan: by one policy, or by all that `best` compares, the fastest by replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.pinned import Room
from ooc_cudnn.network.apart import apart
from ooc_cudnn.network.bands import banded, is_of_band, whole_maps
from ooc_cudnn.network.bound import bound_of
from ooc_cudnn.network.collecting import no_garbage_collection
from ooc_cudnn.network.compacting import compacted
from ooc_cudnn.network.computing import order_seconds
from ooc_cudnn.network.deciding import MOST_IN_VAIN, Alone, Deciding
from ooc_cudnn.network.fastest import NEAR, Fastest, PlannedStep
from ooc_cudnn.network.first_reads import streamed_first
from ooc_cudnn.network.fusing import fused
from ooc_cudnn.network.fusing_backward import summed
from ooc_cudnn.network.in_place import in_place
from ooc_cudnn.network.least_seconds import least_seconds
from ooc_cudnn.network.made_again import ALL, INPUTS, coming_back, made_again
from ooc_cudnn.network.micro_batches import WholeBatchError, images_of, micro_batched
from ooc_cudnn.network.mo_sos.planning import CANDIDATES as WHOLE
from ooc_cudnn.network.mo_sos.planning import plan_mo_sos, taken_whole
from ooc_cudnn.network.phases import Step
from ooc_cudnn.network.placing import (
    Placed,
    Terms,
    Worth,
    always,
    most_held,
    most_touched,
    place_step,
)
from ooc_cudnn.network.plan import NetworkPlan
from ooc_cudnn.network.policies import POLICIES, Decision, Policy, keep, mixed
from ooc_cudnn.network.predicted import How, predicted
from ooc_cudnn.network.remaking import can_be_remade, forward_only, remade, seconds_to_remake
from ooc_cudnn.network.repeating import Again, repeated
from ooc_cudnn.network.residency import Residency, check_stays
from ooc_cudnn.network.room_outside import with_room_outside
from ooc_cudnn.network.slabs import in_slabs
from ooc_cudnn.network.through_normalizations import through_normalizations
from ooc_cudnn.network.time_to_copy import with_time_to_copy
from ooc_cudnn.network.within_host import amounts, living_in, with_least
from ooc_cudnn.operations.window_arguments import is_int
from ooc_cudnn.pipeline.program import Task
from ooc_cudnn.tensor import ORDERS

#: What `best` chooses from, in the order in which equals are taken; and beside them plans whose
#: events a search found, which tell early what cannot be the fastest.
BEST_OF = ("keep", "remake", "checkpoint", "offload", "mixed")
SEARCHED = "repeat"
#: And of other steps than those.
VDNN = ("vdnn_all", "vdnn_conv", "vdnn_dyn")
NAMES = ("best", *BEST_OF, *VDNN, *WHOLE)
#: Bands of rows are as few as leave the rest of memory to whole maps and to what tasks need.
MOST_BANDS = 1024
SHARE_OF_BANDS = 0.7
#: Shares of the bytes that can be remade of which the rest leaves, beside all and none.
SHARES_REMADE = (0.25, 0.5, 0.75, 0.9)
#: And of which the rest is on the host only where memory is short.
SHARES_SPILLED = (0.25, 0.75, 1.0)
#: As a share of memory: of such maps few are there at once.
LARGE = 1 / 8
#: Slabs are so small that memory holds this many of the largest map, but no more than are many.
SLABS_OF_ROOM, MOST_SLABS = 12, 8
#: Phases that touch more than this share of memory go slab by slab.
LARGE_PHASE = 0.25
#: With slabs the share of the bytes that can be remade of which the rest leaves, and as a share of
#: memory what is made anew for each reader.
SHARE_OF_SLABS, LARGE_OF_SLABS = 0.75, 1 / 32
#: How often stays of slabs are tried, with fewer tensors on the device each time.
MOST_TRIES = 100
#: A plan that takes so many times its computing is compared with those that go down the rows.
WAITING = 1.25
#: One that takes so many times is, with those whose maps are in slabs.
WAITING_MOSTLY = 2.0
#: Where it takes less than so many times, all other policies are slower.
WAITING_A_LITTLE = 1.05
#: Of the memory that is free, what copies may have longer; addresses may want the rest.
FOR_COPIES = (1.0, 0.0)
#: Micro-batches that are tried: the next number is worth it while it may be faster.
MICRO_BATCHES = sorted({count << doubled for count in (2, 3) for doubled in range(8)})


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
    fastest.skips = policy == "best" and micro_batches in (None, 1)  # as `_by_host_memory` does
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
                plans = _searched(name, ready, terms, parts, fastest, ways)
                found.append(fastest.compare(plans))
                if parts == 1:  # the faster it is, the fewer others may be
                    _in_time(name, terms, fastest)
        in_vain = 0 if fastest.best is None or any(found) else in_vain + 1
    if policy == "best":
        _in_time(name, terms, fastest)
    for way in WAYS if policy == "best" else ():
        if fastest.best is None or _waits(fastest.best.plan):
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
        for each in named if _waits(fastest.found().plan, WAITING_A_LITTLE) else ():
            fastest.compare(each.streamed(name, parts, fastest))
        _in_time(name, terms, fastest)
    made = fastest.found()
    return made._replace(plan=replace(made.plan, policy=policy, taken=made.plan.policy))


def bounded(
    plan: NetworkPlan, step: Step, terms: Terms, micro_batches: int | None = None
) -> NetworkPlan:
    """Return the plan of a step beside the bound: `bound.py`, over all numbers of micro-batches."""
    taken = _rewritten(_as_taken(step, "best"), frozenset(), 1, 1)
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
    again = frozenset(plan.remade)
    step, terms = with_room_outside(step, terms, plan.on_host)
    step = _as_taken(step, plan.taken if plan.taken in VDNN else plan.policy)
    if plan.apart:
        step = apart(step)
    anew = frozenset(plan.anew) if plan.apart else None
    if plan.policy in WHOLE:
        step = repeated(step, plan.again)
    elif plan.again:
        step = _repeated(_rewritten(step, frozenset(), 1, 1), plan.again, plan.micro_batches)
        step = fused(step) if plan.apart else step
    else:
        step = _rewritten(step, again, plan.micro_batches, plan.bands, anew)
        step = _slabbed(step, plan.slabs, terms)
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


def _as_taken(step: Step, policy: str) -> Step:
    """The step that a policy takes: vDNN's keep whole maps for backward, as the paper does."""
    step = through_normalizations(step)
    if policy in WHOLE:
        return taken_whole(step)
    return fused(step if policy.startswith("vdnn") else compacted(step))


def _taken(step: Step, terms: Terms, policy: str) -> tuple[Step, Terms]:
    """The step that a policy takes, and terms with the memory order that it computes fastest in."""
    step, target = _as_taken(step, policy), terms.target
    if len(target.layouts) > 1:
        by_order = order_seconds(step, target.machine, target.layouts)
        terms = replace(terms, order=by_order.fastest, by_order=by_order)
    return step, terms


def _waits(plan: NetworkPlan, times: float = WAITING) -> bool:
    """Whether a plan waits for the link for much of its time."""
    return plan.seconds > times * plan.compute_seconds


def _searched(
    name: str,
    step: Step,
    terms: Terms,
    parts: int,
    fastest: Fastest,
    ways: Sequence[Sequence[str]],
) -> Iterator[PlannedStep]:
    """Plans in which maps are made again as often as a search found best: `made_again.py`.

    Each way says which kinds of tensors may be copied; of each the first that has room.
    """
    least, before = float("inf"), frozenset[Again]()
    for copied in ways:
        for made in made_again(step, terms, parts, copied=copied, before=before):
            if made.seconds >= least:
                break
            rewritten = _repeated(step, made.again, parts)
            stays = coming_back(step, rewritten, made, terms.target.room_bytes)
            if not fastest.may_be(rewritten, stays):
                break
            placed = place_step(
                name, rewritten, stays, terms, may_stream=False, is_worth=fastest.may_be
            )
            if placed is not None:
                how = How(parts, again=made.again)
                figures = predicted(name, SEARCHED, rewritten, placed, how, terms)
                yield PlannedStep(figures, rewritten, placed)
                least, before = min(least, made.seconds), made.events
                break


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


def _by_shares(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """Plans that remake a share of what can be remade, and of the rest let leave what must."""
    for share in SHARES_REMADE:
        some = Policy(keep, partial(mixed, share=share))
        made = Deciding(step, terms, "mixed", asked or 1, some).planned(name, fastest)
        if made is not None:
            yield made


def _by_rows(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """Plans that go down the rows, in as few bands as leave memory to what is whole, or more.

    All images at once, and one by one; or in so many micro-batches as are asked for.
    """
    apart = _shares(step, terms) and not step.pauses
    counts = (1, images_of(step)) if apart else (1,)
    for parts in dict.fromkeys(counts if asked is None else (asked,)):
        bands, least = 1, np.inf
        while (bands := 2 * bands) <= MOST_BANDS:
            try:
                if bands == 2 and not fastest.may_be(micro_batched(step, parts)):
                    break
                rewritten = _rewritten(step, frozenset(), parts, bands)
            except WholeBatchError:
                break
            stays = {  # the rows of an input come with each band
                base: each
                for base, each in POLICIES["keep"].residing(rewritten).items()
                if rewritten.tensors[base].kind != "input"
            }
            of_bands = {base: each for base, each in stays.items() if is_of_band(base)}
            if not of_bands:
                break
            if most_held(rewritten, of_bands) > SHARE_OF_BANDS * terms.target.room_bytes:
                continue
            try:
                placed = place_step(name, rewritten, stays, terms, is_worth=fastest.may_be)
            except PlanInfeasibleError:
                break  # a part of a call may take more than all of it: it adds to what is there
            if placed is None:
                break
            figures = predicted(name, "rows", rewritten, placed, How(parts, bands), terms)
            yield PlannedStep(figures, rewritten, placed)
            if figures.seconds >= least:
                break  # more bands leave more memory to what is whole, and cross the link more
            least = figures.seconds


def _by_halves_of_parts(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """Plans of a step that pauses, in micro-batches: of each, forward again with its backward."""
    if not step.pauses or asked is not None or not _shares(step, terms):
        return
    again = Policy(keep, lambda step, machine: (Decision(can_be_remade(step)),))
    images, least = images_of(step), float("inf")
    try:
        for parts in (count for count in MICRO_BATCHES if count <= images):
            made = Deciding(step, terms, "remake", parts, again).planned(name, fastest)
            if made is not None:
                yield made
            seconds = float("inf") if made is None else made.plan.seconds
            if seconds > least:
                return  # smaller parts take longer still
            least = min(least, seconds)
    except WholeBatchError:
        return


def _by_spilling(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """Plans in which tensors are on the host for a while, wherever memory is short.

    Concatenations are taken apart, so that no tensor is larger than it must be. Of what is made
    again, the largest maps are made anew for each reader where that takes less than a copy of them.
    """
    step, parts = apart(step), asked or 1
    for share in SHARES_SPILLED:
        again, anew = _made_anew(step, terms, share, LARGE)
        rewritten = _rewritten(step, again, parts, 1, anew)
        stays = POLICIES["keep"].residing(rewritten)
        if not fastest.may_be(rewritten, stays):
            continue  # before it is known what spills, which takes long
        try:
            placed = place_step(name, rewritten, stays, terms, spill=True, is_worth=fastest.may_be)
        except PlanInfeasibleError:
            break  # an addition to what another part made takes more than all at once
        if placed is None:
            continue
        how = How(parts, 1, tuple(sorted(again)), apart=True, anew=tuple(sorted(anew)))
        figures = predicted(name, "spill", rewritten, placed, how, terms)
        yield PlannedStep(figures, rewritten, placed)


def _by_slabs(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """Plans by spilling in which stretches between barriers go through the batch in slabs.

    They are for steps with maps of which memory does not hold several.
    """
    room = terms.target.room_bytes
    largest = max(each.nbytes for each in step.tensors.values())
    slabs = min(-(-SLABS_OF_ROOM * largest // max(room, 1)), MOST_SLABS, images_of(step))
    if asked not in (None, 1) or step.pauses or slabs < 2:
        return
    if fastest.best is not None and not _waits(fastest.best.plan, WAITING_MOSTLY):
        return  # finding stays of slabs takes long
    step = apart(step)
    again, anew = _made_anew(step, terms, SHARE_OF_SLABS, LARGE_OF_SLABS)
    try:
        rewritten = _slabbed(_rewritten(step, again, 1, 1, anew), slabs, terms)
    except WholeBatchError:
        return
    tries = iter(range(MOST_TRIES))

    def is_worth(step: Step, stays: Residency) -> bool:
        return next(tries, None) is not None and fastest.may_be(step, stays)

    stays = POLICIES["keep"].residing(rewritten)
    try:
        placed = place_step(name, rewritten, stays, terms, spill=True, is_worth=is_worth)
    except PlanInfeasibleError:
        return  # a part of a call may take more than all of it: it adds to what is there
    if placed is not None:
        remade, each = tuple(sorted(again)), tuple(sorted(anew))
        how = How(1, 1, remade, apart=True, anew=each, slabs=slabs)
        figures = predicted(name, "slabs", rewritten, placed, how, terms)
        yield PlannedStep(figures, rewritten, placed)


def _by_host_memory(
    name: str, step: Step, terms: Terms, asked: int | None, fastest: Fastest
) -> Iterator[PlannedStep]:
    """The plan by spilling that makes so much again that host memory has room for what is left.

    It is for steps that host memory was too small for. The first that fits is it; where none does,
    and no other plan, the one that wants least.
    """
    if asked not in (None, 1) or not fastest.is_short:
        return
    step = _rewritten(apart(step), frozenset(), 1, 1)
    assert terms.host is not None
    available = terms.host.available_bytes
    room = float(terms.target.room_bytes + available)

    def placed(again: tuple[Again, ...], is_worth: Worth) -> tuple[Step, Placed] | None:
        rewritten = fused(repeated(step, again))
        stays = POLICIES["keep"].residing(rewritten)
        made = place_step(name, rewritten, stays, terms, spill=True, is_worth=is_worth)
        return None if made is None else (rewritten, made)

    again: tuple[Again, ...] = ()
    made: tuple[Step, Placed] | None = None
    try:
        for nbytes in amounts(step, terms):
            found = living_in(step, terms, nbytes) if nbytes <= room else None
            tried = None if found is None else placed(found, fastest.may_be)
            if found is None or tried is None:
                continue
            beyond = tried[1].program.host_bytes - available
            if beyond <= 0:
                again, made = found, tried
                break
            room = nbytes - beyond
        if made is None and fastest.best is None:
            again = with_least(step, terms)
            made = placed(again, always)
    except PlanInfeasibleError:
        return  # an addition to what another part made takes more than all at once
    if made is not None:
        figures = predicted(name, SEARCHED, *made, How(apart=True, again=again), terms)
        yield PlannedStep(figures, *made)


def _slabbed(step: Step, slabs: int, terms: Terms) -> Step:
    """A step in slabs, where its phases touch much of memory."""
    return in_slabs(step, slabs, int(LARGE_PHASE * terms.target.limit_bytes))


def _made_anew(
    step: Step, terms: Terms, share: float, large: float
) -> tuple[frozenset[str], set[str]]:
    """What is made again, up to a share of its bytes; and what of it is made for each reader."""
    machine, room = terms.target.machine, terms.target.room_bytes
    again = mixed(step, machine, share)[-1].remade
    seconds_of = seconds_to_remake(step, machine, again | forward_only(step))
    anew = {
        name
        for name in again
        if (nbytes := step.tensors[name].nbytes) > large * room
        and seconds_of(name) < machine.transfer.copy_seconds("copy_in", "pinned", nbytes)
    }
    return again, anew


def _rewritten(
    step: Step, again: frozenset[str], parts: int, bands: int, anew: Set[str] | None = None
) -> Step:
    """A step with what is remade, in bands of rows, in micro-batches.

    With `anew`, a set of names, what is made again goes straight into its reader where it can.
    """
    step = banded(step, whole_maps(step), bands) if bands > 1 else in_place(summed(step))
    step = remade(step, again, anew or ())
    return micro_batched(step if anew is None else fused(step), parts)


def _repeated(step: Step, again: tuple[Again, ...], parts: int) -> Step:
    """A step that is rewritten but for what is made again as often as wanted."""
    return micro_batched(repeated(step, again), parts)


#: Further plans that `best` compares where the best one waits for the link.
WAYS = (_by_halves_of_parts, _by_shares, _by_rows, _by_spilling, _by_slabs, _by_host_memory)


def _counts(step: Step, asked: int | None, terms: Terms) -> Iterator[int]:
    """Numbers of micro-batches to try, while the next one may be better."""
    if asked is not None:
        yield asked
        return
    yield 1
    if step.pauses or not _shares(step, terms):
        return  # `_by_halves_of_parts` has those of a step that pauses
    images = images_of(step)
    try:
        for parts in (count for count in MICRO_BATCHES if count <= images):
            micro_batched(step, parts)
            yield parts
    except WholeBatchError:
        return


def _shares(step: Step, terms: Terms) -> bool:
    """Whether there is room for what all micro-batches share, so that none copies it again.

    That is weights, and their gradients, which add up.
    """
    shared = {
        step.base(phase.binds[operand])
        for phase in step.phases
        for operand, (_, _, axes) in phase.call.operands.items()
        if "n" not in axes
    }
    on_device = {base for base, spec in terms.given.items() if spec.placement == "device"}
    tensors = (step.tensors[base] for base in shared - on_device)
    held = sum(each.nbytes for each in tensors if each.kind in ("parameter", "gradient"))
    return held <= terms.target.room_bytes


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
