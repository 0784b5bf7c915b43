"""Further ways to a plan, which `best` compares where the fastest one so far is slow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import LiveRanges
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.lowering.lower import (
    Placed,
    PlannedStep,
    Worth,
    always,
    lower_step,
    most_held,
    most_touched,
)
from ooc_cudnn.network.lowering.summarize import How, predicted
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.fuse_chains import fused
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of, split_into_microbatches
from ooc_cudnn.network.passes.microbatch_sums import summed_last
from ooc_cudnn.network.passes.rematerialize import can_be_remade, forward_only, seconds_to_remake
from ooc_cudnn.network.passes.rematerialize_events import repeated
from ooc_cudnn.network.passes.row_tiling import is_of_band
from ooc_cudnn.network.passes.split_concatenations import apart
from ooc_cudnn.network.policies.policy import POLICIES, Decision, Policy, keep, mixed
from ooc_cudnn.network.search.by_policy import PolicyPlanner
from ooc_cudnn.network.search.by_remat import SEARCHED, searched
from ooc_cudnn.network.search.host_budget import amounts, living_in, with_least
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.pass_pipeline import apply_passes
from ooc_cudnn.network.search.remat_candidates import ALL, INPUTS

#: Bands of rows are as few as leave the rest of memory to whole maps and to what tasks need.
MOST_BANDS = 1024
SHARE_OF_BANDS = 0.7
#: Shares of the bytes that can be remade of which the rest leaves, beside all and none.
SHARES_REMADE = (0.25, 0.5, 0.75, 0.9)
#: And of which the rest is on the host only where memory is short.
SHARES_SPILLED = (0.25, 0.75, 1.0)
#: As a share of memory: of larger maps few are there at once.
LARGE = 1 / 8
#: With more living at once than memory holds, slabs are so small that it holds this many of the
#: largest map's; and there are at most so many slabs, for each adds its phases to plan.
SLABS_OF_ROOM, MOST_SLABS = 12, 8
#: As a share of memory: slabs in which a search makes maps again are so many that no phase
#: touches more. The search has the rest for what lives meanwhile.
SMALL_PHASE = 0.4
#: With slabs, how many times what memory holds may live at once: the rest is on the host. The first
#: counts with which the search finds what to make again.
LIVING = (1.25, 1.5, 2.0, 3.0, 4.0)
#: How often stays of slabs are tried, with fewer tensors on the device each time.
MOST_TRIES = 100
#: A plan that takes so many times its computing is compared with those that go down the rows.
WAITING = 1.25
#: One that takes so many times is, with those whose maps are in slabs.
WAITING_MOSTLY = 2.0
#: Micro-batches that are tried: the next number is worth it while it may be faster.
MICRO_BATCHES = sorted({count << doubled for count in (2, 3) for doubled in range(8)})


def waits(plan: NetworkPlan, times: float = WAITING) -> bool:
    """Whether a plan waits for the link for much of its time."""
    return plan.seconds > times * plan.compute_seconds


def has_room_for_shared(step: Step, terms: PlanConstraints) -> bool:
    """Whether there is room for what all micro-batches share, so that none copies it again.

    That is weights, and their gradients, which add up.
    """
    last = summed_last(step, images_of(step))
    shared = {
        step.base(phase.binds[operand])
        for at, phase in enumerate(step.phases)
        for operand, (_, _, axes) in phase.call.operands.items()
        if "n" not in axes and at not in last
    }
    on_device = {base for base, spec in terms.given.items() if spec.placement == "device"}
    tensors = (step.tensors[base] for base in shared - on_device)
    held = sum(each.nbytes for each in tensors if each.kind in ("parameter", "gradient"))
    return held <= terms.target.room_bytes


def by_shares(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """Plans that remake a share of what can be remade, and of the rest let leave what must."""
    for share in SHARES_REMADE:
        some = Policy(keep, partial(mixed, share=share))
        made = PolicyPlanner(step, terms, "mixed", asked or 1, some).planned(name, fastest)
        if made is not None:
            yield made


def by_rows(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """Plans that go down the rows, in as few bands as leave memory to what is whole, or more.

    All images at once, and one by one; or in so many micro-batches as are asked for.
    """
    apart = has_room_for_shared(step, terms) and not step.pauses
    counts = (1, images_of(step)) if apart else (1,)
    for parts in dict.fromkeys(counts if asked is None else (asked,)):
        bands, least = 1, np.inf
        while (bands := 2 * bands) <= MOST_BANDS:
            try:
                if bands == 2 and not fastest.can_beat_incumbent(
                    split_into_microbatches(step, parts)
                ):
                    break
                rewritten = apply_passes(step, frozenset(), parts, bands)
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
                placed = lower_step(
                    name, rewritten, stays, terms, is_worth=fastest.can_beat_incumbent
                )
            except PlanInfeasibleError:
                break  # a part of a call may take more than all of it: it adds to what is there
            if placed is None:
                break
            figures = predicted(name, "rows", rewritten, placed, How(parts, bands), terms)
            yield PlannedStep(figures, rewritten, placed)
            if figures.seconds >= least:
                break  # more bands leave more memory to what is whole, and cross the link more
            least = figures.seconds


def by_halves_of_parts(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """Plans of a step that pauses, in micro-batches: of each, forward again with its backward."""
    if not step.pauses or asked is not None or not has_room_for_shared(step, terms):
        return
    again = Policy(keep, lambda step, machine: (Decision(can_be_remade(step)),))
    images, least = images_of(step), float("inf")
    try:
        for parts in (count for count in MICRO_BATCHES if count <= images):
            made = PolicyPlanner(step, terms, "remake", parts, again).planned(name, fastest)
            if made is not None:
                yield made
            seconds = float("inf") if made is None else made.plan.seconds
            if seconds > least:
                return  # smaller parts take longer still
            least = min(least, seconds)
    except WholeBatchError:
        return


def by_spilling(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """Plans in which tensors are on the host for a while, wherever memory is short.

    Concatenations are taken apart, so that no tensor is larger than it must be. Of what is made
    again, the largest maps are made anew for each reader where that takes less than a copy of them.
    """
    step, parts = apart(step), asked or 1
    for share in SHARES_SPILLED:
        again, anew = _made_anew(step, terms, share)
        rewritten = apply_passes(step, again, parts, 1, anew)
        stays = POLICIES["keep"].residing(rewritten)
        if not fastest.can_beat_incumbent(rewritten, stays):
            continue  # before it is known what spills, which takes long
        try:
            placed = lower_step(
                name, rewritten, stays, terms, spill=True, is_worth=fastest.can_beat_incumbent
            )
        except PlanInfeasibleError:
            break  # an addition to what another part made takes more than all at once
        if placed is None:
            continue
        how = How(parts, 1, tuple(sorted(again)), apart=True, anew=tuple(sorted(anew)))
        figures = predicted(name, "spill", rewritten, placed, how, terms)
        yield PlannedStep(figures, rewritten, placed)


def by_search_in_slabs(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """Plans of a step in slabs in which maps are made again, where single phases fill memory.

    The search keeps within memory of the device. There are as few slabs as make phases small
    (`SMALL_PHASE`); one more where no plan comes of that.
    """
    if asked not in (None, 1):
        return
    step = apply_passes(step, frozenset(), 1, 1)
    least = -(-most_touched(step, terms) // max(int(SMALL_PHASE * terms.target.room_bytes), 1))
    if not 1 < least <= min(MOST_SLABS, images_of(step)):
        return
    for slabs in (least, least + 1):
        try:
            cut = slice_batch(step, slabs)
        except WholeBatchError:
            return
        found = False
        for made in searched(name, cut, terms, fastest, (INPUTS, ALL), slabs=slabs):
            found = True
            yield made
        if found:
            return


def by_slabs(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """A plan of a step in slabs that spills, where memory holds few of the largest maps.

    Unlike in `by_search_in_slabs`, more lives at once than the device has room for (`LIVING`): what
    is too much is on the host for a while.
    """
    room = terms.target.room_bytes
    largest = max(each.nbytes for each in step.tensors.values())
    slabs = min(-(-SLABS_OF_ROOM * largest // max(room, 1)), MOST_SLABS, images_of(step))
    if asked not in (None, 1) or step.pauses or slabs < 2:
        return
    if fastest.best is not None and not waits(fastest.best.plan, WAITING_MOSTLY):
        return  # finding stays of slabs takes long
    step = apart(step)
    try:
        cut = slice_batch(apply_passes(step, frozenset(), 1, 1), slabs)
    except WholeBatchError:
        return
    wanted = (living_in(cut, terms, share * room) for share in LIVING)
    again = next((found for found in wanted if found is not None), None)
    if again is None:
        return
    rewritten, tries = fused(repeated(cut, again)), iter(range(MOST_TRIES))

    def is_worth(step: Step, stays: LiveRanges) -> bool:
        return next(tries, None) is not None and fastest.can_beat_incumbent(step, stays)

    stays = POLICIES["keep"].residing(rewritten)
    try:
        placed = lower_step(name, rewritten, stays, terms, spill=True, is_worth=is_worth)
    except PlanInfeasibleError:
        return  # a part of a call may take more than all of it: it adds to what is there
    if placed is not None:
        how = How(1, 1, apart=True, again=again, slabs=slabs)
        figures = predicted(name, "slabs", rewritten, placed, how, terms)
        yield PlannedStep(figures, rewritten, placed)


def by_host_memory(
    name: str, step: Step, terms: PlanConstraints, asked: int | None, fastest: Incumbent
) -> Iterator[PlannedStep]:
    """The plan by spilling that makes so much again that host memory has room for what is left.

    It is for steps that host memory was too small for. The first that fits is it; where none does,
    and no other plan, the one that wants least.
    """
    if asked not in (None, 1) or not fastest.is_short:
        return
    step = apply_passes(apart(step), frozenset(), 1, 1)
    assert terms.host is not None
    available = terms.host.available_bytes
    room = float(terms.target.room_bytes + available)

    def placed(again: tuple[RematEvent, ...], is_worth: Worth) -> tuple[Step, Placed] | None:
        rewritten = fused(repeated(step, again))
        stays = POLICIES["keep"].residing(rewritten)
        made = lower_step(name, rewritten, stays, terms, spill=True, is_worth=is_worth)
        return None if made is None else (rewritten, made)

    again: tuple[RematEvent, ...] = ()
    made: tuple[Step, Placed] | None = None
    try:
        for nbytes in amounts(step, terms):
            found = living_in(step, terms, nbytes) if nbytes <= room else None
            tried = None if found is None else placed(found, fastest.can_beat_incumbent)
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


def _made_anew(step: Step, terms: PlanConstraints, share: float) -> tuple[frozenset[str], set[str]]:
    """What is made again, up to a share of its bytes; and what of it is made for each reader."""
    machine, room = terms.target.machine, terms.target.room_bytes
    again = mixed(step, machine, share)[-1].remade
    seconds_of = seconds_to_remake(step, machine, again | forward_only(step))
    anew = {
        name
        for name in again
        if (nbytes := step.tensors[name].nbytes) > LARGE * room
        and seconds_of(name) < machine.transfer.copy_seconds("copy_in", "pinned", nbytes)
    }
    return again, anew


#: Those for plans that wait for the link, in the order in which they are compared.
WAYS = (by_halves_of_parts, by_shares, by_rows, by_spilling, by_slabs, by_host_memory)
