"""MO-SOS and its two baselines as policies: the program, its solution, the step as it says."""

from __future__ import annotations

import math
from dataclasses import replace

from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.offset_assignment import LiveBuffer
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.live_ranges import check_live_ranges
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.compress_activations import save_indices
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.split_concatenations import split_concatenations
from ooc_cudnn.network.search.candidate import Candidate, lower_and_replay
from ooc_cudnn.network.search.incumbent import Incumbent
from ooc_cudnn.network.search.mo_sos.build_problem import BuiltProblem, build_problem
from ooc_cudnn.network.search.mo_sos.choices import PhaseChoices
from ooc_cudnn.network.search.mo_sos.program import Freedom, RematMilp
from ooc_cudnn.network.search.mo_sos.replay import replay_schedule, schedule_of
from ooc_cudnn.network.search.mo_sos.workspace_fit import fit_workspaces

MO_SOS, STR = Freedom(), Freedom(algorithms=False)
CHECKMATE = Freedom(offload=False, algorithms=False)
#: What each policy decides, and less than that: what solves a program of fewer decisions solves the
#: whole one too, and is found sooner. Of MO-SOS's the fastest replay is taken. The baselines take
#: each layer's fastest algorithm for granted, which then runs by the fastest whose workspace fits,
#: and the first plan that is found.
CANDIDATES = {
    "mo_sos": (MO_SOS, STR, Freedom(offload=False), CHECKMATE),
    "str": (STR, CHECKMATE),
    "checkmate": (CHECKMATE,),
}
#: How far from the bound a solution may be, and how many nodes the search for it may look at: so
#: plans are the same everywhere, but for a machine on which even that takes this long.
GAP, MOST_NODES, MOST_SECONDS = 5e-3, 20, 600.0
#: How far where it is only asked whether there is one.
ANY = 1.0
#: Shares of memory that the program may take, for it knows no addresses. The next is tried where
#: addresses make computing so many times longer than the program found, and the replay decides; the
#: baselines take the first that fits.
SHARES, AS_SOLVED = (1.0, 0.94), 1.01
#: How near a limit that would do is to one that would not; and how many times what all tensors
#: take may still do for workspaces, too.
MORE, PLENTY = 1.25, 4


def canonicalize_whole_maps(step: Step) -> Step:
    """The step that these policies take: whole maps for backward, as the paper has it.

    Poolings save where their maxima are, so that their maps may be made again by other engines.
    """
    return share_gradient_memory(
        fuse_gradient_sums(fuse_chains(split_concatenations(save_indices(step))))
    )


def plan_mo_sos(name: str, step: Step, constraints: PlanConstraints, policy: str) -> LoweredStep:
    """Plan a step by one of the programs.

    Raises
    ------
    PlanInfeasibleError
        If it has no solution within the limit, or none was found: with a limit for which one was.
    """
    incumbent = Incumbent(constraints)
    for allowed in CANDIDATES[policy]:
        for share in SHARES:
            solution = _planned(
                name, step, constraints, policy, allowed, int(share * constraints.target.room_bytes)
            )
            if solution is None:
                continue
            planned, seconds = solution
            incumbent.take(planned)
            as_solved = planned.plan.compute_seconds <= AS_SOLVED * seconds
            if not allowed.algorithms or as_solved:
                break
        if policy != "mo_sos" and incumbent.best is not None:
            break
    if incumbent.best is not None or incumbent.least is not None:
        return incumbent.found()
    raise PlanInfeasibleError(
        function=f"{name}: {policy}",
        limit_bytes=constraints.target.limit_bytes,
        smallest_bytes=_enough(name, step, constraints, policy),
        reason="it takes layers and batches whole",
        beside_bytes=constraints.target.beside_bytes,
        instead="try policy='best', which cuts layers and batches",
    )


def _planned(
    name: str,
    step: Step,
    constraints: PlanConstraints,
    policy: str,
    allowed: Freedom,
    budget: int,
    stop: float = GAP,
) -> tuple[LoweredStep, float] | None:
    """Plan a step in so many bytes; None where there is no solution, or it has no addresses.

    With the seconds of computing that the program found.
    """
    built, program = _program(step, constraints, allowed, budget)
    solved = program.solved(stop, MOST_NODES, MOST_SECONDS)
    if solved is None:
        return None
    schedule = schedule_of(program, solved)
    followed = replay_schedule(built, program, schedule)
    rewritten, live_ranges = followed.step, followed.live_ranges
    check_live_ranges(rewritten, live_ranges)
    tensors = [
        LiveBuffer(live_range.first, live_range.last, rewritten.tensors[base].nbytes)
        for base, found in live_ranges.items()
        for live_range in found
        if base not in _on_device(constraints)
    ]
    reserved = fit_workspaces(tensors, followed.wanted, constraints.target.room_bytes)
    if reserved is None:
        return None
    spec = RewriteSpec(again=followed.again, reserved=tuple(sorted(reserved.items())))
    planned = lower_and_replay(
        name,
        Candidate(
            rewritten, live_ranges, constraints, policy, spec, may_stream=False, reserved=reserved
        ),
    )
    if planned is None:
        return None
    reached = program.constant_seconds + solved.bound
    gap = (solved.objective - solved.bound) / reached if reached > 0 else 0.0
    plan = replace(planned.plan, gap=gap if gap > GAP else 0.0)
    return planned._replace(plan=plan), schedule.seconds


def _program(
    step: Step, constraints: PlanConstraints, allowed: Freedom, budget: int
) -> tuple[BuiltProblem, RematMilp]:
    built = build_problem(
        step, PhaseChoices(constraints.target, constraints.order), budget, _on_device(constraints)
    )
    return built, RematMilp(built.problem, budget, allowed)


def _on_device(constraints: PlanConstraints) -> frozenset[str]:
    """The arrays that the user holds on the device."""
    return frozenset(name for name, each in constraints.given.items() if each.placement == "device")


def _enough(name: str, step: Step, constraints: PlanConstraints, policy: str) -> int | None:
    """A limit, not much more than is needed, for which a solution of the program has addresses."""
    target, allowed = constraints.target, CANDIDATES[policy][0]

    def has_solution(budget: int) -> bool:
        _, program = _program(step, constraints, allowed, budget)
        return program.solved(ANY, MOST_NODES, MOST_SECONDS) is not None

    def has_plan(room: int) -> bool:
        limit = room + target.beside_bytes
        wider = replace(constraints, target=target._replace(limit_bytes=limit, room_bytes=room))
        budgets = (int(share * room) for share in SHARES)
        return any(_planned(name, step, wider, policy, allowed, each, ANY) for each in budgets)

    low, most = max(target.room_bytes, 1), PLENTY * sum(t.nbytes for t in step.tensors.values())
    high = 2 * low
    while not has_solution(high):
        if high > most:
            return None
        low, high = high, 2 * high
    while high > MORE * low:
        middle = math.isqrt(low * high)
        low, high = (low, middle) if has_solution(middle) else (middle, high)
    while not has_plan(high):  # addresses want more than the program knows
        if high > most:
            return None
        high = math.ceil(MORE * high)
    return high + target.beside_bytes
