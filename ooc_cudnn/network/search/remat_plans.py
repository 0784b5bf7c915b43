"""Turn the remat search's solutions into plan candidates."""

from __future__ import annotations

from collections.abc import Sequence

from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.search.candidate import Candidate
from ooc_cudnn.network.search.incumbent import Candidates, Incumbent
from ooc_cudnn.network.search.pass_pipeline import rematerialize_in_parts
from ooc_cudnn.network.search.remat_solutions import find_remat_solutions, refetch_live_ranges

#: The policy that a plan shows whose events a search found.
SEARCHED = "repeat"


def propose_remat_plans(
    step: Step,
    constraints: PlanConstraints,
    incumbent: Incumbent,
    copied_kinds: Sequence[Sequence[str]],
    *,
    parts: int = 1,
    slices: int = 1,
    copied_skips: tuple[str, ...] = (),
) -> Candidates[bool | None]:
    """Propose what the search finds, until a candidate has room.

    Nothing is proposed where it cannot beat the incumbent. Return whether a candidate had room;
    None where the search found nothing.

    Parameters
    ----------
    step : Step
        Summed and in place, and cut already where it goes in batch slices.
    copied_kinds : sequence of sequence of str
        Kinds of tensors that may come back from the host: a search for each, which goes on from
        what the one before it found.
    parts, slices : int
        Micro-batches, and the batch slices that the step is in.
    copied_skips : tuple of str
        The concatenations of the step into which skip connections are copied.
    """
    least, before = float("inf"), frozenset[RematEvent]()
    failed, budget = set[frozenset[RematEvent]](), incumbent.budget
    is_found = False
    for copied in copied_kinds:
        if slices > 1 and copied is not copied_kinds[0] and not before:
            break  # with many slices a search that finds nothing takes long
        for solution in find_remat_solutions(
            step,
            constraints,
            parts,
            copied=copied,
            before=before,
            looks_first=parts > 1 or slices > 1,
            budget=budget,
        ):
            is_found = True
            if solution.seconds >= least or incumbent.is_enough():
                break
            if solution.events in failed:  # less room to work in may change nothing of them
                continue
            rewritten = rematerialize_in_parts(step, solution.again, parts)
            room_bytes = constraints.target.room_bytes
            live_ranges = refetch_live_ranges(step, rewritten, solution, room_bytes)
            if not incumbent.can_beat_incumbent(rewritten, live_ranges):
                break
            spec = RewriteSpec(
                parts, again=solution.again, batch_slices=slices, copied_skips=copied_skips
            )
            planned = yield Candidate(
                rewritten, live_ranges, constraints, SEARCHED, spec, may_stream=False
            )
            if planned is not None:
                least, before = solution.seconds, solution.events
                break
            failed.add(solution.events)
    return least < float("inf") if is_found else None
